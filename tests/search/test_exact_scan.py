"""The exact scan against a float64 one-liner that shares no code with it."""

import numpy as np
import pytest

from retriever import scan
from retriever.errors import InvalidInput, NonFiniteScore
from retriever.head import Head
from retriever.ordering import top_k
from retriever.vectors import taken, widen, widened


def logits(projections, queries, weight, offset):
    return scan.logits(Head(weight, offset), projections, queries)


def slow_logits(projections, queries, weight, offset):
    projections, queries, weight = (x.astype(np.float64) for x in (projections, queries, weight))
    return np.maximum(projections[None] + queries[:, None], 0.0) @ weight + offset


def slow_top_k(scores, ids, live, k):
    return [
        [i for _, _, i in sorted((-s, ids[i], i) for i, s in enumerate(row) if live[i])][:k]
        for row in scores.tolist()
    ]


def draw(seed, cases, queries, width):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((cases, width), dtype=np.float32),
        rng.standard_normal((queries, width), dtype=np.float32),
        rng.standard_normal(width, dtype=np.float32),
        float(rng.normal()),
    )


@pytest.mark.parametrize(
    ("cases", "queries", "width"),
    [(1, 1, 1), (1, 3, 5), (7, 2, 37), (513, 2, 512), (1025, 1, 130), (3, 0, 4), (40_000, 1, 4)],
)
def test_the_scan_equals_the_formula_at_any_size(cases, queries, width):
    given = draw(cases + width, cases, queries, width)
    np.testing.assert_allclose(logits(*given), slow_logits(*given), rtol=1e-4, atol=1e-4)


def test_an_empty_bank_gives_no_scores_and_no_rows():
    projections, queries, weight, offset = draw(0, 0, 3, 8)
    scores = logits(projections, queries, weight, offset)
    assert scores.shape == (3, 0)
    found = top_k(scores, np.empty(0, np.int64), np.empty(0, bool), 5)
    assert [len(rows) for rows in found] == [0, 0, 0]


@pytest.mark.parametrize("width", [1, 3, 37, 64, 512])
def test_equal_cases_tie_to_the_last_bit_wherever_they_lie(width):
    projections, queries, weight, offset = draw(width, 1, 2, width)
    many = np.repeat(projections, 4099, axis=0)
    for row in logits(many, queries, weight, offset):
        assert len(np.unique(row)) == 1


def test_one_query_alone_scores_as_it_does_among_others():
    projections, queries, weight, offset = draw(5, 700, 9, 48)
    together = logits(projections, queries, weight, offset)
    for number, query in enumerate(queries):
        alone = logits(projections, query[None], weight, offset)
        np.testing.assert_array_equal(alone[0], together[number])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("cuts", [(), (1,), (0, 0, 3, 256, 700), (699,), tuple(range(0, 700, 13))])
def test_chunks_of_either_precision_score_as_one_array_of_their_values_does(cuts, dtype):
    projections, queries, weight, offset = draw(6, 700, 2, 48)
    held = projections.astype(dtype)
    whole = logits(held.astype(np.float32), queries, weight, offset)
    chunks = tuple(np.split(held, cuts))
    np.testing.assert_array_equal(logits(chunks, queries, weight, offset), whole)
    rows = np.random.default_rng(7).integers(0, 700, 50)
    np.testing.assert_array_equal(taken(chunks, rows), held[rows].astype(np.float32))
    blocks = [(start, block.copy()) for start, block in widened(chunks)]
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), held)
    assert [start for start, _ in blocks] == np.cumsum([0, *(len(b) for _, b in blocks)])[
        :-1
    ].tolist()


def test_equal_halves_tie_wherever_and_in_whatever_chunk_they_lie():
    projections, queries, weight, offset = draw(8, 1, 2, 37)
    held = np.repeat(projections.astype(np.float16), 9000, axis=0)
    chunks = (held[:1], held[1:4], held[4:5000], held[5000:].astype(np.float32))
    for row in logits(chunks, queries, weight, offset):
        assert len(np.unique(row)) == 1


def test_every_half_is_widened_to_the_same_bits_as_numpy_widens_it():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    out = np.empty(every.shape, np.float32)
    finite = np.isfinite(every)
    for given in (every, np.where(finite, every, np.float16(0))):
        widen(given, out)
        np.testing.assert_array_equal(out, given.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(out)[finite], np.signbit(given)[finite])


def test_a_half_that_is_infinite_is_refused_and_not_ranked():
    chunk = np.array([[1, 0], [np.inf, 0]], np.float16)
    scores = logits((chunk,), np.zeros((1, 2), np.float32), np.ones(2, np.float32), 0.0)
    with pytest.raises(NonFiniteScore, match="case 2"):
        top_k(scores, np.array([1, 2]), np.ones(2, bool), 1)


def test_chunks_of_no_or_of_different_widths_are_refused():
    _, queries, weight, _ = draw(0, 3, 2, 4)
    for chunks in ((), (np.ones((1, 4), np.float32), np.ones((1, 3), np.float32))):
        with pytest.raises(InvalidInput, match="with one D"):
            logits(chunks, queries, weight, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_top_k_equals_a_full_sort_with_ties_and_dead_cases(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    scores = rng.integers(0, 4, (3, count)).astype(np.float32)  # many ties
    ids = rng.choice(1000, count, replace=False)  # in no order
    live = rng.random(count) < 0.7
    for k in (1, 2, count, count + 5):
        found = top_k(scores, ids, live, k)
        assert [rows.tolist() for rows in found] == slow_top_k(scores, ids, live, k)


def test_ties_go_to_the_lower_id_even_when_rows_are_not_in_order_of_id():
    ids = np.array([9, 2, 5])
    (rows,) = top_k(np.zeros((1, 3), np.float32), ids, np.ones(3, bool), 2)
    assert ids[rows].tolist() == [2, 5]


def test_more_than_the_live_cases_gives_all_of_them():
    (rows,) = top_k(np.ones((1, 3), np.float32), np.arange(3), np.array([True, False, True]), 50)
    assert rows.tolist() == [0, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_refused_by_name(value):
    scores = np.array([[0.0, 1.0], [0.0, value]], np.float32)
    with pytest.raises(NonFiniteScore, match="query 1 and case 44"):
        top_k(scores, np.array([40, 44]), np.ones(2, bool), 1)


def test_a_dead_case_with_a_broken_score_does_not_matter():
    scores = np.array([[1.0, np.nan]], np.float32)
    (rows,) = top_k(scores, np.array([1, 2]), np.array([True, False]), 2)
    assert rows.tolist() == [0]


def test_overflow_is_refused_and_not_ranked():
    projections = np.full((2, 4), 3e38, np.float32)
    scores = logits(projections, projections[:1], np.ones(4, np.float32), 0.0)
    with pytest.raises(NonFiniteScore):
        top_k(scores, np.arange(2), np.ones(2, bool), 1)


def test_k_below_one_is_refused():
    with pytest.raises(InvalidInput, match="k must be at least 1, got 0"):
        top_k(np.ones((1, 2), np.float32), np.arange(2), np.ones(2, bool), 0)


def test_widths_that_do_not_fit_are_refused_with_the_shapes():
    projections, queries, weight, _ = draw(0, 3, 2, 4)
    with pytest.raises(InvalidInput, match=r"\(3, 4\).*\(2, 3\)"):
        logits(projections, queries[:, :3], weight, 0.0)
