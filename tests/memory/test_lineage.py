"""Lineage: what is derived from what, and the fewest sources that break every derivation."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import ByDerivedFact, ByIds, CaseBank, NewCase
from memory.config import BankConfig
from memory.forgetting.lineage import children, descendants, parents, roots, smallest_cut
from memory.storage.namespaces import namespace_state
from memory.storage.store import Store


def cut_by_trying_all(derivations, cost=None):
    """Every subset of the sources, the smallest first: the slow twin."""
    cost = cost or {}
    wanted = [d for d in derivations if d]
    sources = sorted(set().union(*wanted)) if wanted else []
    for size in range(len(sources) + 1):
        cuts = [
            subset
            for subset in itertools.combinations(sources, size)
            if all(d & set(subset) for d in wanted)
        ]
        if cuts:
            return min(cuts, key=lambda cut: (sum(cost.get(i, 0) for i in cut), cut))
    raise AssertionError("all sources together are a cut")


def derivations_of(most_sources):
    source = st.integers(1, most_sources)
    return st.lists(st.frozensets(source, max_size=4), max_size=7)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(derivations_of(7), st.dictionaries(st.integers(1, 7), st.integers(0, 3)))
def test_the_smallest_cut_is_that_of_trying_every_subset(derivations, cost):
    assert smallest_cut(derivations, cost) == cut_by_trying_all(derivations, cost)


@pytest.mark.parametrize(
    ("derivations", "cut"),
    [
        ([], ()),
        ([frozenset()], ()),
        ([frozenset({3})], (3,)),
        ([frozenset({5, 9}), frozenset({9, 5})], (5,)),
        ([frozenset({1, 2}), frozenset({2, 3}), frozenset({3, 4})], (1, 3)),
        ([frozenset({1, 2}), frozenset({1, 2, 3})], (1,)),
        ([frozenset({1}), frozenset({2})], (1, 2)),
    ],
)
def test_small_cuts_are_what_one_would_choose(derivations, cut):
    assert smallest_cut(derivations) == cut


def test_of_cuts_of_one_size_the_cheapest_is_taken():
    pair = [frozenset({1, 2})]
    assert smallest_cut(pair, {1: 4, 2: 3}) == (2,)
    assert smallest_cut(pair, {1: 3, 2: 3}) == (1,)


def test_many_derivations_that_share_nothing_are_cut_at_once():
    """Trying cuts of growing size over all of them together would take 12^40 attempts."""
    apart = [frozenset(range(100 * i, 100 * i + 12)) for i in range(40)]
    start = time.perf_counter()
    assert smallest_cut(apart) == tuple(100 * i for i in range(40))
    assert time.perf_counter() - start < 2


def test_a_knot_too_hard_to_solve_still_gets_a_valid_cut_in_bounded_time():
    rng = np.random.default_rng(7)
    knot = [frozenset(rng.choice(400, 12, replace=False).tolist()) for _ in range(300)]
    start = time.perf_counter()
    cut = smallest_cut(knot)
    assert time.perf_counter() - start < 20
    assert all(derivation & set(cut) for derivation in knot)


@pytest.fixture
def store(bank_location):
    opened = Store.open(bank_location, BankConfig(snapshots=False))
    yield opened
    opened.close()


def told(store, *links, namespace="default"):
    """Cases a, b, ... by name -> sources; their ids by name."""
    with CaseBank.open(store_location(store)) as bank:
        new = [NewCase(f"case {name}", external_id=name, derived_from=s) for name, s in links]
        return dict(
            zip((name for name, _ in links), bank.add(new, namespace=namespace), strict=True)
        )


def store_location(store):
    return (
        store.path
        if store.path is not None
        else store.database.engine.url.render_as_string(hide_password=False)
    )


def test_everything_derived_at_any_depth_is_found_and_nothing_of_another_namespace(store):
    told(store, ("a", ()), ("b", ("a",)), namespace="other")
    ids = told(store, ("a", ()), ("b", ("a",)), ("c", ("b", "gone")), ("d", ()))
    with store.read() as connection:
        mine = namespace_state(connection, store.keys, "default").id
        assert descendants(connection, mine, [ids["a"]]) == {ids["b"], ids["c"]}
        assert children(connection, mine, [ids["a"], ids["b"]]) == {ids["b"], ids["c"]}
        assert parents(connection, mine, [ids["c"], ids["d"]]) == {
            ids["c"]: {ids["b"]},
            ids["d"]: set(),
        }
        assert descendants(connection, mine, []) == set()
        assert roots(connection, mine, ids["c"]) == {ids["a"]}
        assert roots(connection, mine, ids["d"]) == frozenset()


def test_a_cycle_in_the_lineage_hangs_nothing(store):
    ids = told(store, ("a", ("c",)), ("b", ("a",)), ("c", ("b",)), ("fact", ("b",)))
    with store.read() as connection:
        mine = namespace_state(connection, store.keys, "default").id
        assert descendants(connection, mine, [ids["a"]]) == {ids["b"], ids["c"], ids["fact"]}
        # Nothing lies below a cycle: taking any case of it away breaks the derivation.
        assert roots(connection, mine, ids["fact"]) == {ids["a"], ids["b"], ids["c"]}
        assert roots(connection, mine, ids["a"]) == {ids["b"], ids["c"]}


def test_a_purge_inside_a_cycle_ends_and_takes_all_of_it(bank_location):
    with CaseBank.open(bank_location) as bank:
        ids = bank.add(
            [
                NewCase("alpha particles", external_id="a", derived_from=("b",)),
                NewCase("bravo company", external_id="b", derived_from=("a",)),
                NewCase("something else", external_id="c"),
            ]
        )
        assert bank.forget(ByIds((ids[0],))).ids == tuple(ids[:2])
        assert [case.id for case in bank.list()] == ids[2:]


def test_a_derived_fact_takes_the_cheapest_source_that_breaks_it(bank_location):
    with CaseBank.open(bank_location) as bank:
        ids = bank.add(
            [
                NewCase("the harbour office opens at nine", external_id="s1"),
                NewCase("the clerk lives beside the mill", external_id="s2"),
                NewCase("notes on tides", external_id="n", derived_from=("s1",)),
                NewCase("the clerk walks an hour", external_id="f", derived_from=("s1", "s2")),
            ]
        )
        receipt = bank.forget(ByDerivedFact(ids=(ids[3],)))
        assert receipt.sources == (ids[1],)
        assert receipt.ids == (ids[1], ids[3])
