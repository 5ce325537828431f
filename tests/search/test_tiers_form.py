"""The head as an inner product: against regression by quadrature, and against the exact order."""

import numpy as np
import pytest

from retriever.head import Head
from retriever.tiers.linear_form import LinearForm
from retriever.tiers.narrowing import narrowed


def regressed(mean, deviation, shift):
    """relu(P + a) on 1, P − μ and (P − μ)² − σ² in least squares, P normal, by quadrature."""
    nodes = np.linspace(-9, 9, 20_001)
    weights, away = np.exp(-0.5 * nodes**2), deviation * nodes
    basis = np.stack([np.ones_like(away), away, away**2 - deviation**2])
    gram = (basis * weights) @ basis.T
    return np.linalg.solve(gram, (basis * weights) @ np.maximum(mean + away + shift, 0.0))


@pytest.mark.parametrize(
    ("mean", "deviation", "shift"), [(0.0, 1.0, 0.0), (0.7, 2.0, -1.5), (-3.0, 0.5, 2.0)]
)
def test_one_unit_is_expanded_as_least_squares_does(mean, deviation, shift):
    rng = np.random.default_rng(1)
    sample = rng.standard_normal((5000, 1))
    sample = (sample - sample.mean()) / sample.std() * deviation + mean
    head = Head(np.array([1.7], np.float32), 0.0)
    form = LinearForm.fit(head, sample.astype(np.float32), 8)
    cases = np.linspace(mean - 3 * deviation, mean + 3 * deviation, 9).astype(np.float32)
    given = (
        form.case_vectors(cases[:, None]) @ form.query_vectors(np.array([[shift]], np.float32)).T
    )
    given = given[:, 0] * form.radius
    _, first, second = regressed(mean, deviation, shift)
    away = cases.astype(np.float64) - mean
    wanted = 1.7 * (first * away + second * (away**2 - deviation**2))
    np.testing.assert_allclose(given, wanted, atol=0.01 * np.ptp(wanted) + 1e-6)


def test_bias_and_product_are_in_the_form_as_they_are():
    rng = np.random.default_rng(2)
    head = Head(np.zeros(6, np.float32), 0.0, bias=True, rank=3)  # nothing else is left
    cases = rng.standard_normal((200, head.case_width)).astype(np.float32)
    queries = rng.standard_normal((4, head.query_width)).astype(np.float32)
    form = LinearForm.fit(head, cases, 20)
    given = form.query_vectors(queries) @ form.case_vectors(cases).T * form.radius
    wanted = cases[:, 6] + queries[:, 6:] @ cases[:, 7:].T
    np.testing.assert_allclose(given, wanted - cases[:, 6].mean(), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("centre", [0.0, 1.5])
def test_the_exact_best_are_among_the_first_of_the_form(seed, centre):
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((20, 64))
    cases = rng.standard_normal((4000, 20)) @ directions / 4 + centre
    queries = rng.standard_normal((20, 20)) @ rng.standard_normal((20, 64)) / 4
    weight = rng.standard_normal(64)
    head = Head(weight.astype(np.float32), 0.0)
    form = LinearForm.fit(head, cases[::3].astype(np.float32), 24)
    assert form.width == 24
    guesses = (
        form.query_vectors(queries.astype(np.float32))
        @ form.case_vectors(cases.astype(np.float32)).T
    )
    found = 0
    for query, guess in zip(queries, guesses, strict=True):
        exact = np.maximum(cases + query, 0.0) @ weight
        found += len(set(np.argsort(-exact)[:8]) & set(np.argsort(-guess)[:120]))
    assert found >= 0.95 * 8 * 20


def test_vectors_have_length_one_and_units_that_never_differ_do_no_harm():
    rng = np.random.default_rng(3)
    cases = rng.standard_normal((2000, 10)).astype(np.float32)
    cases[:, 4] = 7.0
    form = LinearForm.fit(Head(np.ones(10, np.float32), 0.0), cases, 12)
    lengths = np.linalg.norm(form.case_vectors(cases), axis=1)
    assert np.mean(np.abs(lengths - 1) < 1e-5) > 0.99
    assert (lengths > 1 - 1e-5).all()
    alike = LinearForm.fit(Head(np.ones(10, np.float32), 0.0), np.ones((5, 10), np.float32), 12)
    assert np.isfinite(alike.case_vectors(np.ones((2, 10), np.float32))).all()


def test_queries_far_from_the_bank_give_numbers():
    cases = np.random.default_rng(4).standard_normal((100, 3)).astype(np.float32)
    form = LinearForm.fit(Head(np.ones(3, np.float32), 0.0), cases, 8)
    given = form.query_vectors(np.array([[1e30, -1e30, 0]], np.float32))
    assert np.isfinite(given).all()


@pytest.mark.parametrize("rising", [True, False])
def test_narrowing_keeps_the_best_ties_and_all(rising):
    rng = np.random.default_rng(5)
    head = Head(rng.standard_normal(16).astype(np.float32), 0.3, bias=True, rank=2)
    for scale in (1e-3, 1.0, 1e4):
        cases = (scale * rng.standard_normal((900, head.case_width))).astype(np.float32)
        cases[100:130] = cases[7]  # equal ones must all stay, or go
        query = (scale * rng.standard_normal(head.query_width)).astype(np.float32)
        rows = rng.permutation(900)[:600]
        wide, ask = cases.astype(np.float64), query.astype(np.float64)
        exact = np.maximum(wide[:, :16] + ask[:16], 0) @ head.weight.astype(np.float64)
        exact += wide[:, 16] + wide[:, 17:] @ ask[16:]
        for k in (1, 8, 50, 600, 700):
            kept = narrowed(head, cases, query, rows, k, rising=rising)
            assert set(kept.tolist()) <= set(rows.tolist())
            order = np.sort(exact[rows])
            last = order[::-1][min(k, 600) - 1] if rising else order[min(k, 600) - 1]
            best = rows[exact[rows] >= last] if rising else rows[exact[rows] <= last]
            assert set(best.tolist()) <= set(kept.tolist())
        assert len(narrowed(head, cases, query, rows, 8, rising=rising)) < 80


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_narrowing_keeps_the_best_of_cases_that_float32_cannot_tell_apart(seed, rising):
    rng = np.random.default_rng(seed)
    head = Head(rng.standard_normal(64).astype(np.float32), 0.0)
    one = rng.standard_normal(64)
    near = (one + 2e-7 * rng.standard_normal((400, 64))).astype(np.float32)
    far = rng.standard_normal((100, 64)) * 0.01 + one - (0.2 if rising else -0.2) * head.weight
    cases = np.vstack([near, far]).astype(np.float32)
    query = np.full(64, 5.0, np.float32)  # every unit is open: the head is a plain sum
    exact = np.maximum(cases.astype(np.float64) + 5.0, 0) @ head.weight.astype(np.float64)
    rough = np.maximum(cases + query, 0) @ head.weight  # float32
    order = exact if not rising else -exact
    rounded = rough if not rising else -rough
    assert set(np.argsort(order)[:10]) != set(np.argsort(rounded)[:10]), "the case is hard"
    for k in (1, 10, 60):
        kept = narrowed(head, cases, query, np.arange(500), k, rising=rising)
        assert set(np.argsort(order)[:k].tolist()) <= set(kept.tolist())
        assert len(kept) <= 400, "those that are clearly worse are left out"


def test_narrowing_leaves_what_is_no_number_to_the_exact_score():
    head = Head(np.ones(4, np.float32), 0.0)
    cases = np.ones((50, 4), np.float32)
    cases[9] = np.nan
    kept = narrowed(head, cases, np.ones(4, np.float32), np.arange(50), 3)
    assert 9 in kept
