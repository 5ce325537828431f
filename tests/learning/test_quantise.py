"""int8 encoders: only through the gate, scores that depend on no neighbour, keys of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest

import retriever
from memory import CaseBank, NewCase
from retriever import artifact
from retriever.embedders import CaseProjector
from retriever.errors import ArtifactNotFound, IndexUnavailable, InvalidInput, ParityError
from retriever.learning import agreement
from retriever.learning.agreement import Labelled
from retriever.learning.data.outcome_log import read_outcome_log
from retriever.learning.data.split import grouped_split
from retriever.learning.int8_graph import Recipe
from retriever.learning.quantise import Sample, add_int8, main, sample_of
from retriever.searcher import Searcher

WORDS = ("city", "film", "team", "song", "river", "king", "queen", "school")
QUERIES = [f"who is the {one} of the {two}" for one in WORDS for two in WORDS[:7]]
CASES = [f"[CASE]\nwhat {one} {two} is it" for one in WORDS for two in WORDS]
NO_LABELS = Labelled(np.array([], np.int64), np.array([], np.int64), np.array([], np.float32))
MANY = Sample(QUERIES, CASES, NO_LABELS)


@pytest.fixture
def copy(tiny_artifact, tmp_path):
    return shutil.copytree(tiny_artifact, tmp_path / "retriever")


@pytest.fixture(scope="module")
def quantised(tiny_artifact, tmp_path_factory):
    """An artifact that holds an int8 encoder."""
    path = shutil.copytree(tiny_artifact, tmp_path_factory.mktemp("int8") / "retriever")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "INT8_OVERLAP", 0.0)  # random weights rank by next to nothing
        add_int8(path, MANY)
    return path


@pytest.fixture
def any_overlap(monkeypatch):
    monkeypatch.setattr(agreement, "INT8_OVERLAP", 0.0)


def files_of(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_passes_is_added_listed_and_says_how_it_was_made(quantised, tiny_artifact):
    manifest = artifact.read_manifest(quantised)
    artifact.verify(quantised, manifest)
    assert artifact.ENCODER_INT8 in manifest.files
    assert manifest.int8["recipe"] == {"weights": "int8", "per_channel": True, "reduce_range": True}
    gate = manifest.int8["gate"]
    assert (gate["cases"], gate["queries"]) == (len(CASES), len(QUERIES))
    assert 0 < gate["overlap_low"] <= gate["overlap"] <= gate["overlap_high"] <= 1
    assert gate["auc_change"] is None
    assert manifest.int8["unseen"] == "the caller's word"
    before = artifact.read_manifest(tiny_artifact)
    assert manifest.fingerprint == before.fingerprint
    kept = {name: manifest.files[name] for name in before.files}
    assert kept == before.files


def test_what_the_gate_refuses_leaves_every_byte_as_it_was(copy, monkeypatch):
    monkeypatch.setattr(agreement, "INT8_OVERLAP", 1.01)
    before = files_of(copy)
    with pytest.raises(ParityError, match=r"refused: top-8 overlap .*Kendall.*left as it was"):
        add_int8(copy, MANY)
    assert files_of(copy) == before
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_change_of_auc_refuses_too(copy, monkeypatch, any_overlap):
    monkeypatch.setattr(agreement, "INT8_AUC_CHANGE", -1.0)
    rng = np.random.default_rng(0)
    pairs = Labelled(
        rng.integers(0, len(QUERIES), 40),
        rng.integers(0, 8, 40),
        (np.arange(40) % 2).astype(np.float32),
    )
    with pytest.raises(ParityError, match="the AUC changes by"):
        add_int8(copy, Sample(QUERIES, CASES, pairs))


def test_a_second_recipe_replaces_the_first(quantised, tmp_path, any_overlap):
    path = shutil.copytree(quantised, tmp_path / "retriever")
    first = retriever.load(path, device="cpu", precision="int8").fingerprint
    add_int8(path, MANY, Recipe(weights="uint8", per_channel=False, reduce_range=False))
    assert artifact.read_manifest(path).int8["recipe"]["weights"] == "uint8"
    assert retriever.load(path, device="cpu", precision="int8").fingerprint != first


def test_the_encoder_is_in_8_bits_and_the_head_is_not(quantised):
    graph = onnx.load(quantised / artifact.ENCODER_INT8).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulInteger") == 2 * 6  # two layers: q, k, v, out, up, down
    makers = {output: node for node in graph.node for output in node.output}
    weights = {w.name: w.data_type for w in graph.initializer}
    for name in ("case_projection", "query_projection"):
        node = makers[name]
        while "text_embedding" not in node.input:  # a sum with the bias, then the product
            node = next(makers[i] for i in node.input if i in makers)
        assert node.op_type in ("Gemm", "MatMul")
        assert weights[node.input[1]] == onnx.TensorProto.FLOAT


def test_a_text_gets_the_same_bits_alone_and_among_others(quantised):
    scorer = retriever.load(quantised, device="cpu", precision="int8")
    texts = [*CASES[:5], "a", "what is the capital of the country " * 8, "", CASES[0]]
    together = scorer.project_texts(texts)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(scorer.project_texts([text])[0], row)
    assert np.array_equal(scorer.project_texts(texts[::-1])[::-1], together)


def test_int8_is_near_fp32_and_not_the_same(quantised):
    plain = retriever.load(quantised, device="cpu")
    small = retriever.load(quantised, device="cpu", precision="int8")
    first, second = plain.embed(QUERIES), small.embed(QUERIES)
    assert not np.array_equal(first, second)
    assert np.allclose(first, second, atol=0.2)


def test_projections_of_one_precision_never_meet_those_of_another(quantised, tmp_path):
    plain = retriever.load(quantised, device="cpu")
    small = retriever.load(quantised, device="cpu", precision="int8")
    assert plain.fingerprint in small.fingerprint
    with CaseBank.open(tmp_path / "b.sqlite", projections=CaseProjector(small)) as bank:
        bank.add([NewCase("who is the king")])
        assert Searcher(bank, small).search(["who is the king"], 1)[0]
        with pytest.raises(IndexUnavailable, match="int8"):
            Searcher(bank, plain).search(["who is the king"], 1)
    with CaseBank.open(tmp_path / "b.sqlite", projections=CaseProjector(plain)) as bank:
        # The old vectors are not taken, and the first search makes what is missing.
        (hits,) = Searcher(bank, plain).search(["who is the king"], 1)
        expected = plain.score([("who is the king", "who is the king")])
        assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-6)
        assert bank.embed_missing() == 0


def test_an_untrained_encoder_is_gated_by_the_neighbours_of_its_queries(
    tiny_cosine_encoder, tmp_path, any_overlap
):
    path = shutil.copytree(tiny_cosine_encoder, tmp_path / "cosine")
    with pytest.raises(ParityError, match="50 queries and 49 cases are too few"):
        add_int8(path, Sample(QUERIES[:50], [], NO_LABELS))
    measured = add_int8(path, Sample(QUERIES, [], NO_LABELS))
    assert measured.agreement.queries == len(QUERIES)
    encoder = retriever.load_encoder(path, device="cpu", precision="int8")
    plain = retriever.load_encoder(path, device="cpu")
    assert encoder.fingerprint != plain.fingerprint
    assert np.allclose(np.linalg.norm(encoder.embed(QUERIES), axis=1), 1.0, atol=1e-5)


def test_an_artifact_without_onnx_cannot_be_quantised(copy):
    (copy / artifact.ENCODER_ONNX).unlink()
    artifact.write_manifest(copy, artifact.read_manifest(copy))
    with pytest.raises(ArtifactNotFound, match=r"export\.onnx=true"):
        add_int8(copy, MANY)


def test_a_damaged_artifact_is_refused_before_anything_is_made(copy):
    (copy / artifact.TOKENIZER).write_text("{}")
    with pytest.raises(artifact.ArtifactCorrupt):
        add_int8(copy, MANY)


@pytest.fixture
def log(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"query": query, "case": str(rng.choice(QUERIES)), "plan": None, "truth_label": bool(i % 2)}
        for i, query in enumerate(QUERIES)
        for _ in range(3)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_sample_of_the_training_log_is_its_held_out_side(log, copy):
    data = read_outcome_log(str(log))
    split = grouped_split(data.rows(True), validation_fraction=0.1, test_fraction=0.2, seed=5)
    manifest = artifact.read_manifest(copy)
    facts = {"log_digest": data.digest, "split_digest": split.digest, "seed": 5, "use_plan": True}
    trained = artifact.write_manifest(copy, with_training(manifest, facts))
    sample = sample_of(trained, data, queries=99, cases=99, test_fraction=0.2)
    rows = data.rows(True)
    assert set(sample.queries) == {rows.query_texts[i] for i in rows.query[split.test]}
    assert set(sample.cases) == set(rows.case_texts)  # cases of the whole log
    for q, c, outcome in zip(
        sample.labelled.query, sample.labelled.case, sample.labelled.outcome, strict=True
    ):
        assert (sample.queries[q], sample.cases[c], outcome) in {
            (rows.query_texts[i], rows.case_texts[j], o)
            for i, j, o in zip(rows.query, rows.case, rows.outcome, strict=True)
        }
    with pytest.raises(InvalidInput, match="cannot be made again"):
        sample_of(trained, data, queries=99, cases=99, test_fraction=0.1)


@pytest.mark.parametrize(
    ("queries", "cases", "said"),
    [
        (QUERIES, CASES[:8], "56 queries and 8 cases"),  # eight of eight always overlap
        (QUERIES[:1], CASES, "1 queries and 64 cases"),
        (QUERIES[:29], CASES, "29 queries"),
        (QUERIES, CASES[:49], "49 cases"),
        (QUERIES[:5] * 20, CASES, "5 queries"),  # said often, but one thing
        (QUERIES, CASES[:8] * 20, "8 cases"),
        ([], [], "0 queries and 0 cases"),
    ],
)
def test_too_few_texts_decide_nothing(copy, queries, cases, said, any_overlap):
    before = files_of(copy)
    with pytest.raises(ParityError, match=f"{said}.* too few .* at least 30 and 50"):
        add_int8(copy, Sample(queries, cases, NO_LABELS))
    assert files_of(copy) == before


def lists(folder, queries):
    """The artifact at `folder`, as if the model had met these queries."""
    manifest = artifact.read_manifest(folder)
    key = manifest.training["case_key"]
    digests = sorted(artifact.query_digest(key, query) for query in queries)
    (folder / artifact.TRAINING_QUERIES).write_text("\n".join(digests))
    return artifact.write_manifest(folder, manifest)


def test_queries_met_in_training_are_known_one_by_one_whatever_the_log_is(log, copy, tmp_path):
    met = QUERIES[:40]
    manifest = lists(copy, [query.upper() + "  " for query in met])  # one query to a split
    lines = log.read_text().splitlines()
    for number, kept in enumerate((lines, lines[1:], [*lines, *lines[-3:]])):
        path = tmp_path / f"log-{number}.jsonl"
        path.write_text("\n".join(kept) + "\n")
        sample = sample_of(
            manifest,
            read_outcome_log(str(path)),
            queries=99,
            cases=99,
            met=artifact.training_queries(copy, manifest),
        )
        assert set(sample.queries) == set(QUERIES) - set(met)
        assert "artifact lists" in sample.unseen


def test_a_log_of_which_the_model_has_met_every_query_is_refused(log, copy):
    manifest = lists(copy, QUERIES)
    with pytest.raises(InvalidInput, match="met every query"):
        sample_of(
            manifest,
            read_outcome_log(str(log)),
            queries=9,
            cases=9,
            met=artifact.training_queries(copy, manifest),
        )


def test_an_artifact_that_lists_no_queries_says_that_only_whole_logs_are_known(log, copy, caplog):
    manifest = artifact.read_manifest(copy)
    assert artifact.training_queries(copy, manifest) is None
    sample = sample_of(manifest, read_outcome_log(str(log)), queries=99, cases=99)
    assert "shares rows with it would count as unseen" in sample.unseen
    assert sample.unseen in caplog.text


@pytest.mark.parametrize("absent", ["onnx", "datasets"])
def test_the_command_names_the_extra_where_something_is_not_installed(copy, log, absent):
    code = (
        "import sys; sys.modules[sys.argv.pop(1)] = None\n"
        "from retriever.learning.quantise import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, absent, str(copy), "--data", str(log)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"needs {absent}" in done.stderr
    assert "precedent-memory[train]" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_log_is_taken_whole_and_the_draw_is_bounded_and_seeded(log, copy):
    data, manifest = read_outcome_log(str(log)), artifact.read_manifest(copy)
    assert set(sample_of(manifest, data, queries=99, cases=2).queries) == set(QUERIES)
    few = sample_of(manifest, data, queries=3, cases=10, seed=1)
    assert (len(few.queries), len(few.cases), len(few.labelled.outcome)) == (3, 10, 9)
    again = sample_of(manifest, data, queries=3, cases=10, seed=1)
    assert again.queries == few.queries
    assert again.cases == few.cases


def with_training(manifest, facts):
    import dataclasses

    return dataclasses.replace(manifest, training={**manifest.training, **facts})


def test_the_command_says_what_it_measured_and_ends_with_two_when_it_refuses(
    copy, log, capsys, monkeypatch
):
    monkeypatch.setattr(agreement, "INT8_OVERLAP", 1.01)
    with pytest.raises(SystemExit) as ended:
        main([str(copy), "--data", str(log), "--cases", "20"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the int8 encoder is refused: top-8 overlap")
    assert not (copy / artifact.ENCODER_INT8).exists()
    monkeypatch.setattr(agreement, "INT8_OVERLAP", 0.0)
    monkeypatch.setattr(agreement, "INT8_AUC_CHANGE", 1.0)
    main([str(copy), "--data", str(log), "--cases", "20"])
    said = capsys.readouterr().out
    assert "int8 encoder added; top-8 overlap" in said
    assert "logged pairs" in said
    assert retriever.load(copy, device="cpu", precision="int8").precision == "int8"


@pytest.mark.parametrize("wrong", [["--queries", "0"], ["--cases", "1"]])
def test_the_command_refuses_to_measure_nothing(copy, log, wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(copy), "--data", str(log), *wrong])
    assert ended.value.code == 2
    assert "at least 1 and 2" in capsys.readouterr().err


def test_weights_of_another_kind_are_refused():
    with pytest.raises(InvalidInput, match="one of int8, uint8"):
        Recipe(weights="int4")


@pytest.mark.slow
def test_training_whose_int8_encoder_is_refused_ends_well_without_it(
    tiny_encoder, log, tmp_path, monkeypatch, caplog
):
    from retriever.learning.config import (
        DataConfig,
        EncoderConfig,
        ExportConfig,
        ModelConfig,
        ReportConfig,
        TrainConfig,
        TrainerConfig,
    )
    from retriever.learning.training import train

    monkeypatch.setattr(agreement, "INT8_OVERLAP", 1.01)
    result = train(
        TrainConfig(
            output_dir=str(tmp_path / "run"),
            device="cpu",
            encoder=EncoderConfig(source=str(tiny_encoder), max_length=64),
            model=ModelConfig(hidden=8),
            data=DataConfig(train=str(log)),
            trainer=TrainerConfig(epochs=1, patience=0, progress=False),
            report=ReportConfig(bootstrap=100, baselines=False),
            export=ExportConfig(int8=True),
        )
    )
    assert result.artifact is not None
    assert artifact.ENCODER_INT8 not in artifact.read_manifest(result.artifact).files
    assert "the int8 encoder is refused" in caplog.text
