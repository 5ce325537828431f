from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from retriever.errors import InvalidInput
from retriever.learning import metrics
from retriever.learning.baselines import fit_baselines
from retriever.learning.config import TrainConfig
from retriever.learning.report import build_report, render, render_text, write_report
from retriever.types import Calibration
from tests.report.logs import log, numbered


def problem(seed=0, queries=60, per_query=4, constant=False):
    """Rows, and the true probabilities of their outcomes."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(queries), per_query)
    draws = queries if constant else queries * per_query
    chance = rng.uniform(0.05, 0.95, draws)
    outcome = (rng.random(draws) < chance).astype(float)
    if constant:
        chance, outcome = np.repeat(chance, per_query), np.repeat(outcome, per_query)
    return numbered(group, outcome), chance


def guess(rows):
    return np.full(len(rows), float(rows.outcome.mean()))


def report_of(rows, model, *, evaluated_on="test", resamples=200, **rest):
    predictions = {"model": model, "base_rate": guess(rows)}
    return build_report(
        rows, predictions, evaluated_on=evaluated_on, resamples=resamples, shared_queries=0, **rest
    )


def said(report):
    return " ".join(report["verdicts"])


def test_every_system_has_every_figure_with_an_interval_around_it():
    rows, chance = problem()
    predictions = {
        "model": chance,
        "model, uncalibrated": chance**2,
        "base_rate": guess(rows),
        "case_mean": guess(rows),
    }
    report = build_report(rows, predictions, evaluated_on="test", resamples=300)
    assert list(report["systems"]) == list(predictions)
    for name, system in report["systems"].items():
        for metric in ("auc", "accuracy", "log_loss", "brier"):
            figure = system["metrics"][metric]
            assert figure["low"] <= figure["estimate"] <= figure["high"], (name, metric)
        assert len(system["reliability"]) == 15
        assert sum(b["weight"] for b in system["reliability"]) == len(rows)
    model = report["systems"]["model"]["metrics"]
    assert model["auc"]["estimate"] == pytest.approx(metrics.auc(rows.outcome, chance))
    assert model["ece"]["estimate"] == pytest.approx(metrics.ece(rows.outcome, chance))


def test_the_model_is_compared_with_every_baseline_base_rate_and_bag_of_words_first():
    rows, chance = problem()
    names = ["query_words", "model, uncalibrated", "bag_of_words", "base_rate", "model"]
    report = build_report(rows, dict.fromkeys(names, chance), evaluated_on="test", resamples=100)
    assert list(report["differences"]) == ["base_rate", "bag_of_words", "query_words"]
    for by_metric in report["differences"].values():
        for metric in ("log_loss", "auc"):
            difference = by_metric[metric]
            assert (difference["low"], difference["estimate"], difference["high"]) == (0, 0, 0)
            assert difference["model_is"] == "no difference shown"


def test_a_model_that_knows_more_is_called_better():
    rows, chance = problem()
    report = report_of(rows, chance)
    difference = report["differences"]["base_rate"]
    assert difference["log_loss"]["high"] < 0
    assert difference["log_loss"]["model_is"] == difference["auc"]["model_is"] == "better"
    assert "Model against base rate, log-loss: better" in said(report)


def test_a_model_that_is_sure_and_wrong_is_called_worse():
    rows, chance = problem()
    report = report_of(rows, 1 - chance)
    difference = report["differences"]["base_rate"]
    assert difference["log_loss"]["low"] > 0
    assert difference["log_loss"]["model_is"] == difference["auc"]["model_is"] == "worse"
    assert "Model against base rate, log-loss: worse" in said(report)


def test_a_null_result_is_said_plainly():
    rows, _ = problem()
    wobble = guess(rows) + 0.02 * np.random.default_rng(1).standard_normal(len(rows))
    report = report_of(rows, wobble)
    assert report["differences"]["base_rate"]["log_loss"]["model_is"] == "no difference shown"
    assert "Model against base rate, log-loss: no difference shown" in said(report)


def test_too_few_queries_are_not_judged():
    rows, chance = problem(queries=9)
    report = report_of(rows, chance)
    assert report["differences"]["base_rate"]["log_loss"]["model_is"] == "not judged"
    assert "not judged, because there are too few queries (9)" in said(report)


def test_ten_to_twenty_queries_are_judged_with_a_warning():
    rows, chance = problem(queries=12)
    assert "Only 12 queries: the intervals are rough." in said(report_of(rows, chance))


def test_outcomes_constant_within_every_query_are_said_to_measure_nothing_within_one():
    rows, chance = problem(constant=True)
    report = report_of(rows, chance)
    assert "constant within every query (60 of 60): nothing within a query was measured" in said(
        report
    )
    assert report["systems"]["model"]["metrics"]["within_query_auc"]["estimate"] is None
    assert "AUC within query" not in render_text(report)


def test_mixed_queries_have_an_auc_within_the_query_and_its_base():
    rows, chance = problem()
    report = report_of(rows, chance)
    within = metrics.within_query_auc(rows.outcome, chance, rows.group)
    figure = report["systems"]["model"]["metrics"]["within_query_auc"]
    assert figure["estimate"] == pytest.approx(within.auc)
    assert report["rows"]["queries_with_both_classes"] == within.queries
    assert f"{within.queries} of 60 queries have both outcomes" in said(report)
    assert "AUC within query" in render_text(report, width=140)


def test_fractions_on_one_side_of_a_half_are_not_called_constant():
    rows = numbered([0, 0, 1, 1], [0.6, 0.9, 0.1, 0.3])
    text = said(report_of(rows, [0.6, 0.9, 0.1, 0.3]))
    assert "constant" not in text
    assert "AUC within a query is not available" in text


@pytest.mark.parametrize("evaluated_on", ["test", "validation", "out-of-fold"])
@pytest.mark.parametrize("constant", [True, False])
def test_what_the_score_is_is_always_said(evaluated_on, constant):
    rows, chance = problem(queries=20, constant=constant)
    text = said(report_of(rows, chance, evaluated_on=evaluated_on))
    assert (
        "the estimated chance that a run succeeds given that the case was shown, under this log's "
        "policy; it is not the case's own contribution"
    ) in text
    assert ("optimistic" in text) == (evaluated_on == "validation")
    assert ("out-of-fold" in text) == (evaluated_on == "out-of-fold")


def test_shared_queries_are_called_leakage_before_anything_else():
    rows, chance = problem()
    report = build_report(rows, {"model": chance}, evaluated_on="test", shared_queries=3)
    assert report["verdicts"][0].startswith("Leakage: 3 queries")
    assert report["leakage"] == {"shared_queries": 3}


def test_a_report_without_baselines_says_that_nothing_was_beaten():
    rows, chance = problem()
    report = build_report(rows, {"model": chance}, evaluated_on="test", resamples=100)
    assert report["differences"] == {}
    assert "No baseline was run" in said(report)
    assert "not checked" in render_text(report)


def test_rows_of_one_class_get_a_report_with_nulls_and_a_reason():
    rows = numbered(range(30), [1.0] * 30)
    report = report_of(rows, np.full(30, 0.9))
    assert report["systems"]["model"]["metrics"]["auc"]["estimate"] is None
    assert "All rows have the same class: AUC is undefined" in said(report)
    assert "n/a" in render_text(report)


def test_one_single_row_gets_a_report():
    report = report_of(numbered([0], [1.0]), [0.7])
    assert report["systems"]["model"]["metrics"]["log_loss"]["low"] is None
    json.dumps(report, allow_nan=False)


def test_the_same_seed_gives_the_same_report_and_another_seed_other_intervals():
    rows, chance = problem()
    assert report_of(rows, chance, seed=1) == report_of(rows, chance, seed=1)
    assert report_of(rows, chance, seed=1) != report_of(rows, chance, seed=2)


def test_a_written_report_reads_back_as_it_was(tmp_path: Path):
    rows, chance = problem(queries=20, constant=True)
    report = report_of(
        rows,
        chance,
        calibration=[Calibration(1.5, -0.25), Calibration()],
        split=[{"digest": "ab12", "test_rows": np.int64(80)}],
        read={
            "files": [Path("runs/log.jsonl")],
            "odd": "half a pair \ud800",
            "rate": np.float32(0.5),
        },
        truncation={"queries": 0, "cases": 3},
        training={"epochs": 3, "best_epoch": 2, "seconds": 1.5, "lost": float("nan")},
        config=TrainConfig(output_dir="runs/x"),
    )
    path = tmp_path / "new" / "report.json"
    write_report(report, path)
    assert json.loads(path.read_text("utf-8")) == report
    assert report["calibration"][0] == {"a": 1.5, "b": -0.25}
    assert report["split"] == [{"digest": "ab12", "test_rows": 80}]
    assert report["training"]["lost"] is None
    assert report["config"]["trainer"]["epochs"] == 3
    assert render_text(json.loads(path.read_text("utf-8"))) == render_text(report)


def test_a_failed_write_leaves_the_old_report_and_nothing_beside_it(tmp_path: Path, monkeypatch):
    path = tmp_path / "report.json"
    write_report({"format": "old"}, path)

    def no_space(handle):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_report({"format": "new"}, path)
    assert json.loads(path.read_text()) == {"format": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_the_text_shows_every_system_and_its_provenance_without_colour():
    rows, chance = problem()
    report = report_of(
        rows,
        chance,
        calibration=Calibration(1.25, -0.5),
        split={"digest": "feed", "train": {"rows": 5}},
        training={"epochs": 3, "seconds": 61.53},
    )
    text = render_text(report)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    for expected in (
        "On test rows: 240 rows, 60 queries",
        "base_rate",
        "0 queries shared with training",
        "calibration: a 1.25, b -0.5",
        "split: digest feed",
        "training: epochs 3, seconds 61.53",
        "200 resamples of queries, seed 0",
    ):
        assert expected in text
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    terminal.print(render(report))
    assert "base_rate" in terminal.file.getvalue()


def test_a_narrow_terminal_folds_figures_and_loses_none():
    rows, chance = problem()
    report = report_of(rows, chance)
    text = "".join(render_text(report, width=60).split())
    assert "…" not in text


def test_a_name_that_looks_like_markup_is_shown_as_it_is():
    rows, chance = problem()
    report = build_report(
        rows, {"model": chance, "[red]mine": chance}, evaluated_on="test", resamples=100
    )
    assert "[red]mine" in render_text(report)
    assert "Model against [red]mine" in render_text(report)


def test_real_baselines_go_through_the_report_together():
    rng = np.random.default_rng(0)
    both = log(
        [
            (f"task {q} of kind {q % 3}", f"plan {c}", float(rng.random() < 0.3 + 0.2 * (q % 3)))
            for q in range(60)
            for c in rng.integers(0, 9, 4)
        ]
    )
    test_side = both.group % 4 == 0
    train, test = both.take(~test_side), both.take(test_side)
    baselines = fit_baselines(train, test)
    report = build_report(
        test, {"model": baselines["bag_of_words"], **baselines}, evaluated_on="test", resamples=100
    )
    assert list(report["differences"])[:2] == ["base_rate", "bag_of_words"]
    assert set(report["differences"]) == set(baselines)


def test_wrong_arguments_are_refused_by_name():
    rows, chance = problem()
    with pytest.raises(InvalidInput, match=r"evaluated_on must be one of .*, got 'train'"):
        build_report(rows, {"model": chance}, evaluated_on="train")
    with pytest.raises(InvalidInput, match="must hold 'model'"):
        build_report(rows, {"base_rate": chance}, evaluated_on="test")
    with pytest.raises(InvalidInput, match=r"predictions of 'case_mean'.*240, 239"):
        build_report(rows, {"model": chance, "case_mean": chance[:-1]}, evaluated_on="test")
    with pytest.raises(InvalidInput, match=r"predictions of 'model'.*is nan"):
        build_report(rows, {"model": np.where(chance > 0.5, np.nan, chance)}, evaluated_on="test")
    with pytest.raises(InvalidInput, match="no rows"):
        build_report(replace(rows).take(np.arange(0)), {"model": []}, evaluated_on="test")
    with pytest.raises(InvalidInput, match="got object"):
        build_report(rows, {"model": chance}, evaluated_on="test", read={"log": object()})
