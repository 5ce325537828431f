"""The planted benchmark's figures against scipy, against hand-made truth, and on ugly input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.planted.metrics import (
    kendall_tau,
    mean_interval,
    regret_at,
    resample_queries,
    truth_error,
)


@pytest.mark.parametrize("seed", range(5))
def test_kendall_tau_is_scipys_tau_b_with_and_without_ties(seed):
    rng = np.random.default_rng(seed)
    truth = rng.random(50)
    smooth = truth + rng.normal(0, 0.5, 50)
    tied = np.round(smooth, 1)
    for score in (smooth, tied):
        assert kendall_tau(score, truth) == pytest.approx(stats.kendalltau(score, truth).statistic)


def test_kendall_tau_is_one_for_the_truth_and_minus_one_for_its_reverse():
    truth = np.array([0.1, 0.7, 0.3, 0.9])
    assert kendall_tau(truth, truth) == 1.0
    assert kendall_tau(-truth, truth) == -1.0


def test_an_estimate_that_says_the_same_of_all_cases_ranks_nothing():
    assert kendall_tau(np.zeros(4), np.array([0.1, 0.7, 0.3, 0.9])) == 0.0
    assert kendall_tau(np.array([0.5]), np.array([0.2])) == 0.0


def test_regret_is_what_the_chosen_cases_lose_against_the_best():
    truth = np.array([0.2, 0.9, 0.5, 0.8])
    assert regret_at(1, truth, truth) == 0.0
    assert regret_at(1, np.array([1.0, 0.0, 0.0, 0.0]), truth) == pytest.approx(0.7)
    assert regret_at(2, np.array([1.0, 0.0, 0.9, 0.0]), truth) == pytest.approx(0.85 - 0.35)
    assert regret_at(4, -truth, truth) == pytest.approx(0.0)


def test_a_tied_score_takes_the_lower_index_first():
    truth = np.array([0.2, 0.9])
    assert regret_at(1, np.zeros(2), truth) == pytest.approx(0.7)


def test_the_error_against_the_truth_has_a_size_and_a_direction():
    error, bias = truth_error(np.array([0.6, 0.4]), np.array([0.5, 0.6]))
    assert error == pytest.approx(0.15)
    assert bias == pytest.approx(-0.05)


def test_the_interval_of_a_constant_is_the_constant_and_others_hold_their_mean():
    counts = resample_queries(20, 200, np.random.default_rng(0))
    assert np.all(counts.sum(axis=1) == 20)
    assert mean_interval(np.full(20, 0.25), counts) == pytest.approx((0.25, 0.25, 0.25))
    mean, low, high = mean_interval(np.arange(20.0), counts)
    assert low < mean < high
