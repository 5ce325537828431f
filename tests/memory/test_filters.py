"""Filters: every condition against the same question asked of the cases in plain Python."""

from __future__ import annotations

import random

import pytest

from memory import ByIds, CaseBank, CaseFilter, InvalidInput, NewCase


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location) as opened:
        rng = random.Random(3)
        some = lambda *values: rng.choice([None, *values])  # noqa: E731
        for namespace in ("here", "there"):
            opened.add(
                [
                    NewCase(
                        f"case {i}",
                        kind=rng.choice(["case", "fact", "turn"]),
                        tags=tuple(tag for tag in ("a", "b") if rng.random() < 0.5),
                        source=some("s1", "s2"),
                        outcome=some(0.0, 0.5, 1.0),
                        created_at=some(10, 20, 30),
                        valid_from=some(10, 20),
                        valid_to=some(30, 40),
                    )
                    for i in range(60)
                ],
                namespace=namespace,
            )
        opened.forget(ByIds((1, 2, 3)), namespace="here", mode="invalidate")
        yield opened


def valid(case, moment):
    starts = case.valid_from is None or case.valid_from <= moment
    return starts and (case.valid_to is None or moment < case.valid_to)


CONDITIONS = [
    ({}, lambda c: True),
    ({"kinds": ["fact"]}, lambda c: c.kind == "fact"),
    ({"kinds": ["fact", "turn"]}, lambda c: c.kind != "case"),
    ({"tags": ["a"]}, lambda c: "a" in c.tags),
    ({"tags": ["a", "b"]}, lambda c: set(c.tags) == {"a", "b"}),
    ({"source": "s1"}, lambda c: c.source == "s1"),
    ({"min_outcome": 0.5}, lambda c: c.outcome is not None and c.outcome >= 0.5),
    ({"max_outcome": 0.5}, lambda c: c.outcome is not None and c.outcome <= 0.5),
    ({"has_outcome": True}, lambda c: c.outcome is not None),
    ({"has_outcome": False}, lambda c: c.outcome is None),
    ({"created_from": 20}, lambda c: c.created_at is not None and c.created_at >= 20),
    ({"created_to": 20}, lambda c: c.created_at is not None and c.created_at < 20),
    ({"valid_at": 30}, lambda c: valid(c, 30)),
    ({"valid_at": 15}, lambda c: valid(c, 15)),
    ({"kinds": ["fact"], "tags": ["b"], "source": "s2"}, lambda c: False),
]


def test_every_condition_means_what_it_says(bank):
    every = bank.list(namespace="here", limit=1000, where=CaseFilter(invalidated=True))
    assert len(every) == 60
    for given, holds in CONDITIONS:
        if set(given) == {"kinds", "tags", "source"}:
            holds = lambda c: c.kind == "fact" and "b" in c.tags and c.source == "s2"  # noqa: E731
        expected = [c.id for c in every if c.invalidated_at is None and holds(c)]
        where = CaseFilter(**given)
        found = bank.list(namespace="here", limit=1000, where=where)
        assert [case.id for case in found] == expected, given
        assert bank.count("here", where=where) == len(expected)
        hits = bank.search_text("case", 1000, namespace="here", where=where)
        assert sorted(id_ for id_, _ in hits) == expected, given


def test_pages_of_a_filter_cover_it_once_although_others_write_and_forget(bank):
    where = CaseFilter(tags=["a"])
    expected = [case.id for case in bank.list(namespace="here", limit=1000, where=where)]
    seen, after = [], None
    while page := bank.list(namespace="here", after=after, limit=7, where=where):
        seen += [case.id for case in page]
        after = seen[-1]
        bank.add([NewCase("told meanwhile")], namespace="here")
    assert seen == expected


@pytest.mark.parametrize(
    "given",
    [
        {"kinds": "fact"},
        {"kinds": ["facts"]},
        {"tags": [5]},
        {"min_outcome": 2.0},
        {"min_outcome": 0.9, "max_outcome": 0.1},
        {"created_from": 9, "created_to": 3},
        {"valid_at": "yesterday"},
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(given):
    with pytest.raises(InvalidInput):
        CaseFilter(**given)
