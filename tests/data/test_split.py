"""Splits by query: what must hold for every log, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.errors import InvalidInput, SplitRefused
from retriever.learning.data.rows import Rows
from retriever.learning.data.split import (
    Split,
    check_disjoint,
    grouped_folds,
    grouped_split,
    shared_queries,
)
from retriever.text import normalise_query


def rows_of(pairs) -> Rows:
    """Rows of (query, outcome) pairs; each distinct text once, as a reader makes them."""
    texts = list(dict.fromkeys(query for query, _ in pairs))
    normal = list(dict.fromkeys(normalise_query(text) for text in texts))
    count = len(pairs)
    return Rows(
        query_texts=texts,
        case_texts=["[CASE]\ncase"],
        query=np.array([texts.index(query) for query, _ in pairs], dtype=np.int64),
        case=np.zeros(count, dtype=np.int64),
        group=np.array([normal.index(normalise_query(q)) for q, _ in pairs], dtype=np.int64),
        run=np.arange(count),
        outcome=np.array([outcome for _, outcome in pairs], dtype=np.float32),
        propensity=np.full(count, np.nan, dtype=np.float32),
        self_case=np.zeros(count, dtype=np.bool_),
    )


def queries_on(rows: Rows, indices) -> set[str]:
    return {normalise_query(rows.query_texts[q]) for q in rows.query[indices]}


# Few names in many spellings, so that one query comes in several texts; outcomes graded or not.
SPELLINGS = st.tuples(
    st.integers(0, 30), st.sampled_from(["q {}", "Q  {}", " q\t{} ", "\u1e9e {}", "SS {}", "ss {}"])
).map(lambda pair: pair[1].format(pair[0]))
LOGS = st.lists(
    st.tuples(SPELLINGS, st.sampled_from([0.0, 1.0, 0.25, 0.7])), min_size=1, max_size=80
)
FRACTIONS = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9])


@settings(max_examples=200, deadline=None)
@given(LOGS, FRACTIONS, st.sampled_from([0.0, 0.05, 0.1, 0.4]), st.integers(0, 2**32 - 1))
def test_no_query_is_ever_on_two_sides(pairs, validation, test, seed):
    if validation + test >= 1:
        return
    rows = rows_of(pairs)
    queries = {normalise_query(query) for query, _ in pairs}
    needed = 3 if test else 2
    if len(queries) < needed or len({outcome for _, outcome in pairs}) < 2:
        with pytest.raises(SplitRefused):
            grouped_split(rows, validation_fraction=validation, test_fraction=test, seed=seed)
        return

    split = grouped_split(rows, validation_fraction=validation, test_fraction=test, seed=seed)

    sides = [queries_on(rows, indices) for _, indices in split.sides()]
    assert sides[0] | sides[1] | sides[2] == queries
    assert sum(map(len, sides)) == len(queries)
    assert sides[0]
    assert sides[1]
    assert bool(sides[2]) == bool(test)
    everything = np.concatenate([split.train, split.validation, split.test])
    assert sorted(everything.tolist()) == list(range(len(rows)))
    check_disjoint(split, rows)


@settings(max_examples=100, deadline=None)
@given(LOGS, st.integers(2, 7), st.integers(0, 1000))
def test_folds_test_every_row_once_and_share_no_query(pairs, folds, seed):
    rows = rows_of(pairs)
    count = len({normalise_query(query) for query, _ in pairs})
    one_class = len({outcome for _, outcome in pairs}) < 2
    if one_class or count < folds or count - -(-count // folds) < 2:
        with pytest.raises(SplitRefused):
            grouped_folds(rows, folds=folds, validation_fraction=0.2, seed=seed)
        return

    splits = grouped_folds(rows, folds=folds, validation_fraction=0.2, seed=seed)

    assert len(splits) == folds
    tested = np.concatenate([split.test for split in splits])
    assert sorted(tested.tolist()) == list(range(len(rows)))
    for split in splits:
        assert min(len(side) for _, side in split.sides()) > 0
        assert len(split.train) + len(split.validation) + len(split.test) == len(rows)
        check_disjoint(split, rows)
    sizes = [len(queries_on(rows, split.test)) for split in splits]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(LOGS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing(pairs, random):
    if len({normalise_query(q) for q, _ in pairs}) < 3 or len({o for _, o in pairs}) < 2:
        return
    shuffled = list(pairs)
    random.shuffle(shuffled)
    first, second = rows_of(pairs), rows_of(shuffled)

    one = grouped_split(first, validation_fraction=0.3, test_fraction=0.2, seed=5)
    other = grouped_split(second, validation_fraction=0.3, test_fraction=0.2, seed=5)

    assert one.digest == other.digest
    assert queries_on(first, one.test) == queries_on(second, other.test)


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 20), st.integers(3, 20), st.integers(0, 10_000), st.sampled_from([0.0, 0.2]))
def test_every_side_gets_both_classes_where_there_are_queries_enough(lost, won, seed, test):
    """Three lost and three won queries, and two queries or more a side, are enough."""
    rows = rows_of([(f"l{i}", 0.0) for i in range(lost)] + [(f"w{i}", 1.0) for i in range(won)])
    split = grouped_split(rows, validation_fraction=0.35, test_fraction=test, seed=seed)
    for _, side in split.sides():
        if len(side) >= 2:
            assert set(rows.outcome[side].tolist()) == {0.0, 1.0}


def test_each_fold_gets_a_rare_class():
    rows = rows_of([(f"q{i}", float(i < 5)) for i in range(100)])
    for seed in range(20):
        for split in grouped_folds(rows, folds=5, validation_fraction=0.1, seed=seed):
            assert rows.outcome[split.test].sum() == 1
            assert rows.outcome[split.validation].sum() >= 1
            assert rows.outcome[split.train].sum() >= 1


def test_sides_have_the_fractions_asked_for_and_like_means():
    rng = np.random.default_rng(0)
    pairs = [(f"q{i}", float(rng.random() < i / 1000)) for i in range(1000) for _ in range(4)]
    rows = rows_of(pairs)

    split = grouped_split(rows, validation_fraction=0.1, test_fraction=0.2, seed=1)

    assert [len(side) for _, side in split.sides()] == [2800, 400, 800]
    means = [rows.outcome[side].mean() for _, side in split.sides()]
    assert max(means) - min(means) < 0.01


def test_another_seed_is_another_split_and_the_same_seed_the_same():
    rows = rows_of([(f"q{i}", i % 2) for i in range(50)])

    def digest(seed):
        return grouped_split(rows, validation_fraction=0.2, test_fraction=0.2, seed=seed).digest

    assert digest(1) == digest(1)
    assert len({digest(seed) for seed in range(10)}) == 10


def test_the_digest_is_the_sha256_of_the_sorted_queries_with_their_sides():
    rows = rows_of([("B", 1.0), ("a  ", 0.0), ("b", 0.0), ("C", 1.0)])
    split = grouped_split(rows, validation_fraction=0.3, test_fraction=0.3, seed=0)
    side = {q: name for name, rows_ in split.sides() for q in queries_on(rows, rows_)}
    text = "".join(f"{query}\t{side[query]}\n" for query in sorted(side))
    assert split.digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([], "no rows to split"),
        ([("a", 0.0)], "one query"),
        ([("a", 0.0), ("A ", 1.0)], r"one query \('a'\)"),
        ([("a", 0.0), ("b", 0.0), ("c", 0.0)], r"one outcome \(0\)"),
        ([("a", 1.0), ("b", 1.0), ("c", 1.0)], r"one outcome \(1\)"),
        ([("a", 1.0), ("b", 0.0)], "2 queries, and 3 sides need one each.*test_fraction to 0"),
    ],
)
def test_a_log_that_cannot_be_split_is_refused_with_the_reason(pairs, reason):
    with pytest.raises(SplitRefused, match=reason):
        grouped_split(rows_of(pairs), validation_fraction=0.1, test_fraction=0.1, seed=0)


def test_too_few_queries_for_the_folds_are_refused():
    rows = rows_of([("a", 0.0), ("b", 1.0), ("c", 1.0)])
    for folds in (2, 4):
        with pytest.raises(SplitRefused, match=f"3 queries, too few for {folds} folds"):
            grouped_folds(rows, folds=folds, validation_fraction=0.1, seed=0)
    assert len(grouped_folds(rows, folds=3, validation_fraction=0.1, seed=0)) == 3


def test_impossible_fractions_and_folds_are_refused():
    rows = rows_of([("a", 0.0), ("b", 1.0), ("c", 1.0)])
    for validation, test in ((0.0, 0.1), (1.0, 0.0), (0.5, 0.5), (0.2, -0.1), (float("nan"), 0.0)):
        with pytest.raises(InvalidInput, match="fraction must be in"):
            grouped_split(rows, validation_fraction=validation, test_fraction=test, seed=0)
    with pytest.raises(InvalidInput, match="at least 2, got 1"):
        grouped_folds(rows, folds=1, validation_fraction=0.1, seed=0)


def test_an_outcome_that_is_not_finite_is_refused():
    with pytest.raises(InvalidInput, match="outcome of row 1 is not finite"):
        grouped_split(
            rows_of([("a", 0.0), ("b", float("nan"))]),
            validation_fraction=0.5,
            test_fraction=0,
            seed=0,
        )


def test_rows_that_were_taken_from_others_split_by_the_queries_they_have():
    rows = rows_of([(f"q{i}", i % 2) for i in range(10)]).take(np.array([9, 2, 5]))
    split = grouped_split(rows, validation_fraction=0.3, test_fraction=0.3, seed=0)
    assert sorted(len(side) for _, side in split.sides()) == [1, 1, 1]


def test_a_wrong_numbering_of_groups_cannot_leak_a_query():
    rows = rows_of([(spelling, i % 2) for i in range(9) for spelling in (f"Q {i}", f"q  {i}")])
    lying = replace(rows, group=np.arange(len(rows)))
    for seed in range(10):
        split = grouped_split(lying, validation_fraction=0.3, test_fraction=0.3, seed=seed)
        check_disjoint(split, lying)


def test_leakage_is_noticed():
    rows = rows_of([("a", 0.0), ("A", 1.0), ("b", 1.0)])
    none = np.array([], dtype=np.int64)
    with pytest.raises(SplitRefused, match="query 'a' is in train and in validation"):
        check_disjoint(Split(np.array([0]), np.array([1, 2]), none, ""), rows)
    with pytest.raises(SplitRefused, match="row 0 is held more than once"):
        check_disjoint(Split(np.array([0, 0, 1]), np.array([2]), none, ""), rows)
    with pytest.raises(InvalidInput, match="rows outside the 3 given"):
        check_disjoint(Split(np.array([0, 1]), np.array([3]), none, ""), rows)


def test_queries_that_two_logs_share_are_listed():
    first = rows_of([("What is  A?", 0.0), ("b", 1.0), ("c", 1.0)])
    second = rows_of([("x", 0.0), ("WHAT IS A?", 1.0), ("B", 1.0)])
    assert shared_queries(first, second) == ["b", "what is a?"]
    assert shared_queries(first.take(np.array([2])), second) == []
