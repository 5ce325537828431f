"""Exported graphs compute what torch computes; one that does not is refused without a trace."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import retriever
from retriever import artifact
from retriever.engines.runtime import import_runtime
from retriever.errors import ArtifactNotFound, ParityError
from retriever.learning import export
from retriever.learning.export import ExportFacts, export_artifact
from retriever.learning.model import load_model
from retriever.tokens import TextTokenizer
from retriever.types import Calibration

# (batch, padded length, real lengths from .. to)
SHAPES = [
    (1, 1, 1, 1),
    (1, 64, 64, 64),
    (3, 7, 7, 7),
    (5, 64, 1, 64),
    (33, 17, 1, 17),
    (2, 64, 1, 2),
]


@pytest.fixture
def model(tiny_artifact):
    return load_model(tiny_artifact, artifact.read_manifest(tiny_artifact)).eval()


@pytest.fixture
def tokenizer(tiny_artifact):
    return TextTokenizer.from_file(tiny_artifact / "tokenizer.json", max_length=64, pad_id=0)


@pytest.fixture(scope="module")
def graphs(tiny_artifact):
    return {
        name: import_runtime().InferenceSession(
            str(tiny_artifact / name), providers=["CPUExecutionProvider"]
        )
        for name in ("encoder.onnx", "pair.onnx")
    }


def tokens(shape, seed):
    batch, length, shortest, longest = shape
    rng = np.random.default_rng(seed)
    real = rng.integers(shortest, longest + 1, size=(batch, 1))
    mask = (np.arange(length)[None] < real).astype(np.int64)
    return np.where(mask == 1, rng.integers(1, 137, size=(batch, length)), 0), mask


def torch_views(model, ids, mask):
    with torch.inference_mode():
        found = model.views(torch.from_numpy(ids), torch.from_numpy(mask))
    return {name: value.numpy() for name, value in found.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_encoder_graph_gives_torchs_values_on_every_shape(graphs, model, shape):
    ids, mask = tokens(shape, seed=1)
    expected = torch_views(model, ids, mask)
    found = graphs["encoder.onnx"].run(list(expected), {"input_ids": ids, "attention_mask": mask})
    for name, values in zip(expected, found, strict=True):
        np.testing.assert_allclose(values, expected[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("case", "query"), list(zip(SHAPES, SHAPES[1:] + SHAPES[:1], strict=True)))
def test_pair_graph_and_split_form_give_torchs_logits_on_every_shape(graphs, model, case, query):
    query = (case[0], *query[1:])  # as many queries as cases, of another length
    case_ids, case_mask = tokens(case, seed=2)
    query_ids, query_mask = tokens(query, seed=3)
    inputs = {"case_ids": case_ids, "case_mask": case_mask}
    inputs |= {"query_ids": query_ids, "query_mask": query_mask}
    with torch.inference_mode():
        expected = model(**{name: torch.from_numpy(one) for name, one in inputs.items()}).numpy()
    (monolith,) = graphs["pair.onnx"].run(["logit"], inputs)
    np.testing.assert_allclose(monolith, expected, atol=1e-5)

    run = graphs["encoder.onnx"].run
    (shown,) = run(["case_projection"], {"input_ids": case_ids, "attention_mask": case_mask})
    (asked,) = run(["query_projection"], {"input_ids": query_ids, "attention_mask": query_mask})
    weight, bias = (
        model.head.output.weight.detach().numpy(),
        model.head.output.bias.detach().numpy(),
    )
    np.testing.assert_allclose(np.maximum(shown + asked, 0) @ weight[0] + bias, expected, atol=1e-5)


def axes(values):
    return {
        one.name: [axis.dim_param or axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in values
    }


def test_the_graphs_name_their_dynamic_axes(tiny_artifact, tiny_cosine_encoder):
    encoder = onnx.load(tiny_artifact / "encoder.onnx").graph
    inputs = {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"]}
    assert axes(encoder.input) == inputs
    assert axes(encoder.output) == {
        "text_embedding": ["batch", 32],
        "case_projection": ["batch", 16],
        "query_projection": ["batch", 16],
    }
    pair = onnx.load(tiny_artifact / "pair.onnx").graph
    assert axes(pair.input) == {
        "case_ids": ["batch", "length"],
        "case_mask": ["batch", "length"],
        "query_ids": ["batch", "query_length"],
        "query_mask": ["batch", "query_length"],
    }
    assert axes(pair.output) == {"logit": ["batch"]}
    untrained = onnx.load(tiny_cosine_encoder / "encoder.onnx").graph
    assert axes(untrained.input) == inputs
    assert axes(untrained.output) == {"text_embedding": ["batch", 32]}


def test_the_graphs_are_whole_files_that_the_onnx_checker_accepts(tiny_artifact):
    for name in ("encoder.onnx", "pair.onnx"):
        graph = onnx.load(tiny_artifact / name, load_external_data=False)
        onnx.checker.check_model(graph, full_check=True)
        assert all(
            one.data_location != onnx.TensorProto.EXTERNAL for one in graph.graph.initializer
        )


def change_weight(graph, ending, change):
    (weight,) = [one for one in graph.initializer if one.name.endswith(ending)]
    array = change(numpy_helper.to_array(weight).copy()).astype(np.float32)
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))


def scaled(ending):
    return lambda graph: change_weight(graph, ending, lambda array: array * 1.1)


def not_a_number(graph):
    change_weight(graph, "head.case.bias", lambda array: array * np.nan)


def burnt_in_batch(graph):
    for one in graph.input:
        one.type.tensor_type.shape.dim[0].dim_value = 2


def swapped_projections(graph):
    other = {"case_projection": "query_projection", "query_projection": "case_projection"}
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = other.get(name, name)


def embedding_alone(graph):
    """The projections stay right: only what `embed` returns is not."""
    (node,) = [node for node in graph.node if "text_embedding" in node.output]
    users = [
        (user, place)
        for user in graph.node
        for place, name in enumerate(user.input)
        if name == "text_embedding"
    ]
    node.output[list(node.output).index("text_embedding")] = "embedding_before"
    for user, place in users:
        user.input[place] = "embedding_before"
    graph.node.append(
        onnx.helper.make_node("Neg", ["embedding_before"], ["text_embedding"], "damage")
    )


@pytest.fixture
def damaged_export(tiny_artifact, monkeypatch):
    """Give `export_artifact` graphs that were damaged after their export."""

    def install(file, damage):
        def write_graphs(folder, model):
            for name in ("encoder.onnx", "pair.onnx"):
                shutil.copy(tiny_artifact / name, folder / name)
            if file is not None:
                whole = onnx.load(folder / file)
                damage(whole.graph)
                onnx.save(whole, folder / file)

        monkeypatch.setattr(export, "_export_onnx", write_graphs)

    return install


DAMAGES = [
    ("encoder.onnx", scaled("word_embeddings.weight"), "of encoder.onnx differs"),
    ("encoder.onnx", scaled("head.query.weight"), "of the split form differs"),
    ("encoder.onnx", swapped_projections, "of the split form differs"),
    ("encoder.onnx", embedding_alone, "embedding of encoder.onnx differs"),
    ("encoder.onnx", not_a_number, "differs from torch by nan"),
    ("encoder.onnx", burnt_in_batch, "cannot run a batch of"),
    ("pair.onnx", scaled("head.output.weight"), "of pair.onnx differs"),
    ("pair.onnx", not_a_number, "differs from torch by nan"),
    ("pair.onnx", burnt_in_batch, "cannot run a batch of"),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGES)
def test_a_damaged_graph_is_refused_and_leaves_nothing_behind(
    damaged_export, model, tokenizer, tmp_path, file, damage, message
):
    damaged_export(file, damage)
    with pytest.raises(ParityError, match=message) as refused:
        export_artifact(tmp_path / "new" / "artifact", model, tokenizer, ExportFacts("tiny"))
    assert "nothing was exported" in str(refused.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_refused_export_leaves_the_older_artifact_in_use(
    damaged_export, model, tokenizer, artifact_copy
):
    before = retriever.load(artifact_copy, device="cpu").score([("who", "what")])
    damaged_export("pair.onnx", scaled("head.output.weight"))
    with pytest.raises(ParityError):
        export_artifact(artifact_copy, model, tokenizer, ExportFacts("newer"))
    again = retriever.load(artifact_copy, device="cpu")
    assert again.manifest.encoder.source == "tiny"
    assert again.score([("who", "what")]) == before
    assert [path.name for path in artifact_copy.parent.iterdir()] == ["retriever"]


@pytest.mark.parametrize(("shift", "passes"), [(0.0, True), (5e-5, True), (3e-4, False)])
def test_the_gate_opens_within_the_tolerance_and_shuts_beyond_it(
    damaged_export, model, tokenizer, tmp_path, shift, passes
):
    path = tmp_path / "artifact"
    damaged_export(
        "pair.onnx",
        lambda graph: change_weight(graph, "head.output.bias", lambda bias: bias + shift),
    )
    if passes:
        manifest = export_artifact(path, model, tokenizer, ExportFacts("tiny"), tolerance=1e-4)
        assert manifest.training["onnx_parity"] == pytest.approx(shift, abs=1e-5)
        assert artifact.read_manifest(path) == manifest
    else:
        with pytest.raises(ParityError, match=r"logit of pair\.onnx differs"):
            export_artifact(path, model, tokenizer, ExportFacts("tiny"), tolerance=1e-4)
        assert not path.exists()


def test_what_the_caller_knows_is_in_manifest_and_card(model, tokenizer, tmp_path):
    facts = ExportFacts(
        source="some/encoder",
        revision="abc",
        calibration=Calibration(0.5, -1.0),
        training={"rows": 12},
        metrics={"auc": 0.61},
        case_texts=["[CASE]\none", "[CASE]\ntwo", "[CASE]\none"],
        query_texts=["One?", "one? "],
    )
    path = tmp_path / "my-retriever"
    manifest = export_artifact(path, model, tokenizer, facts, onnx=False)
    assert artifact.read_manifest(path) == manifest
    assert (manifest.encoder.source, manifest.encoder.revision) == ("some/encoder", "abc")
    assert (manifest.encoder.max_length, manifest.encoder.hidden_size) == (64, 32)
    assert (manifest.calibration, manifest.metrics) == (Calibration(0.5, -1.0), {"auc": 0.61})
    assert manifest.projection_size == 16
    assert {"torch", "transformers", "onnx", "onnxruntime"} <= set(manifest.versions)
    card = (path / "card.md").read_text(encoding="utf-8")
    for words in ("# my-retriever", "some/encoder", "rows: 12", "auc: 0.61", "0.5 * logit -1"):
        assert words in card
    digests = (path / "training_cases.txt").read_text(encoding="ascii").split()
    assert len(digests) == 2
    queries = artifact.training_queries(path, manifest)
    assert queries == {artifact.query_digest(manifest.training["case_key"], "one?")}
    assert manifest.training["case_key"] not in card


def test_a_fingerprint_changes_with_the_weights_and_not_with_the_calibration(
    model, tokenizer, tmp_path
):
    def exported(name, **facts):
        made = export_artifact(
            tmp_path / name,
            model,
            tokenizer,
            ExportFacts(**({"source": "tiny"} | facts)),
            onnx=False,
        )
        return made.encoder.fingerprint, made.fingerprint

    first = exported("a")
    assert exported("b", calibration=Calibration(2.0, 1.0), source="other") == first
    with torch.no_grad():
        model.head.output.weight[0, 0] += 1e-3
    encoder, whole = exported("c")
    assert (encoder == first[0], whole == first[1]) == (True, False)
    with torch.no_grad():
        next(model.encoder.parameters())[5, 0] += 1e-3
    encoder, whole = exported("d")
    assert (encoder == first[0], whole == first[1]) == (False, False)


def test_an_export_without_onnx_serves_torch_and_tells_the_onnx_engine_why_not(
    model, tokenizer, tmp_path, scorer
):
    path = tmp_path / "artifact"
    export_artifact(path, model, tokenizer, ExportFacts("tiny"), onnx=False)
    assert not list(path.glob("*.onnx"))
    pairs = [("who is it", "what is it")]
    found = retriever.load(path, engine="torch", device="cpu").logits(pairs)
    np.testing.assert_allclose(found, scorer.logits(pairs), atol=1e-5)
    with pytest.raises(ArtifactNotFound, match=r"without ONNX.*engine='torch'.*export\.onnx=true"):
        retriever.load(path, device="cpu")


def test_a_crash_while_the_manifest_is_written_leaves_the_older_artifact(
    model, tokenizer, artifact_copy, monkeypatch
):
    def crash(folder, manifest):
        raise KeyboardInterrupt

    monkeypatch.setattr(artifact, "write_manifest", crash)
    with pytest.raises(KeyboardInterrupt):
        export_artifact(artifact_copy, model, tokenizer, ExportFacts("newer"), onnx=False)
    artifact.verify(artifact_copy, artifact.read_manifest(artifact_copy))
    assert [path.name for path in artifact_copy.parent.iterdir()] == ["retriever"]


def test_a_newer_export_replaces_the_older_artifact_wholly(model, tokenizer, artifact_copy):
    manifest = export_artifact(artifact_copy, model, tokenizer, ExportFacts("newer"), onnx=False)
    assert artifact.read_manifest(artifact_copy) == manifest
    assert not (artifact_copy / "encoder.onnx").exists()
    assert [path.name for path in artifact_copy.parent.iterdir()] == ["retriever"]


def test_an_export_replaces_nothing_but_an_artifact_of_its_own_kind(
    tiny_encoder: Path, tiny_artifact: Path, tmp_path: Path
) -> None:
    from retriever.errors import ArtifactError
    from retriever.learning.config import EncoderConfig
    from retriever.learning.export_encoder import export_encoder

    config = EncoderConfig(source=str(tiny_encoder), max_length=64)
    thesis = tmp_path / "thesis"
    (thesis / "chapter").mkdir(parents=True)
    (thesis / "chapter" / "notes.txt").write_text("years of work")
    log = tmp_path / "log.jsonl"
    log.write_text("{}")
    trained = shutil.copytree(tiny_artifact, tmp_path / "trained")
    before = sorted(path.name for path in trained.iterdir())
    for taken in (thesis, log, trained):
        with pytest.raises(ArtifactError, match=r"in the way.*choose another path"):
            export_encoder(config, taken, onnx=False)
    assert (thesis / "chapter" / "notes.txt").read_text() == "years of work"
    assert log.read_text() == "{}"
    assert sorted(path.name for path in trained.iterdir()) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    export_encoder(config, empty, onnx=False)
    export_encoder(config, empty, onnx=False)  # one of its own kind
