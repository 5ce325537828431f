"""A Memento checkpoint becomes an artifact with Memento's own scores, or one clear refusal."""

from __future__ import annotations

import argparse
import functools
import shutil

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import retriever
from retriever import artifact
from retriever.errors import InvalidInput
from retriever.learning import import_memento
from retriever.learning.config import EncoderConfig
from retriever.learning.import_memento import import_checkpoint, main
from retriever.types import Calibration

QUERY = "who is the director of the film"
CASES = ["[CASE]\nwho is it", "[CASE]\nwhat city\n[PLAN]\n1. search\n2. verify " + "a " * 80]


class MementoRetriever(nn.Module):
    """Memento's classifier, from its description: first tokens, [case ; query], two classes."""

    def __init__(self, encoder, hidden=24):
        super().__init__()
        self.sentence_bert = encoder
        self.classifier = nn.Sequential(
            nn.Linear(2 * encoder.config.hidden_size, hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(hidden, 2),
        )

    def forward(self, case, query):
        shown, asked = (
            self.sentence_bert(**text).last_hidden_state[:, 0] for text in (case, query)
        )
        return self.classifier(torch.cat([shown, asked], dim=1))


@pytest.fixture(scope="module")
def memento(tiny_encoder):
    """Other weights than the encoder's folder holds, and with a pooler, as Memento's have."""
    torch.manual_seed(5)
    settings = transformers.AutoConfig.from_pretrained(tiny_encoder)
    settings.initializer_range = 0.5  # texts must differ by far more than the tolerance
    return MementoRetriever(transformers.BertModel(settings)).eval()


@pytest.fixture(scope="module")
def encoder_without_weights(tiny_encoder, tmp_path_factory):
    folder = shutil.copytree(tiny_encoder, tmp_path_factory.mktemp("bare") / "encoder")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture
def config(encoder_without_weights):
    return EncoderConfig(str(encoder_without_weights), max_length=64)


def saved(content, tmp_path, name="best.pt"):
    torch.save(content, tmp_path / name)
    return tmp_path / name


def original_scores(memento, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def read(texts):
        found = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        return {name: found[name] for name in ("input_ids", "attention_mask")}

    with torch.inference_mode():
        logits = memento(read(CASES), read([QUERY] * len(CASES)))
    return torch.softmax(logits, dim=1)[:, 1].numpy()


def imported_scores(path):
    scorer = retriever.load(path, engine="torch", device="cpu")
    shown, (asked,) = scorer.project_texts(CASES), scorer.query_projections([QUERY])
    logits = np.maximum(shown + asked, 0) @ scorer.head.weight + scorer.head.offset
    direct = scorer.score([(QUERY, "who is it")])
    np.testing.assert_allclose(direct[0], 1 / (1 + np.exp(-logits[0])), atol=1e-6)
    return 1 / (1 + np.exp(-logits))


def test_an_imported_checkpoint_scores_as_memento_does(memento, config, tmp_path, caplog):
    checkpoint = saved(memento.state_dict(), tmp_path)
    with caplog.at_level("INFO", logger="retriever"):
        manifest = import_checkpoint(checkpoint, config, tmp_path / "artifact", onnx=False)
    expected = original_scores(memento, config.source)
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(imported_scores(tmp_path / "artifact"), expected, atol=1e-5)
    assert manifest.calibration == Calibration(1.0, 0.0)
    assert (manifest.encoder.pooling, manifest.projection_size) == ("first", 24)
    assert manifest.training["imported_from"] == "best.pt"
    left_out = ["sentence_bert.pooler.dense.bias", "sentence_bert.pooler.dense.weight"]
    assert manifest.training["left_out"] == left_out
    assert "left out, because the head does not read it: sentence_bert.pooler" in caplog.text
    assert artifact.read_manifest(tmp_path / "artifact") == manifest


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model"])
def test_a_state_dict_inside_a_training_checkpoint_is_found(memento, config, tmp_path, key):
    checkpoint = saved({"epoch": 3, "auc": 0.6, key: memento.state_dict()}, tmp_path)
    import_checkpoint(checkpoint, config, tmp_path / "artifact", onnx=False)
    np.testing.assert_allclose(
        imported_scores(tmp_path / "artifact"), original_scores(memento, config.source), atol=1e-5
    )


def test_half_precision_old_buffers_and_a_missing_pooler_do_no_harm(memento, config, tmp_path):
    state = {k: v for k, v in memento.state_dict().items() if ".pooler." not in k}
    state = {k: v.bfloat16().float().bfloat16() for k, v in state.items()}
    state["sentence_bert.embeddings.position_ids"] = torch.arange(64)[None]
    manifest = import_checkpoint(saved(state, tmp_path), config, tmp_path / "artifact", onnx=False)
    assert manifest.training["left_out"] == []
    rounded = MementoRetriever(transformers.BertModel(memento.sentence_bert.config)).eval()
    rounded.load_state_dict({k: v.bfloat16().float() for k, v in memento.state_dict().items()})
    np.testing.assert_allclose(
        imported_scores(tmp_path / "artifact"), original_scores(rounded, config.source), atol=1e-5
    )


def changed(state, **changes):
    """The state with tensors replaced, or removed where the change is None."""
    names = {name.replace("__", "."): value for name, value in changes.items()}
    return {k: v for k, v in (dict(state) | names).items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier__3__bias": None}, r"missing: classifier\.3\.bias"),
        ({"sentence_bert__embeddings__LayerNorm__bias": None}, r"missing: .*LayerNorm\.bias"),
        ({"classifier__9__weight": torch.zeros(2)}, r"unknown: classifier\.9\.weight"),
        ({"sentence_bert__extra": torch.zeros(2)}, r"unknown: sentence_bert\.extra"),
        (
            {"sentence_bert__embeddings__LayerNorm__bias": torch.zeros(5)},
            r"misshaped: .*LayerNorm\.bias \(5,\) instead of \(32,\)",
        ),
        (
            {"classifier__0__weight": torch.zeros(24, 32)},
            r"classifier\.0\.weight has the shape \(24, 32\).* needs \(24, 64\)",
        ),
        (
            {"classifier__3__weight": torch.zeros(3, 24)},
            r"classifier\.3\.weight has the shape \(3, 24\).* needs \(2, 24\)",
        ),
        ({"classifier__0__bias": torch.tensor(1.0)}, r"classifier\.0\.weight has the shape"),
        ({"classifier__0__bias": torch.full((24,), torch.nan)}, r"classifier\.0\.bias holds NaN"),
        ({"classifier__0__bias": "text"}, "holds no state dict"),
        (
            {"classifier__0__weight": torch.ones(24, 64).to_sparse()},
            r"classifier\.0\.weight is a sparse_coo tensor",
        ),
        (
            {"classifier__0__weight": torch.ones(24, 64, device="meta")},
            r"classifier\.0\.weight is a meta tensor",
        ),
        (
            {"classifier__3__bias": torch.ones(2, dtype=torch.int64)},
            r"classifier\.3\.bias is int64, weights are floating-point",
        ),
        (
            {"sentence_bert__embeddings__LayerNorm__bias": torch.ones(32, dtype=torch.int8)},
            r"LayerNorm\.bias is int8, weights are floating-point",
        ),
        (
            {"classifier__0__bias": torch.full((24,), -1e300, dtype=torch.float64)},
            r"classifier\.0\.bias holds 1e\+300, beyond float32",
        ),
        (
            {
                "classifier__0__weight": torch.zeros(0, 64),
                "classifier__0__bias": torch.zeros(0),
                "classifier__3__weight": torch.zeros(2, 0),
            },
            r"classifier\.0\.bias is empty, a head needs at least 1 hidden unit",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_error_that_names_the_tensors(
    memento, config, tmp_path, changes, message
):
    checkpoint = saved(changed(memento.state_dict(), **changes), tmp_path)
    with pytest.raises(InvalidInput, match=message) as refused:
        import_checkpoint(checkpoint, config, tmp_path / "artifact", onnx=False)
    assert "best.pt" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "artifact").exists()


def test_a_long_list_of_tensors_is_shortened(memento, config, tmp_path):
    checkpoint = saved({"classifier.0.bias": torch.zeros(24)}, tmp_path)
    with pytest.raises(InvalidInput, match=r"missing: (\S+ ){6}\.\.\.\)"):
        import_checkpoint(checkpoint, config, tmp_path / "artifact", onnx=False)


def test_python_objects_in_a_checkpoint_are_refused_and_not_run(memento, config, tmp_path):
    content = {"model": memento.state_dict(), "args": argparse.Namespace(lr=2e-5)}
    with pytest.raises(InvalidInput, match=r"could run code when read .*argparse\.Namespace"):
        import_checkpoint(saved(content, tmp_path), config, tmp_path / "artifact")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no checkpoint at .*best\.pt"),
        (b"", "not a file that torch.save wrote"),
        (b"PK\x03\x04" + bytes(200), "not a file that torch.save wrote"),
        (b"hello there " * 40, "not a file that torch.save wrote"),
        ("half", "not a file that torch.save wrote"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(memento, config, tmp_path, content, message):
    checkpoint = tmp_path / "best.pt"
    if content == "half":
        whole = saved(memento.state_dict(), tmp_path).read_bytes()
        content = whole[: len(whole) // 2]
    if content is not None:
        checkpoint.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        import_checkpoint(checkpoint, config, tmp_path / "artifact")


@pytest.mark.parametrize("content", [[1, 2], {}, {"model": 3}, torch.zeros(3), {"epoch": 1}])
def test_a_checkpoint_without_a_state_dict_is_refused(config, tmp_path, content):
    with pytest.raises(InvalidInput, match="holds no state dict, neither plainly nor under"):
        import_checkpoint(saved(content, tmp_path), config, tmp_path / "artifact")


def test_the_command_refuses_in_one_line_with_status_two(tmp_path, capsys, tiny_encoder):
    arguments = [str(tmp_path / "none.pt"), str(tmp_path / "out"), "--encoder", str(tiny_encoder)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert (
        said
        == f"error: no checkpoint at {tmp_path / 'none.pt'}; give the path of Memento's best.pt\n"
    )


def test_an_output_that_cannot_be_written_is_one_line(memento, config, tmp_path, capsys):
    (tmp_path / "file").touch()
    checkpoint, out = saved(memento.state_dict(), tmp_path), tmp_path / "file" / "out"
    with pytest.raises(SystemExit) as ended:
        main([str(checkpoint), str(out), "--encoder", config.source, "--max-length", "32"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'file'}")
    assert len(said.splitlines()) == 1


def test_the_command_writes_the_artifact_and_says_what_it_left_out(
    memento, config, tmp_path, capsys, monkeypatch
):
    # The graphs are tested elsewhere, and take their time.
    quick = functools.partial(import_checkpoint, onnx=False)
    monkeypatch.setattr(import_memento, "import_checkpoint", quick)
    checkpoint, out = saved(memento.state_dict(), tmp_path), tmp_path / "out"
    main([str(checkpoint), str(out), "--encoder", config.source, "--max-length", "32"])
    assert capsys.readouterr().out == (
        f"{out}: {config.source}, 24 hidden units, at most 32 tokens; left out: "
        "sentence_bert.pooler.dense.bias, sentence_bert.pooler.dense.weight\n"
    )
    assert artifact.read_manifest(out).encoder.max_length == 32
