from __future__ import annotations

import math
import time

import numpy as np
import pytest

from retriever.errors import InvalidInput
from retriever.learning import metrics
from retriever.learning.bootstrap import bootstrap_by_query, paired_difference, statistics_of

PLAIN = {
    "auc": metrics.auc,
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "log_loss": metrics.log_loss,
    "brier": metrics.brier,
    "ece": metrics.ece,
}


def table(seed, rows=90, queries=15, decimals=2):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, queries, rows) * 3 + 5
    y = (rng.random(rows) < 0.4).astype(float)
    p = np.clip(0.4 + 0.3 * (y - 0.4) + 0.2 * rng.standard_normal(rows), 0, 1).round(decimals)
    return y, p, group


def explicit(y, p, group, resamples, rng):
    """The slow twin: draw queries, lay their rows end to end, measure."""
    labels = np.unique(group)
    values = {name: [] for name in [*PLAIN, "within_query_auc"]}
    for _ in range(resamples):
        drawn = rng.integers(0, len(labels), size=len(labels))
        rows = [np.flatnonzero(group == labels[d]) for d in drawn]
        taken = np.concatenate(rows)
        for name, measure in PLAIN.items():
            values[name].append(measure(y[taken], p[taken]))
        copies = np.repeat(np.arange(len(rows)), [len(r) for r in rows])  # each draw is a query
        values["within_query_auc"].append(metrics.within_query_auc(y[taken], p[taken], copies).auc)
    return values


@pytest.mark.parametrize("decimals", [1, 12])
def test_every_resample_equals_explicit_resampling_of_rows(decimals):
    y, p, group = table(0, decimals=decimals)
    fast = bootstrap_by_query(
        group, statistics_of(y, p, group), resamples=40, rng=np.random.default_rng(9)
    )
    slow = explicit(y, p, group, 40, np.random.default_rng(9))
    for name, values in slow.items():
        np.testing.assert_allclose(fast.values[name], values, rtol=1e-10, err_msg=name)
        interval = fast.interval(name)
        expected = np.nanquantile(values, [0.025, 0.975])
        np.testing.assert_allclose([interval.low, interval.high], expected, rtol=1e-10)


def test_the_estimate_is_the_metric_on_the_rows_as_they_are():
    y, p, group = table(1)
    drawn = bootstrap_by_query(
        group, statistics_of(y, p, group), resamples=2, rng=np.random.default_rng(0)
    )
    for name, measure in PLAIN.items():
        assert drawn.estimates[name] == pytest.approx(measure(y, p), rel=1e-12)
    within = metrics.within_query_auc(y, p, group)
    assert drawn.estimates["within_query_auc"] == pytest.approx(within.auc)


def test_the_difference_of_a_system_with_itself_is_exactly_zero():
    y, p, group = table(2)
    named = {
        (system, metric): statistic
        for system in ("one", "other")
        for metric, statistic in statistics_of(y, p, group).items()
    }
    drawn = bootstrap_by_query(group, named, resamples=200, rng=np.random.default_rng(0))
    for metric in PLAIN:
        for other in ("one", "other"):
            same = paired_difference(drawn, ("one", metric), (other, metric))
            assert (same.estimate, same.low, same.high) == (0.0, 0.0, 0.0)


def test_a_paired_difference_is_narrower_than_the_two_intervals_apart():
    y, p, group = table(3, rows=600, queries=60)
    worse = np.clip(p + 0.01, 0, 1)
    named = {system: statistics_of(y, q, group)["brier"] for system, q in (("p", p), ("q", worse))}
    drawn = bootstrap_by_query(group, named, resamples=300, rng=np.random.default_rng(0))
    difference, single = paired_difference(drawn, "p", "q"), drawn.interval("p")
    assert difference.high - difference.low < 0.2 * (single.high - single.low)


def test_resamples_of_one_class_are_left_out_of_auc_and_counted():
    group = np.array([0, 0, 1, 1, 2, 2])
    y = np.array([1, 1, 0, 0, 0, 0])
    p = np.array([0.9, 0.3, 0.2, 0.4, 0.1, 0.2])
    drawn = bootstrap_by_query(
        group, statistics_of(y, p, group), resamples=500, rng=np.random.default_rng(0)
    )
    interval = drawn.interval("auc")
    # One class: no draw of query 0 in three (8/27), or three of it (1/27).
    assert interval.skipped == pytest.approx(500 / 3, rel=0.2)
    assert interval.resamples == 500 - interval.skipped
    assert drawn.interval("log_loss").skipped == 0


def test_one_class_altogether_has_neither_auc_nor_interval():
    group, p = np.arange(4), np.array([0.1, 0.2, 0.3, 0.4])
    drawn = bootstrap_by_query(
        group, statistics_of(np.ones(4), p, group), resamples=20, rng=np.random.default_rng(0)
    )
    interval = drawn.interval("auc")
    assert math.isnan(interval.estimate)
    assert math.isnan(interval.low)
    assert interval.skipped == 20


def test_one_query_has_figures_but_no_interval():
    group = np.zeros(3, np.int64)
    drawn = bootstrap_by_query(
        group,
        statistics_of([1, 0, 1], [0.5, 0.4, 0.6], group),
        resamples=20,
        rng=np.random.default_rng(0),
    )
    interval = drawn.interval("brier")
    assert interval.estimate > 0
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_the_same_generator_state_gives_the_same_intervals():
    y, p, group = table(4)
    first, second = (
        bootstrap_by_query(
            group, statistics_of(y, p, group), resamples=50, rng=np.random.default_rng(5)
        ).interval("auc")
        for _ in range(2)
    )
    assert first == second


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    # Log-loss of the true probabilities where all rows of a query share one outcome: treating the
    # rows as independent would give intervals 1/sqrt(8) as wide, which cover about half the time.
    covered = 0
    truth = 0.5 * sum(-(q * math.log(q) + (1 - q) * math.log(1 - q)) for q in (0.2, 0.6))
    for seed in range(120):
        rng = np.random.default_rng(seed)
        chance = rng.choice([0.2, 0.6], 80)
        p = np.repeat(chance, 8)
        y = np.repeat((rng.random(80) < chance).astype(float), 8)
        group = np.repeat(np.arange(80), 8)
        named = {"log_loss": statistics_of(y, p, group)["log_loss"]}
        drawn = bootstrap_by_query(group, named, resamples=200, rng=rng)
        interval = drawn.interval("log_loss")
        covered += interval.low <= truth <= interval.high
    assert 0.87 <= covered / 120 <= 0.99


def test_a_thousand_resamples_of_nine_systems_take_seconds():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(700), 8)
    y = np.repeat((rng.random(700) < 0.25).astype(float), 8)
    named = {
        (system, metric): statistic
        for system in range(9)
        for metric, statistic in statistics_of(y, rng.random(5600), group).items()
    }
    start = time.process_time()
    bootstrap_by_query(group, named, resamples=1000, rng=rng)
    assert time.process_time() - start < 10  # about 0.6 s on one idle core


def test_wrong_arguments_are_refused_by_name():
    y, p, group = table(5)
    statistics = statistics_of(y, p, group)
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="resamples must be at least 1, got 0"):
        bootstrap_by_query(group, statistics, resamples=0, rng=rng)
    with pytest.raises(InvalidInput, match="no rows"):
        bootstrap_by_query([], {}, resamples=1, rng=rng)
    drawn = bootstrap_by_query(group, statistics, resamples=5, rng=rng)
    with pytest.raises(InvalidInput, match="no statistic 'recall'"):
        drawn.interval("recall")
    with pytest.raises(InvalidInput, match="level must be between 0 and 1, got 95"):
        drawn.interval("auc", 95)
    with pytest.raises(InvalidInput, match="no statistic 'recall'"):
        paired_difference(drawn, "auc", "recall")
