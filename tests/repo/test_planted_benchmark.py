"""The planted benchmark from end to end: the real script, a tiny encoder, a small world."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from harness.planted.config import (
    PlantedBenchmark,
    PlantedDataset,
    PlantedEvaluation,
    RetrieverSystem,
)
from harness.planted.run import Estimate, every_pair, hold_out, measure, run
from harness.planted.show import sentences
from retriever.learning.config import EncoderConfig, PlantedConfig
from retriever.learning.synthetic import PlantedWorld
from retriever.text import normalise_query
from tests.repo.imports import ROOT

WORLD = PlantedConfig(rows=240, cases=30, cases_per_run=1, runs_per_query=6, noise=0.5)


@pytest.fixture(scope="module")
def held_out():
    return hold_out(PlantedWorld(WORLD), 12)


def evaluation(**benchmark) -> PlantedEvaluation:
    return PlantedEvaluation("unused", benchmark=PlantedBenchmark(resamples=200, **benchmark))


def test_held_out_questions_are_in_no_log(held_out):
    logged = {normalise_query(row["query"]) for row in PlantedWorld(WORLD).rows()}
    asked = {normalise_query(question) for question in held_out.questions}
    assert len(asked) == 12
    assert asked & logged == set()


def test_every_question_meets_every_case_once_and_brings_no_outcome(held_out):
    rows = every_pair(held_out)
    assert len(rows) == 12 * 30
    assert len({*zip(rows.query.tolist(), rows.case.tolist(), strict=True)}) == 12 * 30
    assert not rows.outcome.any()


def test_the_truth_is_perfect_and_a_reversed_order_is_the_worst(held_out):
    truth = held_out.truth
    figures = measure(
        {"truth": Estimate(truth, truth), "retriever": Estimate(-truth, 1 - truth)},
        truth,
        evaluation(),
    )
    perfect, reversed_ = figures["systems"]["truth"], figures["systems"]["retriever"]
    assert perfect["kendall_tau"]["value"] == pytest.approx(1.0)
    assert perfect["regret_at_1"]["value"] == perfect["absolute_error"]["value"] == 0.0
    assert reversed_["kendall_tau"]["value"] == pytest.approx(-1.0)
    best_lost = float((truth.max(axis=1) - truth.min(axis=1)).mean())
    assert reversed_["regret_at_1"]["value"] == pytest.approx(best_lost)


def test_a_system_does_not_differ_from_itself(held_out):
    score = np.random.default_rng(0).random(held_out.truth.shape)
    figures = measure(
        {"retriever": Estimate(score, score), "random": Estimate(score)},
        held_out.truth,
        evaluation(),
    )
    same = figures["differences"]["random"]["kendall_tau"]
    assert same == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert "not shown to differ from" in sentences(figures["differences"])[0]


def test_without_a_retriever_no_differences_are_claimed(held_out):
    score = held_out.truth
    assert measure({"truth": Estimate(score, score)}, score, evaluation())["differences"] == {}


def check_figures(figures) -> None:
    assert figures["systems"]["truth"]["kendall_tau"]["value"] == pytest.approx(1.0)
    # Words show what helps, so words alone recover some of the order; chance recovers none.
    tau = {name: one["kendall_tau"]["value"] for name, one in figures["systems"].items()}
    assert tau["bag_of_words"] > 0.15 > abs(tau["random"])


BASELINES = {"truth", "bag_of_words", "case_mean", "encoder_cosine", "base_rate", "random"}


def test_baselines_alone_are_measured_without_training(tmp_path, tiny_encoder, capsys):
    figures = run(
        PlantedEvaluation(
            str(tmp_path),
            device="cpu",
            benchmark=PlantedBenchmark(held_out_queries=8, resamples=200),
            system=RetrieverSystem(
                "baselines", encoder=EncoderConfig(str(tiny_encoder), max_length=48)
            ),
            dataset=PlantedDataset(world=WORLD),
        )
    )
    assert set(figures["systems"]) == BASELINES
    assert figures["differences"] == {}
    assert json.loads((tmp_path / "planted.json").read_text(encoding="utf-8")) == figures
    assert "Recovery of the truth" in capsys.readouterr().out
    check_figures(figures)


@pytest.mark.slow
def test_the_script_trains_compares_and_writes_its_figures(tmp_path, tiny_encoder):
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "evaluate.py"),
            f"system.encoder.source={tiny_encoder}",
            "system.encoder.max_length=48",
            "system.trainer.epochs=1",
            "system.trainer.progress=false",
            "dataset.world.rows=240",
            "dataset.world.cases=30",
            "benchmark.held_out_queries=8",
            "benchmark.resamples=200",
            "device=cpu",
            f"hydra.run.dir={tmp_path}",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Recovery of the truth" in done.stdout
    figures = json.loads((tmp_path / "planted.json").read_text(encoding="utf-8"))
    assert set(figures["systems"]) == BASELINES | {"retriever"}
    assert set(figures["differences"]) == BASELINES - {"truth"}
    check_figures(figures)
