"""Batches by length: every text once, within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever import batching
from retriever.batching import (
    SMALL_OVERHEAD,
    SMALL_TOKENS,
    batches_by_length,
    cheapest_batches,
    chunks,
    pad,
    small_batches,
)

lengths_and_budget = st.tuples(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000))


@given(lengths_and_budget)
def test_every_text_is_in_exactly_one_batch_within_the_budget(case):
    lengths, budget = case
    batches = batches_by_length(lengths, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[i] for i in batch)
        assert padded <= budget or len(batch) == 1


@given(lengths_and_budget)
def test_batches_grow_in_length_and_none_could_take_one_more(case):
    lengths, budget = case
    batches = batches_by_length(lengths, budget)
    for first, second in itertools.pairwise(batches):
        assert max(lengths[i] for i in first) <= min(lengths[i] for i in second)
        assert (len(first) + 1) * lengths[second[0]] > budget


def test_texts_of_one_length_keep_their_order():
    (batch,) = batches_by_length([5, 5, 5, 5], 100)
    assert batch.tolist() == [0, 1, 2, 3]


def test_no_texts_make_no_batch():
    assert batches_by_length([], 100) == []


def cost(batches: Sequence[Sequence[int] | np.ndarray], lengths: list[int], overhead: int) -> int:
    return sum(len(batch) * max(lengths[i] for i in batch) + overhead for batch in batches)


@given(lengths_and_budget, st.integers(0, 500))
def test_the_cheapest_batches_hold_every_text_once_within_the_budget(case, overhead):
    lengths, budget = case
    batches = cheapest_batches(lengths, budget, overhead)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(lengths)))
    assert all(len(b) * max(lengths[i] for i in b) <= budget or len(b) == 1 for b in batches)
    filled = batches_by_length(lengths, budget)
    assert cost(batches, lengths, overhead) <= cost(filled, lengths, overhead)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 120),
    st.integers(0, 60),
)
def test_no_way_to_cut_the_sorted_texts_costs_less(lengths, budget, overhead):
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    ways = [
        split_at(order, cuts) for cuts in itertools.product([False, True], repeat=len(order) - 1)
    ]
    best = min(
        cost(way, lengths, overhead)
        for way in ways
        if all(len(part) == 1 or len(part) * lengths[part[-1]] <= budget for part in way)
    )
    assert cost(cheapest_batches(lengths, budget, overhead), lengths, overhead) == best


def split_at(order: list[int], cuts: tuple[bool, ...]) -> list[list[int]]:
    parts = [[order[0]]]
    for cut, number in zip(cuts, order[1:], strict=True):
        if cut:
            parts.append([])
        parts[-1].append(number)
    return parts


def test_a_batch_is_opened_only_where_it_saves_more_than_it_costs():
    lengths = [10, 10, 10, 50]  # one batch: 200; two: 80
    assert len(cheapest_batches(lengths, 1000, 119)) == 2
    assert len(cheapest_batches(lengths, 1000, 121)) == 1
    assert cheapest_batches([], 100, 10) == []


@given(lengths_and_budget)
def test_small_batches_hold_every_text_once_within_both_budgets(case):
    lengths, budget = case
    batches = small_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[i] for i in batch)
        assert padded <= min(budget, SMALL_TOKENS) or len(batch) == 1


def test_small_batches_are_the_cheapest_where_the_plan_is_made_at_once():
    lengths = np.random.default_rng(0).integers(4, 200, size=300).tolist()
    found = small_batches(lengths, 10**6)
    cheapest = cheapest_batches(lengths, SMALL_TOKENS, SMALL_OVERHEAD)
    assert cost(found, lengths, SMALL_OVERHEAD) == cost(cheapest, lengths, SMALL_OVERHEAD)


def test_more_texts_than_are_planned_at_once_stay_sorted_by_length(monkeypatch):
    monkeypatch.setattr(batching, "_SORTED_AT_ONCE", 7)
    lengths = np.random.default_rng(1).integers(1, 90, size=50).tolist()
    found = small_batches(lengths, 200)
    assert sorted(i for batch in found for i in batch.tolist()) == list(range(50))
    ordered = [lengths[i] for batch in found for i in batch]
    assert ordered == sorted(lengths)


def test_padding_fills_the_tail_and_the_mask_says_where():
    ids, mask = pad([np.array([2, 7, 3]), np.array([2, 3]), np.array([], dtype=np.int64)], 9)
    assert ids.tolist() == [[2, 7, 3], [2, 3, 9], [9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert ids.dtype == mask.dtype == np.int64


@pytest.mark.parametrize(("total", "size"), [(0, 3), (1, 3), (3, 3), (4, 3), (10, 1)])
def test_chunks_cover_the_range_once(total, size):
    parts = [list(range(total))[part] for part in chunks(total, size)]
    assert [i for part in parts for i in part] == list(range(total))
    assert all(0 < len(part) <= size for part in parts)
