"""Recovery of a planted truth: train on its log, then rank every case for new questions.

Each system gives every (held-out question, case) pair a score; the truth is the chance of success
where that case alone is shown. What is reported is how near order, choice and probability come.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import retriever
from harness.planted.config import PlantedEvaluation
from harness.planted.metrics import (
    Array,
    kendall_tau,
    mean_interval,
    regret_at,
    resample_queries,
    truth_error,
)
from harness.planted.show import show
from retriever import scan
from retriever.files import write_text_atomically
from retriever.learning import calibration
from retriever.learning.baselines import BASELINES, Inputs, shared_texts
from retriever.learning.config import (
    DataConfig,
    ExportConfig,
    LoggerConfig,
    ReportConfig,
    TrainConfig,
)
from retriever.learning.data.rows import Rows
from retriever.learning.synthetic import PlantedWorld
from retriever.progress import byte_progress
from retriever.text import case_text
from retriever.types import Floats

RETRIEVER = "retriever"
#: The baselines that can order cases, and the base rate, which can only be right on average.
CHOSEN = ("bag_of_words", "case_mean", "encoder_cosine", "base_rate")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOut:
    """Q questions beyond the log, the C cases, and the truth about each pair (Q, C)."""

    questions: list[str]
    case_queries: list[str]
    case_texts: list[str]
    truth: Array


@dataclass(frozen=True)
class Estimate:
    """What a system says of each pair: `score` (Q, C) orders; `probability` (Q, C) if any."""

    score: Array
    probability: Array | None = None


def run(config: PlantedEvaluation) -> dict[str, Any]:
    """Make the log, train, estimate, compare; writes `planted.json` and prints a table."""
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    world = PlantedWorld(config.dataset.world)
    log_path = output / "log.jsonl"
    with byte_progress("writing the log") as advance:
        world.write_log(log_path, advance)
    held_out = hold_out(world, config.benchmark.held_out_queries)
    estimates = {
        "truth": Estimate(held_out.truth, held_out.truth),
        **_trained(config, log_path, held_out, output),
        **_baselines(config, log_path, held_out, output),
        "random": Estimate(np.random.default_rng(config.seed).random(held_out.truth.shape)),
    }
    figures = {
        "benchmark": "planted",
        "questions": len(held_out.questions),
        "cases": len(held_out.case_texts),
        "world": asdict(config.dataset.world),
        "seed": config.seed,
        **measure(estimates, held_out.truth, config),
    }
    path = output / "planted.json"
    write_text_atomically(path, json.dumps(figures, indent=2, allow_nan=False) + "\n")
    show(figures, path)
    return figures


def hold_out(world: PlantedWorld, count: int) -> HeldOut:
    """The first `count` questions that the world's log does not reach."""
    queries = [world.query(world.query_count + number) for number in range(count)]
    every = np.arange(len(world.cases))
    return HeldOut(
        questions=[query.words for query in queries],
        case_queries=[case.query for case in world.cases],
        case_texts=[case_text(case.query, case.plan) for case in world.cases],
        truth=np.stack([world.success_probability(query.index, every) for query in queries]),
    )


def measure(
    estimates: Mapping[str, Estimate], truth: Array, config: PlantedEvaluation
) -> dict[str, Any]:
    """Every figure of every system with its 95 % interval, on the same resamples of questions.

    `differences` are the retriever's figures minus the other system's, paired by question.
    """
    rng = np.random.default_rng(config.seed)
    counts = resample_queries(len(truth), config.benchmark.resamples, rng)
    by_question = {
        name: _figures(estimate, truth, config.benchmark.top_k)
        for name, estimate in estimates.items()
    }
    systems = {
        name: {figure: _interval(values, counts) for figure, values in figures.items()}
        for name, figures in by_question.items()
    }
    ours = by_question.get(RETRIEVER, {})
    differences = {
        name: {
            figure: _interval(ours[figure] - values, counts)
            for figure, values in figures.items()
            if figure in ours
        }
        for name, figures in by_question.items()
        if ours and name not in (RETRIEVER, "truth")
    }
    return {"systems": systems, "differences": differences}


def _figures(estimate: Estimate, truth: Array, top_k: list[int]) -> dict[str, Array]:
    """Each figure once a question: (Q,)."""
    pairs = list(zip(estimate.score, truth, strict=True))
    figures = {"kendall_tau": np.array([kendall_tau(*pair) for pair in pairs])}
    for k in top_k:
        figures[f"regret_at_{k}"] = np.array([regret_at(k, *pair) for pair in pairs])
    if estimate.probability is not None:
        errors = [truth_error(*pair) for pair in zip(estimate.probability, truth, strict=True)]
        figures["absolute_error"] = np.array([error for error, _ in errors])
        figures["bias"] = np.array([bias for _, bias in errors])
    return figures


def _interval(values: Array, counts: Any) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), mean_interval(values, counts), strict=True))


def _trained(
    config: PlantedEvaluation, log_path: Path, held_out: HeldOut, output: Path
) -> dict[str, Estimate]:
    if config.system.name != RETRIEVER:
        return {}
    # Imported here: other benchmarks start without torch.
    from retriever.learning.training import train

    system = config.system
    result = train(
        TrainConfig(
            output_dir=str(output / "train"),
            seed=config.seed,
            device=config.device,
            encoder=system.encoder,
            model=system.model,
            # No test side: the held-out questions are the test.
            data=DataConfig(train=str(log_path), test_fraction=0.0),
            objective=system.objective,
            trainer=system.trainer,
            logger=LoggerConfig(tensorboard=False),
            report=ReportConfig(bootstrap=100, baselines=False),
            export=ExportConfig(onnx=False),  # scored here and now, by torch
        )
    )
    assert result.artifact is not None  # one split, one model
    scorer = retriever.load(result.artifact, engine="torch", device=config.device)
    logits = scan.logits(
        scorer.head,
        scorer.project_texts(held_out.case_texts),
        scorer.query_projections(held_out.questions),
    )
    chance = calibration.apply(logits.ravel(), scorer.calibration).reshape(logits.shape)
    return {RETRIEVER: Estimate(logits.astype(np.float64), chance.astype(np.float64))}


def _baselines(
    config: PlantedEvaluation, log_path: Path, held_out: HeldOut, output: Path
) -> dict[str, Estimate]:
    """Fitted on every row of the log; the retriever has the same, a tenth as validation."""
    from retriever.learning.data.outcome_log import read_outcome_log

    read = read_outcome_log(str(log_path), cache_dir=output / "train" / "cache")
    train, test = shared_texts(read.rows(use_plan=True), every_pair(held_out))
    stored = dict(zip(held_out.case_texts, held_out.case_queries, strict=True))
    log.info("embedding with the untrained encoder")
    # Cosine is taken as cosine search takes it: the question against the stored question.
    queries = _untrained(config, train.query_texts)
    cases = _untrained(config, [stored[text] for text in train.case_texts])
    inputs = Inputs(queries, cases, config.seed)
    estimates = {}
    for name in CHOSEN:
        log.info("fitting %s", name)
        probability = BASELINES[name](train, test, inputs).reshape(held_out.truth.shape)
        estimates[name] = Estimate(probability, probability)
    cosine = np.einsum("rh,rh->r", queries[test.query], cases[test.case], dtype=np.float64)
    fitted = estimates["encoder_cosine"].probability
    # A logistic may turn the cosine round; a search would not.
    return estimates | {"encoder_cosine": Estimate(cosine.reshape(held_out.truth.shape), fitted)}


def every_pair(held_out: HeldOut) -> Rows:
    """Q questions times C cases as rows, question by question; their outcomes are not known (0)."""
    questions, cases = held_out.truth.shape
    query = np.repeat(np.arange(questions), cases)
    return Rows(
        query_texts=held_out.questions,
        case_texts=held_out.case_texts,
        query=query,
        case=np.tile(np.arange(cases), questions),
        group=query,
        run=query,
        outcome=np.zeros(len(query), np.float32),
        propensity=np.full(len(query), np.nan, np.float32),
        self_case=np.zeros(len(query), np.bool_),
    )


def _untrained(config: PlantedEvaluation, texts: list[str]) -> Floats:
    """N texts -> (N, H) unit vectors of the encoder before any training."""
    from retriever.learning.encoder import load_encoder
    from retriever.learning.model import CaseClassifier
    from retriever.learning.predict import embed_texts

    encoder = load_encoder(config.system.encoder)
    model = CaseClassifier(encoder.model, encoder.pooling, None)
    vectors = embed_texts(model, encoder.tokenizer, texts, config.device)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)
