"""Batches by length: every text once, within the budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever.batching import batches_by_length, chunks, pad

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
