"""The split head is Memento's head; pooling reads real tokens only."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from retriever.artifact import read_manifest
from retriever.errors import ArtifactCorrupt, InvalidInput
from retriever.learning.config import EncoderConfig
from retriever.learning.encoder import load_encoder
from retriever.learning.model import (
    CaseClassifier,
    SplitHead,
    head_from_tensors,
    head_tensors,
    load_model,
    pool,
)

H, D = 6, 10


@pytest.fixture
def plain():
    """The head as Memento writes it: over [case ; query], two classes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2 * H, D), nn.ReLU(), nn.Dropout(0.2), nn.Linear(D, 2)).eval()


@pytest.fixture
def split(plain):
    head = SplitHead(H, D).eval()
    with torch.no_grad():
        head.case.weight.copy_(plain[0].weight[:, :H])
        head.query.weight.copy_(plain[0].weight[:, H:])
        head.case.bias.copy_(plain[0].bias)
        head.output.weight.copy_(plain[3].weight[1:] - plain[3].weight[:1])
        head.output.bias.copy_(plain[3].bias[1:] - plain[3].bias[:1])
    return head


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(37, H, generator=generator), torch.randn(37, H, generator=generator)


def logits_of(head, case, query):
    return head(head.case(case), head.query(query))


def test_the_split_form_gives_the_plain_heads_probability(plain, split, vectors):
    case, query = vectors
    with torch.no_grad():
        expected = torch.softmax(plain(torch.cat([case, query], dim=1)), dim=1)[:, 1]
        found = torch.sigmoid(logits_of(split, case, query))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_case_and_query_are_not_exchangeable(split, vectors):
    case, query = vectors
    with torch.no_grad():
        assert (logits_of(split, case, query) - logits_of(split, query, case)).abs().max() > 0.01


def test_the_split_form_has_the_plain_heads_gradients(plain, split, vectors):
    labels = torch.randint(0, 2, (37,), generator=torch.Generator().manual_seed(2))
    leaves = {}
    for name in ("plain", "split"):
        leaves[name] = [vector.clone().requires_grad_() for vector in vectors]
    nn.functional.cross_entropy(plain(torch.cat(leaves["plain"], dim=1)), labels).backward()
    nn.functional.binary_cross_entropy_with_logits(
        logits_of(split, *leaves["split"]), labels.float()
    ).backward()

    def close(found, expected):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)

    for found, expected in zip(leaves["split"], leaves["plain"], strict=True):
        close(found.grad, expected.grad)
    close(torch.cat([split.case.weight.grad, split.query.weight.grad], 1), plain[0].weight.grad)
    close(split.case.bias.grad, plain[0].bias.grad)
    # The two rows of the plain output get opposite gradients; their difference is our one row.
    close(split.output.weight.grad[0], plain[3].weight.grad[1])
    close(-split.output.weight.grad[0], plain[3].weight.grad[0])
    close(split.output.bias.grad[0], plain[3].bias.grad[1])


def test_a_fresh_head_is_drawn_as_mementos_two_layers_are():
    torch.manual_seed(3)
    first, last = nn.Linear(2 * 64, 4000), nn.Linear(4000, 2)
    head = SplitHead(64, 4000)
    drawn = torch.cat([head.case.weight, head.query.weight], dim=1)
    assert drawn.abs().max() <= first.weight.abs().max() * 1.01
    assert drawn.std().item() == pytest.approx(first.weight.std().item(), rel=0.02)
    difference = last.weight[1] - last.weight[0]
    assert head.output.weight.std().item() == pytest.approx(difference.std().item(), rel=0.1)


def test_dropout_acts_in_training_and_not_in_evaluation(vectors):
    head = SplitHead(H, D, dropout=0.5)
    with torch.no_grad():
        projections = head.case(vectors[0]), head.query(vectors[1])
        torch.manual_seed(0)
        assert not torch.equal(head.train()(*projections), head(*projections))
        assert torch.equal(head.eval()(*projections), head(*projections))


def test_the_first_token_is_the_first_token():
    hidden = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(pool(hidden, torch.ones(2, 3), "first"), hidden[:, 0])


def test_the_mean_is_over_real_tokens_whatever_the_padding_holds():
    hidden = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    found = pool(hidden, mask, "mean")
    for row, length in enumerate((5, 2, 1)):
        torch.testing.assert_close(found[row], hidden[row, :length].mean(dim=0))
    noisy = torch.where(mask.bool().unsqueeze(-1), hidden, torch.tensor(1e6))
    torch.testing.assert_close(pool(noisy, mask, "mean"), found)


def test_a_row_without_tokens_has_a_finite_mean():
    assert torch.equal(pool(torch.ones(1, 2, 3), torch.zeros(1, 2), "mean"), torch.zeros(1, 3))


@pytest.mark.parametrize("pooling", ["max", "", "auto", "First"])
def test_an_unknown_pooling_is_refused_by_name(pooling):
    with pytest.raises(InvalidInput, match=f"pooling = {pooling!r}: one of first, mean"):
        pool(torch.ones(1, 2, 3), torch.ones(1, 2), pooling)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_an_embedding_does_not_depend_on_how_far_its_row_is_padded(tiny_encoder, pooling):
    encoder = load_encoder(EncoderConfig(str(tiny_encoder), pooling=pooling, max_length=64))
    model = CaseClassifier(encoder.model, encoder.pooling, None).eval()
    ids = torch.tensor([[2, 7, 8, 3]])
    with torch.inference_mode():
        alone = model.encode(ids, torch.ones_like(ids))
        padded_ids = nn.functional.pad(ids, (0, 20), value=encoder.tokenizer.pad_id)
        padded = model.encode(padded_ids, (torch.arange(24) < 4).long()[None])
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)


def test_the_pair_form_is_head_over_both_encodings(tiny_encoder):
    encoder = load_encoder(EncoderConfig(str(tiny_encoder), max_length=64))
    torch.manual_seed(0)
    model = CaseClassifier(encoder.model, "first", SplitHead(encoder.hidden_size, D)).eval()
    case, query = torch.tensor([[2, 9, 3, 0], [2, 5, 6, 3]]), torch.tensor([[2, 11, 3], [2, 3, 0]])
    masks = (case != 0).long(), (query != 0).long()
    with torch.inference_mode():
        shown, asked = model.views(case, masks[0]), model.views(query, masks[1])
        expected = model.head(shown["case_projection"], asked["query_projection"])
        found = model(case, masks[0], query, masks[1])
    torch.testing.assert_close(found, expected)
    assert found.shape == (2,)


def test_a_head_survives_its_stored_form(split, vectors):
    again = head_from_tensors(head_tensors(split)).eval()
    with torch.no_grad():
        assert torch.equal(logits_of(again, *vectors), logits_of(split, *vectors))


@pytest.mark.parametrize("damage", ["other bytes", "no query weight", "missing"])
def test_a_damaged_head_file_is_refused_by_path(tiny_artifact, tmp_path, damage):
    manifest = read_manifest(tiny_artifact)
    folder = shutil.copytree(tiny_artifact, tmp_path / "copy")
    path = folder / "head.safetensors"
    if damage == "missing":
        path.unlink()
    elif damage == "other bytes":
        path.write_bytes(b"not a safetensors file")
    else:
        path.write_bytes(path.read_bytes().replace(b'"query_weight"', b'"other_weight"'))
    with pytest.raises(ArtifactCorrupt, match=r"head\.safetensors does not hold a head"):
        load_model(folder, manifest)
