"""Filters over a block against the same filters as SQL, on both engines."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from memory import ByIds, CaseBank, CaseFilter, InvalidInput, NewCase
from tests.memory.embedders import Digests

#: Outcomes that single precision cannot tell from the thresholds beside them.
OUTCOMES = (None, 0.0, 0.1, 0.5, 0.7, np.nextafter(0.7, 0), np.nextafter(1.0, 0), 1.0)
KINDS = ("case", "fact", "turn", "summary")
TAGS = ("a", "b", "ü x")
SOURCES = ("s1", "S1")


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location, projections=Digests()) as opened:
        rng = random.Random(7)
        for namespace in ("here", "there"):
            opened.add([made(rng, number) for number in range(80)], namespace=namespace)
        opened.forget(ByIds((1, 2, 3)), namespace="here", mode="invalidate")
        opened.forget(ByIds((4, 5, 6, 7)), namespace="here")
        opened.add([made(rng, 200), made(rng, 201)], namespace="here")  # into freed rows
        yield opened


def made(rng, number):
    some = lambda *values: rng.choice([None, *values])  # noqa: E731
    return NewCase(
        f"case {number}",
        kind=rng.choice(KINDS),
        tags=tuple(tag for tag in TAGS if rng.random() < 0.4),
        source=some(*SOURCES),
        outcome=rng.choice(OUTCOMES),
        created_at=some(-5, 10, 20, 30),
        valid_from=some(-5, 10, 20),
        valid_to=some(30, 40),
    )


def random_filter(rng):
    often = lambda value: value if rng.random() < 0.35 else None  # noqa: E731
    low, high = sorted(rng.sample([o for o in OUTCOMES if o is not None], 2))
    start, end = sorted(rng.sample([-5, 0, 10, 11, 20, 30, 31], 2))
    return CaseFilter(
        kinds=tuple(kind for kind in KINDS if rng.random() < 0.3),
        tags=tuple(tag for tag in TAGS if rng.random() < 0.15),
        source=often(rng.choice(SOURCES)),
        min_outcome=often(low),
        max_outcome=often(high),
        has_outcome=often(rng.random() < 0.5),
        created_from=often(start),
        created_to=often(end),
        valid_at=often(rng.choice([-6, -5, 9, 10, 20, 29, 30, 39, 40])),
        invalidated=rng.random() < 0.2,
    )


def ids_of(block, mask):
    return sorted(int(id_) for id_ in block.ids[mask])


def test_a_filter_lets_the_same_cases_through_as_sql_does(bank):
    rng = random.Random(11)
    block = bank.block("here")
    sizes = set()
    for _ in range(250):
        where = random_filter(rng)
        expected = [
            case.id
            for case in bank.list(
                namespace="here", limit=1000, where=replace(where, invalidated=False)
            )
        ]
        mask = bank.eligible(block, where)
        assert mask.shape == (len(block.ids),), where
        assert ids_of(block, mask) == expected, where
        sizes.add(len(expected))
    assert len(sizes) > 10, "filters that let nothing through would prove little"


def test_no_condition_means_every_live_row_and_the_block_stays_as_it_is(bank):
    block = bank.block("here")
    before = block.live.copy()
    mask = bank.eligible(block, CaseFilter())
    assert (mask == before).all()
    mask[:] = False
    assert (block.live == before).all()


def test_outcomes_that_single_precision_cannot_tell_apart_are_told_apart(bank):
    block = bank.block("here")
    below_one = bank.eligible(block, CaseFilter(min_outcome=0.9, max_outcome=OUTCOMES[-2]))
    ones = bank.eligible(block, CaseFilter(min_outcome=1.0))
    assert below_one.any()
    assert ones.any()
    assert not (below_one & ones).any()


@pytest.mark.parametrize("where", [CaseFilter(tags=["a"]), CaseFilter(source="s1")])
def test_a_block_that_is_no_longer_the_newest_is_refused_for_what_is_not_in_it(bank, where):
    block = bank.block("here")
    assert bank.eligible(block, where) is not None
    bank.add([NewCase("new", tags=("a",), source="s1")], namespace="there")
    assert bank.eligible(block, where) is not None, "another namespace's changes do not matter"
    (id_,) = bank.add([NewCase("new", tags=("a",), source="s1")], namespace="here")
    assert bank.eligible(block, where) is None
    newest = bank.block("here")
    assert id_ in ids_of(newest, bank.eligible(newest, where))
    # What the block holds itself is answered of any block.
    assert id_ not in ids_of(block, bank.eligible(block, CaseFilter(kinds=["case"])))


def test_a_namespace_that_does_not_exist_has_no_rows_and_a_vanished_one_is_refused(bank):
    where = CaseFilter(tags=["a"], kinds=["fact"], min_outcome=0.5)
    assert bank.eligible(bank.block("nowhere"), where).shape == (0,)
    block = bank.block("there")
    bank.delete_namespace("there")
    assert bank.eligible(block, where) is None


def test_a_filter_or_a_block_of_something_else_is_refused(bank, tmp_path):
    block = bank.block("here")
    with pytest.raises(InvalidInput, match="must be a CaseFilter"):
        bank.eligible(block, {"kinds": ["fact"]})
    with CaseBank.open(tmp_path / "other.db", projections=Digests()) as other:
        other.add([NewCase("x")], namespace="here")
        with pytest.raises(InvalidInput, match="is of bank"):
            other.eligible(block, CaseFilter())


def test_outcomes_come_back_exactly_after_a_restart_from_a_snapshot(tmp_path):
    where = CaseFilter(min_outcome=0.7)
    for _ in range(2):
        with CaseBank.open(tmp_path / "bank.db", projections=Digests()) as bank:
            if not bank.namespaces():
                bank.add([NewCase("a", outcome=0.7), NewCase("b", outcome=OUTCOMES[5])])
            block = bank.block()
            assert ids_of(block, bank.eligible(block, where)) == [1]
