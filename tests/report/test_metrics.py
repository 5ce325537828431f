from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from retriever.errors import InvalidInput
from retriever.learning import metrics

MEASURES = [metrics.auc, metrics.log_loss, metrics.brier, metrics.accuracy, metrics.f1, metrics.ece]


@st.composite
def tables(draw):
    """Outcomes of both classes, probabilities with many ties, weights with zeros."""
    seed = draw(st.integers(0, 2**32 - 1))
    rows = draw(st.integers(2, 60))
    rng = np.random.default_rng(seed)
    outcome = rng.integers(0, 2, rows)
    outcome[:2] = (0, 1)
    probability = rng.choice(draw(st.sampled_from([2, 5, 1000])), rows) / 1000.0
    if draw(st.booleans()):
        probability = rng.random(rows).round(draw(st.sampled_from([1, 2, 12])))
    weight = rng.choice([0.0, 0.5, 1.0, 3.0], rows)
    weight[:2] = 1.0
    return outcome, probability, weight


@settings(max_examples=150, deadline=None)
@given(tables(), st.booleans())
def test_every_metric_agrees_with_scikit_learn_under_ties_and_weights(table, weighted):
    y, p, w = table
    given_w = w if weighted else None
    assert metrics.auc(y, p, given_w) == pytest.approx(
        sk.roc_auc_score(y, p, sample_weight=given_w)
    )
    assert metrics.brier(y, p, given_w) == pytest.approx(
        sk.brier_score_loss(y, p, sample_weight=given_w)
    )
    clipped = np.clip(p, 1e-7, 1 - 1e-7)
    assert metrics.log_loss(y, p, given_w) == pytest.approx(
        sk.log_loss(y, clipped, sample_weight=given_w, labels=[0, 1])
    )
    predicted = p >= 0.5
    assert metrics.accuracy(y, p, given_w) == pytest.approx(
        sk.accuracy_score(y, predicted, sample_weight=given_w)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = sk.f1_score(y, predicted, sample_weight=given_w, zero_division=np.nan)
    assert metrics.f1(y, p, given_w) == pytest.approx(expected, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_a_weight_of_two_says_the_same_as_the_row_twice(table):
    y, p, _ = table
    weight = np.arange(len(y)) % 2 + 1
    for measure in MEASURES:
        twice = measure(np.repeat(y, weight), np.repeat(p, weight))
        assert measure(y, p, weight) == pytest.approx(twice, nan_ok=True)


def test_ece_follows_its_definition_bin_by_bin():
    rng = np.random.default_rng(3)
    p = np.concatenate([rng.random(200), [0.0, 1.0, 1 / 15, 0.5]])
    y = rng.random(204)
    gap = 0.0
    for i in range(15):
        inside = [r for r in range(204) if i <= p[r] * 15 < i + 1 or (i == 14 and p[r] == 1.0)]
        if inside:
            gap += len(inside) / 204 * abs(np.mean(y[inside]) - np.mean(p[inside]))
    assert metrics.ece(y, p) == pytest.approx(gap)


def test_reliability_bins_hold_every_row_and_reproduce_ece():
    rng = np.random.default_rng(4)
    y, p = rng.integers(0, 2, 300), rng.random(300) ** 2
    bins = metrics.reliability(y, p, bins=10)
    assert sum(b.weight for b in bins) == 300
    assert (bins[0].low, bins[-1].high) == (0.0, 1.0)
    total = sum(b.weight * abs(b.mean_outcome - b.mean_probability) for b in bins if b.weight)
    assert total / 300 == pytest.approx(metrics.ece(y, p, bins=10))


def test_an_empty_reliability_bin_has_no_means():
    bins = metrics.reliability([1, 0], [0.99, 1.0])
    assert bins[-1].weight == 2
    assert all(math.isnan(b.mean_outcome) and b.weight == 0 for b in bins[:-1])


def test_fractional_outcomes_count_as_cross_entropy_and_as_positive_from_one_half():
    y, p = [0.25, 0.5, 1.0], [0.2, 0.6, 0.9]
    by_hand = -np.mean([0.25 * np.log(0.2) + 0.75 * np.log(0.8), 0.5 * np.log(0.24), np.log(0.9)])
    assert metrics.log_loss(y, p) == pytest.approx(by_hand)
    assert metrics.accuracy(y, p) == 1.0
    assert metrics.auc(y, p) == 1.0


def test_a_sure_mistake_costs_the_clip_and_not_infinity():
    assert metrics.log_loss([1], [0.0]) == pytest.approx(-math.log(1e-7))
    assert metrics.log_loss([0], [1.0]) == pytest.approx(-math.log(1e-7), rel=1e-6)


def test_all_scores_tied_give_an_auc_of_exactly_one_half():
    assert metrics.auc([1, 0, 0, 1, 1], [0.3] * 5) == 0.5


def test_one_class_has_no_auc():
    assert math.isnan(metrics.auc([1, 1], [0.1, 0.9]))
    assert math.isnan(metrics.auc([1, 0], [0.1, 0.9], [1, 0]))


def test_f1_without_any_positive_is_undefined_and_with_only_misses_is_zero():
    assert math.isnan(metrics.f1([0, 0], [0.1, 0.2]))
    assert metrics.f1([1, 0], [0.1, 0.2]) == 0.0


def test_auc_takes_any_finite_score():
    assert metrics.auc([0, 1, 1], [-40.0, 3.0, 1e300]) == 1.0


def test_booleans_and_plain_lists_are_read():
    assert metrics.accuracy([True, False], [0.9, 0.1]) == 1.0


@pytest.mark.parametrize(
    ("outcome", "probability", "weight", "named"),
    [
        ([], [], None, "no rows"),
        ([1, 0], [0.5], None, "2, 1"),
        ([1, 0], [0.5, 0.5], [1.0], "one length"),
        ([1, 2], [0.5, 0.5], None, r"outcome\[1\] is 2"),
        ([1, 0], [0.5, 1.5], None, r"probability\[1\] is 1.5"),
        ([1, 0], [0.5, float("nan")], None, r"probability\[1\] is nan"),
        ([float("inf"), 0], [0.5, 0.5], None, r"outcome\[0\] is inf"),
        ([1, 0], [0.5, 0.5], [1, -1], r"weight\[1\] is -1"),
        ([1, 0], [0.5, 0.5], [0, 0], "all weights are 0"),
        (["yes", "no"], [0.5, 0.5], None, "must hold numbers"),
        ([None, 1], [0.5, 0.5], None, "must hold numbers"),
        ([[1, 0]], [[0.5, 0.5]], None, "one dimension"),
    ],
)
def test_a_wrong_column_is_refused_by_name(outcome, probability, weight, named):
    with pytest.raises(InvalidInput, match=named):
        metrics.log_loss(outcome, probability, weight)


def test_zero_bins_are_refused():
    with pytest.raises(InvalidInput, match="bins must be at least 1, got 0"):
        metrics.ece([1], [0.5], bins=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 8))
def test_within_query_auc_is_the_mean_of_scikit_learns_over_mixed_queries(seed, rows, queries):
    rng = np.random.default_rng(seed)
    y, s = rng.integers(0, 2, rows), rng.integers(0, 4, rows) / 4
    group = rng.integers(0, queries, rows) * 7 - 3  # any labels, in any order
    single = [
        sk.roc_auc_score(y[group == g], s[group == g])
        for g in np.unique(group)
        if len(set(y[group == g])) == 2
    ]
    found = metrics.within_query_auc(y, s, group)
    assert found.queries == len(single)
    assert found.auc == pytest.approx(np.mean(single) if single else np.nan, nan_ok=True)


def test_within_query_auc_ignores_which_query_is_easy():
    y = [1, 1, 0, 1, 0, 0]
    easy_known = [0.9, 0.9, 0.9, 0.1, 0.1, 0.1]
    assert metrics.auc(y, easy_known) > 0.5
    assert metrics.within_query_auc(y, easy_known, [0, 0, 0, 1, 1, 1]).auc == 0.5


def test_within_query_auc_needs_one_query_number_a_row():
    with pytest.raises(InvalidInput, match="one query number a row"):
        metrics.within_query_auc([1, 0], [0.1, 0.2], [0])
