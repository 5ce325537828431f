"""Batches: whole queries together, each text once, nothing lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.learning.config import EncoderConfig, TrainerConfig
from retriever.learning.data.collate import collate, tokenise
from retriever.learning.data.datamodule import EpochLoader
from retriever.learning.data.rows import groups_of, joined
from retriever.learning.data.sampler import grouped_batches, shard
from retriever.learning.encoder import Encoder, load_encoder
from tests.learning.logs import make_rows, random_rows


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Path) -> Encoder:
    return load_encoder(EncoderConfig(source=str(tiny_encoder), max_length=24))


@given(
    seed=st.integers(0, 999),
    per_batch=st.integers(1, 6),
    most=st.integers(1, 9),
    epoch=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_every_row_is_in_exactly_one_batch_and_batches_keep_their_bounds(
    seed: int, per_batch: int, most: int, epoch: int
) -> None:
    rows = random_rows(seed)
    batches = grouped_batches(
        rows, queries_per_batch=per_batch, max_rows_per_query=most, seed=seed, epoch=epoch
    )
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(rows)))
    for batch in batches:
        assert 0 < len(batch) <= per_batch * most
        assert len(np.unique(rows.group[batch])) <= per_batch


def test_a_query_that_fits_stands_in_one_batch() -> None:
    rows = random_rows(3)
    batches = grouped_batches(rows, queries_per_batch=4, max_rows_per_query=7, seed=0, epoch=0)
    homes = [set(rows.group[batch].tolist()) for batch in batches]
    assert sum(map(len, homes)) == len(set().union(*homes))


def test_an_epoch_is_a_function_of_seed_and_number_and_has_the_same_steps_each_time() -> None:
    rows = random_rows(5)

    def epoch(seed: int, number: int) -> list[list[int]]:
        made = grouped_batches(
            rows, queries_per_batch=3, max_rows_per_query=4, seed=seed, epoch=number
        )
        return [batch.tolist() for batch in made]

    assert epoch(1, 2) == epoch(1, 2)
    assert epoch(1, 2) != epoch(1, 3)
    assert epoch(1, 2) != epoch(2, 2)
    assert len({len(epoch(1, number)) for number in range(20)}) == 1


def test_no_rows_make_no_batches() -> None:
    rows = make_rows([])
    assert grouped_batches(rows, queries_per_batch=2, max_rows_per_query=2, seed=0, epoch=0) == []


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_take_equally_many_batches_and_together_all_of_them(world: int) -> None:
    batches = [np.array([i]) for i in range(7)]
    shards = [shard(batches, rank, world) for rank in range(world)]
    assert len({len(one) for one in shards}) == 1
    assert {int(b[0]) for one in shards for b in one} == set(range(7))


@pytest.mark.parametrize("chunk_overhead", [None, 0, 20])
def test_a_batch_holds_each_distinct_text_once_and_points_at_the_right_one(
    encoder: Encoder, chunk_overhead: int | None
) -> None:
    rows = random_rows(7)
    table = tokenise(rows, encoder.tokenizer)
    row = np.arange(0, len(rows), 2)
    batch = collate(table, row, tokens_per_chunk=60, chunk_overhead=chunk_overhead)
    texts = [
        ids[m.bool()].tolist() for i, mask in batch.chunks for ids, m in zip(i, mask, strict=True)
    ]
    assert len(texts) == len(np.unique(rows.query[row])) + len(np.unique(rows.case[row]))
    assert len(texts) == len(batch.queries) + len(batch.cases)
    for position, number in enumerate(row):
        query = texts[int(batch.queries[batch.query_of[position]])]
        case = texts[int(batch.cases[batch.case_of[position]])]
        assert query == table.query_tokens[int(rows.query[number])].tolist()
        assert case == table.case_tokens[int(rows.case[number])].tolist()
    assert batch.outcome.tolist() == rows.outcome[row].tolist()
    assert batch.row.tolist() == row.tolist()


def test_chunks_are_of_like_length_and_stay_within_the_budget(encoder: Encoder) -> None:
    table = tokenise(random_rows(7), encoder.tokenizer)
    row = np.arange(len(table.rows))
    small = collate(table, row, tokens_per_chunk=60)
    large = collate(table, row, tokens_per_chunk=100_000)
    assert all(ids.numel() <= 60 or len(ids) == 1 for ids, _ in small.chunks)
    assert len(large.chunks) == 1
    assert small.padded_tokens < large.padded_tokens


def test_what_is_cut_at_the_maximum_length_is_counted(encoder: Encoder) -> None:
    rows = make_rows(
        [("city " * 50, "plan", 1.0), ("who", "team " * 60, 0.0), ("who", "list", 0.0)]
    )
    table = tokenise(rows, encoder.tokenizer)
    assert table.truncated == 2
    assert len(table.query_tokens[0]) == 24


def test_query_weighting_lets_every_query_count_the_same(encoder: Encoder) -> None:
    rows = make_rows([("a", "x", 1.0), ("b", "x", 0.0), ("b", "y", 0.0), ("b", "z", 1.0)])
    weight = tokenise(rows, encoder.tokenizer, query_weighting="queries").weight
    assert weight.mean() == pytest.approx(1.0)
    assert weight[0] == pytest.approx(weight[1:].sum())
    assert tokenise(rows, encoder.tokenizer).weight.tolist() == [1, 1, 1, 1]


def test_a_loader_that_is_restored_hands_out_the_rest_of_the_epoch(encoder: Encoder) -> None:
    table = tokenise(random_rows(9), encoder.tokenizer)
    config = TrainerConfig(queries_per_batch=2)
    make = lambda: EpochLoader(table, config, seed=1, shuffle=True, trainer=None)  # noqa: E731
    whole = [batch.row.tolist() for batch in make()]
    loader = make()
    running = iter(loader)
    for _ in range(2):
        next(running)
    state = loader.state_dict()
    restored = make()
    restored.load_state_dict(state)
    assert [batch.row.tolist() for batch in restored] == whole[2:]
    assert [batch.row.tolist() for batch in restored] == whole


def test_two_logs_are_joined_over_common_texts_and_queries() -> None:
    first = make_rows([("Q1", "c1", 1.0), ("q2", "c2", 0.0)])
    second = make_rows([("q3", "c2", 1.0), (" q1 ", "c3", 0.0)])
    both = joined(first, second)
    assert both.case_texts == ["c1", "c2", "c3"]
    assert both.case.tolist() == [0, 1, 1, 2]
    assert both.group.tolist() == [0, 1, 2, 0]  # "Q1" and " q1 " are one query
    assert [both.query_texts[i] for i in both.query] == ["Q1", "q2", "q3", " q1 "]
    assert len(np.unique(both.run)) == 4
    assert joined(first, make_rows([])).case.tolist() == [0, 1]
    assert joined(make_rows([]), second).group.tolist() == [0, 1]


def test_groups_are_numbered_by_first_appearance_in_the_rows() -> None:
    assert groups_of(["b", "A", "a "], np.array([2, 0, 1])).tolist() == [0, 1, 0]
    assert groups_of([], np.array([], dtype=np.int64)).tolist() == []


def test_moving_a_batch_moves_all_of_it(encoder: Encoder) -> None:
    batch = collate(tokenise(random_rows(1), encoder.tokenizer), np.arange(3), tokens_per_chunk=99)
    moved = batch.to(torch.device("meta"))
    tensors = [moved.queries, moved.cases, moved.query_of, moved.case_of, moved.outcome]
    tensors += [moved.weight, moved.row, *[t for chunk in moved.chunks for t in chunk]]
    assert all(tensor.is_meta for tensor in tensors)
