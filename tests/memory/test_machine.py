"""Random histories of a bank against a dictionary: nothing lost, nothing back, nothing across."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memory import BankConfig, ByIds, ByStrings, ByTag, CaseBank, CaseFilter, NewCase
from memory.keys import normal_form
from tests.memory.embedders import Digests
from tests.postgres import fresh_schema, postgres_server

NAMESPACES = ("ann", "bob")
WORDS = ("amber", "birch", "cedar", "delta", "ember", "flint")
TAGS = ("red", "blue")
tags = st.sets(st.sampled_from(TAGS))
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
spaces = st.sampled_from(NAMESPACES)


class Model:
    """What a bank should hold: by namespace, id -> (query, plan, tags, parents' ids, live)."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[int, NewCase]] = {name: {} for name in NAMESPACES}
        self.history: dict[str, set[int]] = {name: set() for name in NAMESPACES}

    def live(self, namespace: str) -> dict[int, NewCase]:
        return {i: c for i, c in self.cases[namespace].items() if i not in self.history[namespace]}

    def closure(self, namespace: str, start: set[int]) -> set[int]:
        """Copies and everything derived, by brute force."""
        everything = self.cases[namespace]
        closed = set(start)
        while True:
            said = {self.said(everything[i]) for i in closed}
            names = {everything[i].external_id for i in closed} - {None}
            more = {
                i
                for i, case in everything.items()
                if self.said(case) in said or names & set(case.derived_from)
            }
            if more <= closed:
                return closed
            closed |= more

    @staticmethod
    def said(case: NewCase) -> tuple[str, str]:
        return normal_form(case.query), normal_form(str(case.plan or ""))

    def having(self, namespace: str, word: str) -> set[int]:
        def holds(case: NewCase) -> bool:
            return word in f"{case.query} {case.plan or ''}".split()

        return {i for i, case in self.cases[namespace].items() if holds(case)}


class Histories(RuleBasedStateMachine):
    """Every rule does one thing to the bank and to the model."""

    location = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine"))
        self.model = Model()
        self.names = 0
        self.bank: CaseBank | None = None

    def where(self) -> str:
        return str(self.folder / "bank.db")

    def opened(self) -> CaseBank:
        config = BankConfig(snapshot_rows=1)
        return CaseBank.open(self.where(), projections=Digests(), config=config)

    @initialize()
    def start(self) -> None:
        self.bank = self.opened()

    def teardown(self) -> None:
        if self.bank is not None:
            self.bank.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def any_id(self, namespace: str, choice: int) -> int | None:
        ids = sorted(self.model.cases[namespace])
        return ids[choice % len(ids)] if ids else None

    @rule(
        namespace=spaces, query=words, plan=st.none() | words, tags=st.sets(st.sampled_from(TAGS))
    )
    def add(self, namespace: str, query: str, plan: str | None, tags: set[str]) -> None:
        self.names += 1
        case = NewCase(query, plan=plan, tags=tuple(sorted(tags)), external_id=f"e{self.names}")
        (id_,) = self.bank.add([case], namespace=namespace)
        assert id_ > max([0, *(i for cases in self.model.cases.values() for i in cases)])
        self.model.cases[namespace][id_] = case

    @rule(namespace=spaces, query=words, choice=st.integers(0, 50))
    def derive(self, namespace: str, query: str, choice: int) -> None:
        parent = self.any_id(namespace, choice)
        if parent is None:
            return
        self.names += 1
        name = self.model.cases[namespace][parent].external_id
        case = NewCase(query, kind="fact", derived_from=(name,), external_id=f"e{self.names}")
        (id_,) = self.bank.add([case], namespace=namespace)
        self.model.cases[namespace][id_] = case

    @rule(namespace=spaces, query=words, choice=st.integers(0, 50))
    def update(self, namespace: str, query: str, choice: int) -> None:
        id_ = self.any_id(namespace, choice)
        if id_ is None:
            return
        self.bank.update(id_, {"query": query}, namespace=namespace)
        self.model.cases[namespace][id_] = replace(self.model.cases[namespace][id_], query=query)

    def gone(self, namespace: str, start: set[int], receipt) -> None:
        closed = self.model.closure(namespace, start) if start else set()
        assert set(receipt.ids) == closed
        for id_ in closed:
            del self.model.cases[namespace][id_]
            self.model.history[namespace].discard(id_)

    @rule(namespace=spaces, choice=st.integers(0, 50))
    def purge(self, namespace: str, choice: int) -> None:
        id_ = self.any_id(namespace, choice)
        start = set() if id_ is None else {id_}
        self.gone(namespace, start, self.bank.forget(ByIds((id_ or 10**9,)), namespace=namespace))

    @rule(namespace=spaces, word=st.sampled_from(WORDS))
    def purge_word(self, namespace: str, word: str) -> None:
        start = self.model.having(namespace, word)
        self.gone(namespace, start, self.bank.forget(ByStrings((word,)), namespace=namespace))

    @rule(namespace=spaces, tag=st.sampled_from(TAGS))
    def purge_tag(self, namespace: str, tag: str) -> None:
        start = {i for i, case in self.model.cases[namespace].items() if tag in case.tags}
        self.gone(namespace, start, self.bank.forget(ByTag(tag), namespace=namespace))

    @rule(namespace=spaces, choice=st.integers(0, 50))
    def invalidate(self, namespace: str, choice: int) -> None:
        id_ = self.any_id(namespace, choice)
        if id_ is None:
            return
        receipt = self.bank.forget(ByIds((id_,)), namespace=namespace, mode="invalidate")
        closed = self.model.closure(namespace, {id_})
        assert set(receipt.ids) == closed
        self.model.history[namespace] |= closed

    @precondition(lambda self: self.bank is not None)
    @rule()
    def restart(self) -> None:
        self.bank.close()
        self.bank = self.opened()

    @rule(namespace=spaces, word=st.sampled_from(WORDS))
    def search(self, namespace: str, word: str) -> None:
        hits = {id_ for id_, _ in self.bank.search_text(word, 1000, namespace=namespace)}
        live = set(self.model.live(namespace))
        assert hits == self.model.having(namespace, word) & live

    @invariant()
    def the_bank_holds_what_the_model_holds(self) -> None:
        if self.bank is None:
            return
        for namespace in NAMESPACES:
            every = self.bank.list(
                namespace=namespace, limit=1000, where=CaseFilter(invalidated=True)
            )
            assert {case.id: case.as_new() for case in every} == self.model.cases[namespace]
            live = self.model.live(namespace)
            block = self.bank.block(namespace)
            assert sorted(block.ids[block.live]) == sorted(live)
            rows = np.concatenate(block.projections)
            embedder = Digests()
            for row in np.flatnonzero(block.live):
                expected = embedder.vector(embedder.text(live[int(block.ids[row])]))
                assert np.array_equal(rows[row], expected)


class PostgresHistories(Histories):
    """The same in a schema of PostgreSQL."""

    server = ""

    def __init__(self) -> None:
        super().__init__()
        self.schema = fresh_schema(self.server)
        self.url = self.schema.__enter__()

    def where(self) -> str:
        return self.url

    def teardown(self) -> None:
        super().teardown()
        self.schema.__exit__(None, None, None)


def quick(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


TestHistories = Histories.TestCase
TestHistories.settings = quick(15, 25)


@pytest.mark.slow
def test_random_histories_come_out_the_same_on_postgresql():
    from hypothesis.stateful import run_state_machine_as_test

    with postgres_server() as url:
        machine = type("Machine", (PostgresHistories,), {"server": url})
        run_state_machine_as_test(machine, settings=quick(5, 20))
