"""The loss and the optimizer, against plain forms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from retriever.learning.config import EncoderConfig, TrainerConfig
from retriever.learning.data.collate import collate, tokenise
from retriever.learning.encoder import load_encoder
from retriever.learning.model import CaseClassifier, SplitHead
from retriever.learning.module import batch_logits, linear_schedule, parameter_groups
from retriever.learning.objectives import cross_entropy
from retriever.learning.predict import predict_logits
from tests.learning.logs import random_rows


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(64, generator=torch.Generator().manual_seed(0)) * 3


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("positive", [1.0, 3.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_the_two_class_softmax_loss_of_the_original(
    logits: torch.Tensor, labels: torch.Tensor, positive: float, smoothing: float
) -> None:
    ours = cross_entropy(
        logits,
        labels.float(),
        torch.ones(64),
        label_smoothing=smoothing,
        positive_weight=positive,
    )
    two = torch.stack([torch.zeros_like(logits), logits], dim=1)
    if smoothing and positive != 1.0:
        # torch weighs a smoothed target by class; ours by row. Check by hand.
        target = labels * (1 - smoothing) + smoothing / 2
        each = -(target * two.log_softmax(1)[:, 1] + (1 - target) * two.log_softmax(1)[:, 0])
        weight = torch.where(labels == 1, positive, 1.0)
        expected = (each * weight).sum() / weight.sum()
    else:
        theirs = nn.CrossEntropyLoss(
            weight=torch.tensor([1.0, positive]), label_smoothing=smoothing
        )
        expected = theirs(two, labels)
    torch.testing.assert_close(ours, expected)


def test_row_weights_count_a_row_as_often_as_they_say(
    logits: torch.Tensor, labels: torch.Tensor
) -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 0.0])
    counted = torch.tensor([0, 1, 1, 2, 2, 2])
    outcome = labels[:4].float()
    weighted = cross_entropy(logits[:4], outcome, weight)
    repeated = cross_entropy(logits[counted], outcome[counted], torch.ones(6))
    torch.testing.assert_close(weighted, repeated)


def test_a_partial_outcome_is_a_soft_target() -> None:
    logit = torch.tensor([0.3])
    loss = cross_entropy(logit, torch.tensor([0.25]), torch.ones(1))
    p = torch.sigmoid(logit)
    torch.testing.assert_close(loss, -(0.25 * p.log() + 0.75 * (1 - p).log()).squeeze())


def test_confident_logits_do_not_overflow_and_no_weight_is_no_loss() -> None:
    loss = cross_entropy(torch.tensor([1e4, -1e4]), torch.tensor([1.0, 0.0]), torch.ones(2))
    assert loss == 0.0
    assert cross_entropy(torch.tensor([1.0]), torch.tensor([1.0]), torch.zeros(1)) == 0.0


def test_encoding_each_text_once_gives_the_logits_and_gradients_of_encoding_every_row(
    tiny_encoder: Path,
) -> None:
    encoder = load_encoder(EncoderConfig(source=str(tiny_encoder), max_length=24))
    model = CaseClassifier(encoder.model, encoder.pooling, SplitHead(encoder.hidden_size, 8)).eval()
    rows = random_rows(2)
    table = tokenise(rows, encoder.tokenizer)
    row = torch.arange(len(rows)).numpy()
    batch = collate(table, row, tokens_per_chunk=80)
    once = batch_logits(model, batch)
    once.sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    each = []
    for number in row:  # one pair at a time: no padding, no sharing
        case = torch.from_numpy(table.case_tokens[int(rows.case[number])])[None]
        query = torch.from_numpy(table.query_tokens[int(rows.query[number])])[None]
        each.append(model(case, torch.ones_like(case), query, torch.ones_like(query)))
    plain = torch.cat(each)
    torch.testing.assert_close(once, plain, atol=1e-5, rtol=1e-4)
    plain.sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(
        torch.from_numpy(predict_logits(model, table)), plain.detach(), atol=1e-5, rtol=1e-4
    )


def test_biases_and_norms_are_not_decayed_and_the_head_may_have_its_own_rate(
    tiny_encoder: Path,
) -> None:
    encoder = load_encoder(EncoderConfig(source=str(tiny_encoder), max_length=24))
    model = CaseClassifier(encoder.model, "mean", SplitHead(encoder.hidden_size, 8))
    groups = parameter_groups(
        model, TrainerConfig(learning_rate=1e-4, head_learning_rate=1e-2, weight_decay=0.1)
    )
    of = {id(p): group for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = of[id(parameter)]
        bare = name.endswith(".bias") or "LayerNorm" in name
        assert group["weight_decay"] == (0.0 if bare else 0.1), name
        assert group["lr"] == (1e-2 if name.startswith("head.") else 1e-4), name
    assert len(of) == len(list(model.parameters()))


def test_the_schedule_rises_to_one_and_falls_to_zero() -> None:
    shares = [linear_schedule(step, warmup=4, total=20) for step in range(21)]
    assert shares[0] == 0.0
    assert shares[4] == max(shares) == 1.0
    assert shares[20] == 0.0
    assert shares[:5] == sorted(shares[:5])
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert linear_schedule(0, warmup=0, total=1) == 1.0
    assert linear_schedule(99, warmup=4, total=20) == 0.0
