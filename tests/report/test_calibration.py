from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.errors import InvalidInput
from retriever.learning import calibration, metrics
from retriever.learning.folds import query_folds
from retriever.types import Calibration


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x)))


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.4, -1.5), (2.5, 1.0)])
def test_known_slope_and_offset_are_recovered(a, b):
    rng = np.random.default_rng(0)
    logit = rng.normal(0.5, 1.5, 40_000)
    outcome = rng.random(40_000) < sigmoid(a * logit + b)
    fitted = calibration.fit(logit, outcome)
    assert fitted.a == pytest.approx(a, rel=0.05)
    assert fitted.b == pytest.approx(b, abs=0.06)


def test_a_class_weights_shift_is_undone():
    rng = np.random.default_rng(1)
    true_logit = rng.normal(-1.2, 0.8, 20_000)
    outcome = (rng.random(20_000) < sigmoid(true_logit)).astype(float)
    shifted = true_logit + math.log(3.3)  # what Memento's class weight does to the logits
    fitted = calibration.fit(shifted, outcome)
    assert metrics.ece(outcome, sigmoid(shifted)) > 0.2
    assert metrics.ece(outcome, calibration.apply(shifted, fitted)) < 0.02


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from([1e-6, 0.01, 1.0, 30.0, 1e4]),
    st.sampled_from([-20.0, 0.0, 3.0]),
    st.sampled_from(["classes", "fractions", "one class", "separable", "reversed"]),
)
def test_the_rows_fitted_on_never_get_worse_and_the_slope_stays_positive(
    seed, rows, scale, shift, kind
):
    rng = np.random.default_rng(seed)
    logit = scale * rng.standard_normal(rows).round(1) + shift
    outcome = {
        "classes": lambda: rng.integers(0, 2, rows).astype(float),
        "fractions": lambda: rng.random(rows),
        "one class": lambda: np.ones(rows),
        "separable": lambda: (logit > shift).astype(float),
        "reversed": lambda: (logit < shift).astype(float),
    }[kind]()
    weight = rng.choice([1.0, 0.25, 4.0], rows)
    fit = calibration.fit_with_diagnostics(logit, outcome, weight)
    assert fit.calibration.a > 0
    assert math.isfinite(fit.calibration.a)
    assert math.isfinite(fit.calibration.b)
    slack = 1e-9 * max(1.0, fit.log_loss_before)
    assert fit.log_loss_after <= fit.log_loss_before + slack


def test_reported_losses_are_those_of_the_probabilities():
    rng = np.random.default_rng(2)
    logit, outcome = rng.normal(size=50), rng.integers(0, 2, 50)
    fit = calibration.fit_with_diagnostics(logit, outcome)
    after = metrics.log_loss(outcome, calibration.apply(logit, fit.calibration))
    assert fit.log_loss_after == pytest.approx(after)
    assert fit.log_loss_before == pytest.approx(metrics.log_loss(outcome, sigmoid(logit)))


def test_separable_rows_give_a_finite_slope_that_grows_with_their_number():
    few, many = (calibration.fit(np.tile([-1.0, 1.0], n), np.tile([0, 1], n)) for n in (5, 500))
    assert 1.0 < few.a < many.a < 20.0


@pytest.mark.parametrize("rows", [1, 5, 20, 300])
def test_rows_of_one_class_come_out_near_laplaces_rule(rows):
    fitted = calibration.fit(np.zeros(rows), np.ones(rows))
    expected = (rows + 1) / (rows + 2)
    odds = calibration.apply([0.0], fitted)[0]
    assert (1 - odds) / (1 - expected) == pytest.approx(1.0, abs=0.5)
    assert fitted.a == 1.0


def test_constant_logits_become_the_base_rate_and_say_so(caplog):
    with caplog.at_level(logging.WARNING):
        fit = calibration.fit_with_diagnostics([3.0] * 400, [1, 0, 0, 0] * 100)
    assert not fit.carries_signal
    assert "no signal" in caplog.text
    assert calibration.apply([3.0], fit.calibration)[0] == pytest.approx(0.25, abs=0.01)


def test_a_ranking_that_is_wrong_way_round_becomes_the_base_rate_in_the_same_order(caplog):
    rng = np.random.default_rng(3)
    logit = rng.normal(0, 2, 2000)
    outcome = rng.random(2000) < sigmoid(-logit - 1)
    with caplog.at_level(logging.WARNING):
        fit = calibration.fit_with_diagnostics(logit, outcome)
    assert not fit.carries_signal
    assert "no signal" in caplog.text
    probability = calibration.apply(logit, fit.calibration)
    assert np.ptp(probability) < 0.01
    assert probability.mean() == pytest.approx(outcome.mean(), abs=0.005)
    assert (np.argsort(probability) == np.argsort(logit)).all()


def test_a_useful_ranking_is_reported_as_such(caplog):
    with caplog.at_level(logging.WARNING):
        fit = calibration.fit_with_diagnostics([-1, -1, 1, 1] * 20, [0, 1, 1, 1] * 20)
    assert fit.carries_signal
    assert not caplog.records


def test_a_weight_of_two_says_the_same_as_the_row_twice():
    rng = np.random.default_rng(4)
    logit, outcome, weight = rng.normal(size=30), rng.integers(0, 2, 30), rng.integers(1, 4, 30)
    weighted = calibration.fit(logit, outcome, weight)
    repeated = calibration.fit(np.repeat(logit, weight), np.repeat(outcome, weight))
    assert weighted.a == pytest.approx(repeated.a, rel=1e-6)
    assert weighted.b == pytest.approx(repeated.b, rel=1e-6)


def test_the_identity_is_a_plain_sigmoid_without_overflow():
    logit = np.array([-800.0, -1.0, 0.0, 2.0, 800.0])
    expected = [0.0, sigmoid(-1.0), 0.5, sigmoid(2.0), 1.0]
    np.testing.assert_allclose(calibration.apply(logit, Calibration()), expected)


def test_cross_fitting_uses_no_outcome_of_the_query_itself():
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(40), 5)
    logit, outcome = rng.normal(size=200), rng.integers(0, 2, 200).astype(float)
    fold = query_folds(outcome, group, folds=2, seed=7)
    found = calibration.cross_fitted(logit, outcome, group, folds=2, seed=7)
    for held_out in (0, 1):
        inside = fold == held_out
        weight = calibration.query_weights(group[~inside])
        other = calibration.fit(logit[~inside], outcome[~inside], weight)
        np.testing.assert_array_equal(found[inside], calibration.apply(logit[inside], other))
        assert not set(group[inside]) & set(group[~inside])


def test_query_weights_let_every_query_count_as_one_row():
    weight = calibration.query_weights([7, 3, 7, 7])
    np.testing.assert_allclose(weight, [1 / 3, 1, 1 / 3, 1 / 3])


@pytest.mark.parametrize("spread", [0.3, 0.003])
@pytest.mark.parametrize(("queries", "cost"), [(20, 0.03), (60, 0.012)])
def test_noise_of_a_model_that_learned_nothing_is_not_blown_up(spread, queries, cost):
    # Eight rows a query share one outcome, as in Memento's log; the logits know nothing of it.
    rng = np.random.default_rng(1)
    paid = []
    for _ in range(60):
        logit = rng.normal(-1.1, spread, (queries + 200, 8))
        outcome = np.repeat(rng.random(queries + 200) < 0.25, 8).astype(float)
        group = np.repeat(np.arange(queries + 200), 8)
        held, test = slice(0, 8 * queries), slice(8 * queries, None)
        x = logit.ravel()
        weight = calibration.query_weights(group[held])
        fitted = calibration.fit(x[held], outcome[held], weight)
        assert fitted.a < 4
        paid.append(
            metrics.log_loss(outcome[test], calibration.apply(x[test], fitted))
            - metrics.log_loss(outcome[test], calibration.apply(x[test], Calibration()))
        )
    assert np.mean(paid) < cost


def test_inner_folds_keep_queries_whole_and_the_base_rate_even():
    rng = np.random.default_rng(6)
    group = rng.integers(0, 60, 900) - 30
    outcome = (group % 3 == 0).astype(float)
    fold = query_folds(outcome, group, folds=3, seed=1)
    for g in np.unique(group):
        assert len(set(fold[group == g])) == 1
    queries = [len(set(group[fold == f])) for f in range(3)]
    assert max(queries) - min(queries) <= 1
    positive = [len(set(group[(fold == f) & (outcome == 1)])) for f in range(3)]
    assert max(positive) - min(positive) <= 1
    assert (query_folds(outcome, group, folds=3, seed=2) != fold).any()


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(InvalidInput, match=r"score\[1\] is nan"):
        calibration.fit([0.0, float("nan")], [1, 0])
    with pytest.raises(InvalidInput, match="no rows"):
        calibration.fit([], [])
    with pytest.raises(InvalidInput, match=r"logit\[0\] is inf"):
        calibration.apply([float("inf")], Calibration())
    with pytest.raises(InvalidInput, match="all rows are of one query"):
        calibration.cross_fitted([0.0, 1.0], [0, 1], [3, 3], seed=0)
    with pytest.raises(InvalidInput, match="folds must be at least 2, got 1"):
        calibration.cross_fitted([0.0, 1.0], [0, 1], [3, 4], folds=1, seed=0)
