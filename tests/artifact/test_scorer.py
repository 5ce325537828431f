"""The scorer: the formula, order, batching, refusals, and life without torch."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

import retriever
from retriever import artifact
from retriever.errors import (
    ArtifactCorrupt,
    ConfigError,
    DeviceUnavailable,
    InvalidInput,
    NonFiniteScore,
)
from retriever.learning.model import load_model
from retriever.scorer import probabilities
from retriever.text import case_text
from retriever.types import Calibration, Pair

ROOT = Path(__file__).resolve().parents[2]
PLAN = [{"id": 1, "description": "find the film"}, {"id": 2, "description": "find its director"}]
TEXTS = [
    "who is it",
    "",
    "what is the capital of the country " * 20,
    "😀 café \x00 שלום",
    "a",
    "who is it",
    "how many people live in the city",
    "\n",
]


@dataclass
class Record:
    query: str
    plan: Any = None
    kind: str = "case"
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: int | None = None


def pairs_of(count, seed=0):
    rng = np.random.default_rng(seed)
    plans = [None, PLAN, "look it up"]
    return [
        Pair(TEXTS[rng.integers(8)], TEXTS[rng.integers(8)], plans[rng.integers(3)])
        for _ in range(count)
    ]


@pytest.fixture(params=["onnx", "torch"])
def any_scorer(request, scorer, torch_scorer):
    return scorer if request.param == "onnx" else torch_scorer


def test_a_score_is_the_sigmoid_of_the_calibrated_logit(any_scorer):
    pairs = pairs_of(20)
    calibration = any_scorer.manifest.calibration
    assert calibration == Calibration(1.5, -0.25)
    for logit, score in zip(any_scorer.logits(pairs), any_scorer.score(pairs), strict=True):
        expected = 1 / (1 + math.exp(-(1.5 * float(logit) - 0.25)))
        assert float(score) == pytest.approx(expected, abs=1e-6)


def test_a_logit_is_the_model_run_plainly_on_one_pair(any_scorer, tiny_artifact):
    model = load_model(tiny_artifact, artifact.read_manifest(tiny_artifact)).eval()
    encode = any_scorer._texts.tokenizer.encode
    for pair in pairs_of(6, seed=1):
        case, query = (
            torch.from_numpy(encode([text])[0])[None]
            for text in (case_text(pair.case, pair.plan), pair.query)
        )
        with torch.inference_mode():
            expected = model(case, torch.ones_like(case), query, torch.ones_like(query))
        assert any_scorer.logits([pair])[0] == pytest.approx(float(expected[0]), abs=1e-5)


def test_projections_give_the_logits_by_the_formula(any_scorer):
    pairs = pairs_of(12, seed=2)
    shown = any_scorer.project([(pair.case, pair.plan) for pair in pairs])
    asked = any_scorer.query_projections([pair.query for pair in pairs])
    assert shown.shape == asked.shape == (12, any_scorer.projection_size)
    by_hand = np.maximum(shown + asked, 0) @ any_scorer.head.weight + any_scorer.head.offset
    np.testing.assert_allclose(by_hand, any_scorer.logits(pairs), atol=1e-5)


def test_both_engines_give_the_same(scorer, torch_scorer):
    pairs = pairs_of(40, seed=3)
    np.testing.assert_allclose(scorer.logits(pairs), torch_scorer.logits(pairs), atol=1e-5)
    np.testing.assert_allclose(scorer.embed(TEXTS), torch_scorer.embed(TEXTS), atol=1e-5)
    np.testing.assert_allclose(scorer.project(TEXTS), torch_scorer.project(TEXTS), atol=1e-5)
    assert scorer.fingerprint == torch_scorer.fingerprint


@pytest.mark.parametrize("method", ["embed", "project", "query_projections"])
def test_one_by_one_is_all_at_once_in_the_order_given(any_scorer, method):
    run = getattr(any_scorer, method)
    together = run(TEXTS)
    alone = np.concatenate([run([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    np.testing.assert_allclose(run([TEXTS[i] for i in order]), together[order], atol=1e-5)
    np.testing.assert_allclose(together[0], together[5], atol=1e-6)  # one text, twice


def test_scores_do_not_depend_on_batch_mates_or_batch_size(scorer, tiny_artifact):
    pairs = pairs_of(30, seed=4)
    small = retriever.load(tiny_artifact, device="cpu", batch_tokens=64)
    together = scorer.score(pairs)
    np.testing.assert_allclose(small.score(pairs), together, atol=1e-5)
    alone = np.concatenate([scorer.score([pair]) for pair in pairs])
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_the_same_pair_twice_has_one_score(any_scorer):
    pair = Pair("who is it", "what is it", PLAN)
    scores = any_scorer.score([pair, Pair("other", "thing"), pair])
    assert scores[0] == scores[2] != scores[1]


def test_nothing_in_is_nothing_out(any_scorer):
    assert any_scorer.score([]).shape == any_scorer.logits([]).shape == (0,)
    assert any_scorer.embed([]).shape == (0, 32)
    assert any_scorer.project([]).shape == any_scorer.query_projections([]).shape == (0, 16)
    assert any_scorer.embed([]).dtype == np.float32
    assert any_scorer.count_tokens([]) == []


def test_every_way_to_write_a_pair_is_the_same_pair(scorer):
    scores = scorer.score(
        [
            Pair("who", "what", PLAN),
            ("who", "what", PLAN),
            ["who", "what", {"plan": PLAN}],
            Pair(query="who", case="what", plan=PLAN),
        ]
    )
    assert len(set(scores.tolist())) == 1
    without = scorer.score([("who", "what"), ("who", "what", None), ("who", "what", "")])
    assert len(set(without.tolist())) == 1
    assert without[0] != scores[0]


def test_every_way_to_write_a_case_is_the_same_case(scorer):
    found = scorer.project([("what", PLAN), {"query": "what", "plan": PLAN}, Record("what", PLAN)])
    assert np.ptp(found, axis=0).max() == 0
    plain = scorer.project(["what", ("what", None), {"query": "what"}, Record("what")])
    assert np.ptp(plain, axis=0).max() == 0
    turn = Record("what", kind="turn", metadata={"speaker": "Ann"})
    np.testing.assert_allclose(
        scorer.project([turn]), scorer.project_texts(["Ann: what"]), atol=1e-6
    )


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("who", r"pairs\[1\] must be a Pair, \(query, case\)"),
        (("who",), r"pairs\[1\] must be a Pair"),
        (("who", "what", None, 3), r"pairs\[1\] must be a Pair"),
        (None, r"pairs\[1\] must be a Pair"),
        ({"query": "who", "case": "what"}, r"pairs\[1\] must be a Pair"),
        (("who", None), r"pairs\[1\]\.case must be text, got NoneType"),
        ((7, "what"), r"pairs\[1\]\.query must be text, got int: 7"),
        (Pair(b"who", "what"), r"pairs\[1\]\.query must be text, got bytes"),
        (("who", "what", 7), "plan must be .* got int: 7"),
        (("who", "what \udfff"), "not valid Unicode"),
    ],
)
def test_a_bad_pair_is_refused_by_place_and_value(scorer, pair, message):
    with pytest.raises(InvalidInput, match=message):
        scorer.score([("who", "what"), pair])


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (None, "a case must be text.*NoneType"),
        (3, "a case must be text.*3"),
        (("a", "b", "c"), "a case must be text"),
        ({"plan": PLAN}, r"needs 'query', got \['plan'\]"),
        ({"query": "a", "plann": "b"}, "unknown key 'plann'; did you mean 'plan'"),
        ({"query": "a", "zzz": "b"}, "unknown key 'zzz'; known: query, plan"),
        ({"query": "a", 7: "b"}, "unknown key 7"),
        ({"query": None}, r"case\['query'\] must be text, got NoneType"),
        ((None, PLAN), "case must be text, got NoneType"),
    ],
)
def test_a_bad_case_is_refused_by_value(scorer, case, message):
    with pytest.raises(InvalidInput, match=message):
        scorer.project([case])


def test_a_whole_row_of_a_case_file_projects_as_its_question_and_plan(scorer):
    row = {"id": "e", "query": "what", "plan": PLAN, "outcome": 1.0, "kind": "case", "tags": ["t"]}
    row |= {"source": "s", "created_at": "2026-01-01T00:00:00Z", "valid_from": None}
    row |= {"valid_to": None, "derived_from": [], "metadata": {"plann": "no key of the row"}}
    np.testing.assert_array_equal(scorer.project([row]), scorer.project([("what", PLAN)]))


@pytest.mark.parametrize(
    "method", ["embed", "project", "project_texts", "query_projections", "score", "count_tokens"]
)
def test_one_text_where_a_list_is_expected_is_refused_not_read_letter_by_letter(scorer, method):
    with pytest.raises(InvalidInput, match="list"):
        getattr(scorer, method)("who")


def test_one_pair_or_case_where_a_list_is_expected_is_refused(scorer):
    for wrong in (Pair("who", "what"), None, 3, {"query": "who"}):
        with pytest.raises(InvalidInput, match="pairs must be a list"):
            scorer.score(wrong)
    for wrong in ({"query": "who"}, Record("who"), None):
        with pytest.raises(InvalidInput, match="cases must be a list"):
            scorer.project(wrong)


def test_texts_that_were_cut_are_counted_and_counting_tokens_cuts_nothing(tiny_artifact):
    scorer = retriever.load(tiny_artifact, device="cpu")
    long = "a " * 100
    assert scorer.count_tokens(["a", long]) == [3, 64]
    assert scorer.truncated == 0
    scorer.score([("a", long), ("a", long), (long, "a")])
    assert scorer.truncated == 2  # each distinct text is read once
    assert scorer.max_length == 64


def rewritten(folder, name, **changed):
    """Other tensors in an artifact whose manifest fits them: damage that no digest shows."""
    path = folder / name
    tensors = safetensors.numpy.load_file(path)
    tensors |= {key: change(tensors[key]) for key, change in changed.items()}
    safetensors.numpy.save_file(tensors, path)
    artifact.write_manifest(folder, artifact.read_manifest(folder))
    return folder


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_score_that_is_not_finite_is_never_returned(artifact_copy, value):
    rewritten(
        artifact_copy, "head.safetensors", output_weight=lambda old: old * 0 + np.float32(value)
    )
    damaged = retriever.load(artifact_copy, device="cpu")
    with pytest.raises(NonFiniteScore, match="non-finite value in logits for input 0"):
        damaged.score([("who is it", "what is it")])
    assert np.isfinite(damaged.embed(["who"])).all()


def test_an_embedding_that_is_not_finite_is_never_returned(artifact_copy):
    def poisoned(old):
        changed = old.copy()
        changed[7] = np.nan  # one token's vector
        return changed

    name = "embeddings.word_embeddings.weight"
    rewritten(artifact_copy, "encoder/model.safetensors", **{name: poisoned})
    damaged = retriever.load(artifact_copy, engine="torch", device="cpu")
    letter = next(x for x in "abcdefgh" if 7 in damaged._texts.tokenizer.encode([x])[0])
    other = next(x for x in "xyz" if 7 not in damaged._texts.tokenizer.encode([x])[0])
    assert np.isfinite(damaged.embed([other])).all()
    with pytest.raises(NonFiniteScore, match="non-finite value in text_embedding for input 1"):
        damaged.embed([other, letter])


@pytest.mark.parametrize(
    "change",
    [
        {"output_weight": lambda old: old[:-1]},
        {"output_bias": lambda old: np.zeros(2, np.float32)},
    ],
)
def test_a_head_of_another_size_is_refused(artifact_copy, change):
    rewritten(artifact_copy, "head.safetensors", **change)
    with pytest.raises(ArtifactCorrupt, match="does not hold a head of 16 hidden units"):
        retriever.load(artifact_copy, device="cpu")


def test_a_head_file_that_is_no_tensor_file_is_refused(artifact_copy):
    (artifact_copy / "head.safetensors").write_bytes(b"nothing")
    artifact.write_manifest(artifact_copy, artifact.read_manifest(artifact_copy))
    with pytest.raises(ArtifactCorrupt, match=r"head\.safetensors cannot be read"):
        retriever.load(artifact_copy, device="cpu")


@pytest.mark.parametrize("engine", ["", "ONNX", "tensorrt", None])
def test_an_unknown_engine_is_refused_with_the_list(tiny_artifact, engine):
    with pytest.raises(InvalidInput, match=f"engine = {engine!r}: one of onnx, torch"):
        retriever.load(tiny_artifact, engine=engine)


def test_a_budget_below_one_text_is_refused_with_the_least(tiny_artifact):
    with pytest.raises(InvalidInput, match=r"batch_tokens = 63.*at least 64"):
        retriever.load(tiny_artifact, batch_tokens=63)


def test_a_misspelt_device_is_refused(tiny_artifact):
    with pytest.raises(ConfigError, match="device = 'gpu': one of auto, cpu"):
        retriever.load(tiny_artifact, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("engine", ["onnx", "torch"])
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_by_name_without_cuda_is_an_error_and_not_the_cpu(tiny_artifact, engine, device):
    with pytest.raises(DeviceUnavailable, match=r"device=cuda:\d: .*use device=cpu"):
        retriever.load(tiny_artifact, engine=engine, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize(
    ("engine", "provider", "said"),
    [
        ("onnx", "CPUExecutionProvider", "using the CPU for ONNX"),
        ("torch", "torch:cpu", "uses cpu"),
    ],
)
def test_auto_says_what_it_uses_and_keeps_it_readable(
    tiny_artifact, caplog, engine, provider, said
):
    with caplog.at_level(logging.INFO, logger="retriever"):
        scorer = retriever.load(tiny_artifact, engine=engine, device="auto")
    assert (scorer.provider, scorer.device) == (provider, "cpu")
    assert "device=auto" in caplog.text
    assert said in caplog.text


def test_one_scorer_serves_several_threads(scorer):
    jobs = [pairs_of(20, seed=seed) for seed in range(6)]
    expected = [scorer.score(job) for job in jobs]
    found: dict[int, Any] = {}

    def work(number):
        found[number] = [scorer.score(jobs[number]) for _ in range(4)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, scores in found.items():
        for one in scores:
            np.testing.assert_allclose(one, expected[number], atol=1e-6)
    assert len(found) == 6


def test_it_scores_the_same_where_torch_cannot_be_imported(tiny_artifact, scorer):
    pairs = [("who is it", "what is it", None), ("", "é 😀", "look it up")]
    program = f"""
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "lightning", "datasets"):
            raise ImportError(f"{{name}} is not installed here")

sys.meta_path.insert(0, NoTorch())
import retriever
from retriever.errors import RetrieverError

scorer = retriever.load(sys.argv[1], device="cpu")
print(scorer.score({pairs!r}).tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny_artifact)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [float(one) for one in done.stdout.strip("[]\n ").split(",")]
    np.testing.assert_allclose(found, scorer.score(pairs), atol=1e-6)


def test_probabilities_stay_exact_at_the_ends_and_keep_their_shape():
    logits = np.array([[-1e4, 0.0], [1e4, 2.0]])
    with np.errstate(all="raise", under="ignore"):
        found = probabilities(logits, Calibration(1.0, 0.0))
    np.testing.assert_allclose(found, [[0, 0.5], [1, 1 / (1 + math.exp(-2))]], atol=1e-7)
    assert probabilities(np.zeros(0), Calibration(2.0, 1.0)).shape == (0,)
    assert probabilities(np.zeros(1), Calibration(2.0, 1.0))[0] == pytest.approx(0.7310586)


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_an_untrained_encoder_gives_unit_vectors_of_its_own(tiny_cosine_encoder, scorer, engine):
    encoder = retriever.load_encoder(tiny_cosine_encoder, engine=engine, device="cpu")
    vectors = encoder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), encoder.dim)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    raw = scorer.embed(TEXTS)  # the same encoder inside the tiny retriever, as pooled
    np.testing.assert_allclose(vectors, raw / np.linalg.norm(raw, axis=1)[:, None], atol=1e-5)
    assert encoder.embed([]).shape == (0, 32)
    assert encoder.fingerprint == scorer.manifest.encoder.fingerprint != scorer.fingerprint
    assert encoder.truncated == 1
    with pytest.raises(InvalidInput, match="list"):
        encoder.embed("who")
