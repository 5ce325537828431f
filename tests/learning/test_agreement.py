"""How far two forms of a model agree: against scipy, counting by hand, and the ugly cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau
from sklearn.metrics import roc_auc_score

from retriever.errors import InvalidInput
from retriever.learning.agreement import TOP, Labelled, agreement, kendall


def scores(queries, cases, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((queries, cases)).astype(np.float32)
    return np.round(found, 1) if ties else found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_kendalls_tau_is_that_of_scipy(seed, ties):
    first, second = scores(2, 40, seed, ties).astype(np.float64)
    assert kendall(first, second) == pytest.approx(kendalltau(first, second).statistic)
    assert kendall(first, first) == pytest.approx(1.0)
    assert kendall(first, -first) == pytest.approx(-1.0)


def test_kendalls_tau_of_equal_scores_is_not_a_number():
    assert np.isnan(kendall(np.ones(5), np.arange(5.0)))


@pytest.mark.parametrize("seed", range(4))
def test_overlap_is_counted_over_sets_with_ties_to_the_first(seed):
    first, second = scores(6, 30, seed, ties=True), scores(6, 30, seed + 100, ties=True)
    expected = []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        best = [
            {case for _, case in sorted((-s, case) for case, s in enumerate(row))[:TOP]}
            for row in (a, b)
        ]
        expected.append(len(best[0] & best[1]) / TOP)
    assert agreement(first, second).overlap == pytest.approx(np.mean(expected))


def test_a_bank_of_fewer_cases_than_the_top_always_overlaps():
    assert agreement(scores(3, 5, 1), scores(3, 5, 2)).overlap == 1.0


def test_the_change_of_auc_is_over_the_labelled_pairs_alone():
    rng = np.random.default_rng(3)
    first, second = scores(8, 20, 4), scores(8, 20, 5)
    pairs = Labelled(
        rng.integers(0, 8, 50), rng.integers(0, 20, 50), rng.integers(0, 2, 50).astype(np.float32)
    )
    found = agreement(first, second, pairs)
    before, after = (
        roc_auc_score(pairs.outcome, s[pairs.query, pairs.case]) for s in (first, second)
    )
    assert found.auc == pytest.approx(before)
    assert found.auc_change == pytest.approx(after - before)
    assert found.pairs == 50


def test_without_both_classes_there_is_no_auc_and_the_gate_asks_for_none():
    same = scores(30, 50)
    one_class = Labelled(np.array([0]), np.array([1]), np.array([1.0], np.float32))
    for labelled in (None, one_class):
        found = agreement(same, same.copy(), labelled)
        assert np.isnan([found.auc_change, found.auc_low, found.auc_high]).all()
        assert found.int8_refusals() == []


def test_excluded_pairs_count_nowhere():
    first = scores(4, 4)
    second = first.copy()
    np.fill_diagonal(second, 1e6)
    found = agreement(first, second, excluded=np.eye(4, dtype=np.bool_))
    assert found.largest == 0.0
    assert found.overlap == 1.0
    assert found.kendall == pytest.approx(1.0)


def test_errors_are_of_scores():
    first = scores(2, 12)
    second = first + np.float32(0.25)
    second[1, 3] += 1
    found = agreement(first, second)
    assert found.largest == pytest.approx(1.25, rel=1e-5)
    assert found.shift == pytest.approx(0.25 + 1 / 24, rel=1e-5)
    assert found.spread == pytest.approx(float(first.std()), rel=1e-5)


def test_the_gate_for_int8_says_each_reason():
    same, other = scores(40, 200, 1), scores(40, 200, 2)
    rng = np.random.default_rng(0)
    pairs = Labelled(
        rng.integers(0, 40, 80), rng.integers(0, 200, 80), rng.integers(0, 2, 80).astype(np.float32)
    )
    assert agreement(same, same.copy(), pairs).int8_refusals() == []
    overlap, auc = agreement(same, other, pairs).int8_refusals()
    assert "top-8 overlap" in overlap
    assert "AUC changes" in auc


@pytest.mark.parametrize(("queries", "cases"), [(29, 50), (30, 49), (1, 500), (100, 8)])
def test_the_gate_for_int8_decides_nothing_by_few_texts(queries, cases):
    same = scores(queries, cases)
    reasons = agreement(same, same.copy()).int8_refusals()
    assert "too few" in reasons[0]


def test_the_gate_for_int8_holds_the_lower_end_of_the_interval_against_the_bound():
    same = scores(40, 60)
    other = same.copy()
    for row in range(3):  # a twentieth of the queries loses most of its best eight
        other[row, np.argsort(-same[row])[:5]] = -9
    found = agreement(same, other)
    assert found.overlap > 0.95 > found.overlap_low
    (reason,) = found.int8_refusals()
    assert "is not shown to reach 0.95" in reason


def test_the_interval_of_the_overlap_is_that_of_queries_drawn_again():
    same, other = scores(35, 60, 1), scores(35, 60, 1)
    other += 0.5 * scores(35, 60, 2)
    best = [np.argsort(-form, axis=1, kind="stable")[:, :TOP] for form in (same, other)]
    shares = [len({*a} & {*b}) / TOP for a, b in zip(*(x.tolist() for x in best), strict=True)]
    rng = np.random.default_rng(5)
    means = [np.mean(rng.choice(shares, len(shares))) for _ in range(4000)]
    found = agreement(same, other)
    assert found.overlap == pytest.approx(np.mean(shares))
    expected = np.quantile(means, [0.025, 0.975])
    assert [found.overlap_low, found.overlap_high] == pytest.approx(expected, abs=0.01)


def test_the_gate_for_half_precision_bounds_order_and_error():
    same = scores(5, 100)
    assert agreement(same, same + np.float32(0.01)).half_refusals() == []
    (error,) = agreement(same, same + np.float32(0.03)).half_refusals()
    assert "a score differs by 0.03" in error
    assert len(agreement(same, scores(5, 100, 9)).half_refusals()) == 2


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), "same pairs"),
        (np.zeros(3), np.zeros(3), "same pairs"),
        (np.zeros((0, 3)), np.zeros((0, 3)), "at least 1 and 2"),
        (np.zeros((2, 1)), np.zeros((2, 1)), "at least 1 and 2"),
        (np.zeros((1, 3)), np.array([[0, np.nan, 1]]), "NaN or infinity"),
        (np.array([[0, np.inf, 1]]), np.zeros((1, 3)), "NaN or infinity"),
    ],
)
def test_what_cannot_be_compared_is_refused(first, second, said):
    with pytest.raises(InvalidInput, match=said):
        agreement(first.astype(np.float32), second.astype(np.float32))


def test_all_scores_equal_have_no_order_to_compare():
    flat = np.ones((2, 10), np.float32)
    found = agreement(flat, flat)
    assert np.isnan(found.kendall)
    assert found.overlap == 1.0
