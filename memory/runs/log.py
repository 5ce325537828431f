"""Runs: which cases were shown for a query, by which policy, and later how the run ended.

A run is written down when its cases are shown and scored at most once. Scored runs leave as an
outcome log, the rows a retriever learns from; a run whose outcome nobody knows is not a failure and
never leaves. The words of a run stand in `run_texts` alone, which a purge deletes like any others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, update

from memory.checks import DEFAULT_NAMESPACE, checked_namespace, checked_text
from memory.errors import AlreadyScored, IdempotencyConflict, InvalidInput, NotFound, shown
from memory.exchange.exporting import RowProgress
from memory.keys import Keys
from memory.runs.outcome_log import OutcomeLogReport, write_outcome_log
from memory.runs.run_rows import (
    Run,
    Shown,
    checked_metadata,
    checked_outcome,
    checked_shown,
    count_runs,
    run_key,
    run_named,
    run_row,
    runs_page,
    runs_where,
    unknown_run,
    words_shown,
)
from memory.schema import run_texts, runs
from memory.schema import shown as shown_rows
from memory.sinks import Gone
from memory.storage.erasing import owe
from memory.storage.namespaces import changed_namespace, namespace_state
from memory.storage.rows import chunks
from memory.storage.store import Store
from memory.storage.wiping import wipe
from memory.times import now

MAX_PAGE = 10_000
_TEXTS = 1000  # texts of runs looked through together

# Inside the class, `list` is the method.
_Runs: TypeAlias = list[Run]


class RunLog:
    """The runs of one open bank; reached as `bank.runs`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def log(
        self,
        query: str,
        shown: Sequence[Shown],
        *,
        policy: str,
        run_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Write down what was shown for a query; the run's id.

        Args:
            query: the task as asked.
            shown: live cases of the namespace, each at a rank of its own; none is fine.
            policy: what chose them, such as `exact` or `softmax:0.1`.
            run_id: the caller's name for the run, one is made without it. The same id with the same
                run changes nothing.
            namespace: where the cases are.
            metadata: whatever else is to be kept, such as a seed.

        Raises:
            NotFound: a case that is not there, or is kept only for history.
            IdempotencyConflict: the id is that of another run.
            InvalidInput: a value that is none.
        """
        checked_namespace(namespace)
        name = uuid.uuid4().hex if run_id is None else checked_text("run_id", run_id)
        row = {
            "name": name,
            "query": checked_text("query", query),
            "policy": checked_text("policy", policy),
            "metadata": checked_metadata(metadata),
        }
        given = checked_shown(shown)
        keys = self._store.keys
        with self._store.write() as connection:
            state = namespace_state(connection, keys, namespace)
            if state is None:
                _demand({}, given, namespace)
                state = changed_namespace(connection, keys, namespace, self._store.lexical)
            old = run_named(connection, keys, state.id, namespace, name)
            if old is not None:
                _check_same(connection, state.id, old, row, given)
                return name
            words = words_shown(connection, state.id, [item.case_id for item in given])
            _demand(words, given, namespace)
            made = insert(runs).returning(runs.c.id)
            numbers = {
                "namespace_id": state.id,
                "run_key": run_key(keys, state.id, name),
                "query_key": query_key(keys, state.id, query),
                "created_at": now(),
            }
            id_ = int(connection.execute(made, [numbers]).scalar_one())
            connection.execute(insert(run_texts), [{"run_id": id_, **row}])
            if given:
                rows = [
                    {"run_id": id_, "text_id": words[item.case_id], **item._asdict()}
                    for item in given
                ]
                connection.execute(insert(shown_rows), rows)
        return name

    def record_outcome(
        self, run_id: str, outcome: float, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Write down how a run ended, once; the same outcome again changes nothing.

        Raises:
            NotFound: no such run.
            AlreadyScored: it has another outcome.
            InvalidInput: not a number in [0, 1].
        """
        value = checked_outcome(outcome)
        keys = self._store.keys
        checked_namespace(namespace)
        checked_text("run_id", run_id)
        with self._store.write() as connection:
            state = namespace_state(connection, keys, namespace)
            run = None if state is None else run_row(connection, keys, state.id, run_id)
            if run is None:
                raise unknown_run(namespace, run_id)
            if run.outcome is not None:
                if run.outcome == value:
                    return
                raise AlreadyScored(
                    f"run {shown(run_id)} ended with outcome {run.outcome:g}, now {value:g} is "
                    "given; the first stays: log another attempt as a run of its own"
                )
            connection.execute(
                update(runs).where(runs.c.id == run.id).values(outcome=value, outcome_at=now())
            )

    def get(self, run_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Run:
        """A run by its id.

        Raises:
            NotFound: no such run.
        """
        checked_namespace(namespace)
        checked_text("run_id", run_id)
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            found = (
                None
                if state is None
                else run_named(connection, self._store.keys, state.id, namespace, run_id)
            )
        if found is None:
            raise unknown_run(namespace, run_id)
        return found

    def list(
        self,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        after: int = 0,
        limit: int = 100,
        scored: bool | None = None,
    ) -> _Runs:
        """A page of runs in the order logged, after the one with `Run.id` `after`.

        Args:
            namespace: where.
            after: the last `Run.id` of the page before.
            limit: the most runs to give.
            scored: only those with an outcome (True) or without (False).
        """
        checked_namespace(namespace)
        for name, value in (("after", after), ("limit", limit)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(f"{name} = {shown(value)}: must be an integer")
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit = {limit}: must be between 1 and {MAX_PAGE}")
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return []
            start = max(0, min(after, 2**53))
            return runs_page(connection, runs_where(state.id, scored), namespace, start, limit)

    def count(self, namespace: str = DEFAULT_NAMESPACE, *, scored: bool | None = None) -> int:
        """How many runs a namespace has: all, those with an outcome (True), or without (False)."""
        checked_namespace(namespace)
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            return 0 if state is None else count_runs(connection, runs_where(state.id, scored))

    def export_outcome_log(
        self,
        path: str | Path,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        progress: RowProgress | None = None,
    ) -> OutcomeLogReport:
        """Write the scored runs as an outcome log (JSONL), a row for every case shown.

        `case_id` in it is the bank's id of the case. A case that is kept only for history was shown
        all the same, and its row stays. The file appears whole or not at all. Later purges find it
        and rewrite it.

        Args:
            path: the file; an older one is replaced.
            namespace: whose runs.
            progress: called with how many of how many runs are written.

        Raises:
            NotFound: no such namespace.
            BankUnavailable: the file cannot be written.
            BankBusy: others kept forgetting while it was written.
        """
        checked_namespace(namespace)
        return write_outcome_log(self._store, Path(path), namespace, progress)


def query_key(keys: Keys, namespace_id: int, query: str) -> bytes:
    """16 bytes for a query in normal form: the key of a case that asks it and has no plan."""
    return keys.content(namespace_id, query, None)


def rows_of_cases(connection: Connection, ids: Sequence[int]) -> int:
    """How often these cases were shown."""
    count = select(func.count()).select_from(shown_rows)
    return sum(
        int(connection.execute(count.where(shown_rows.c.case_id.in_(part))).scalar_one())
        for part in chunks(ids)
    )


def runs_to_forget(connection: Connection, namespace_id: int, keys: Keys, gone: Gone) -> list[int]:
    """The database's ids of the runs that asked, or hold anywhere, what is being forgotten."""
    found: set[int] = set()
    # Cases that go for want of space are no reason to drop the runs that asked the same.
    meant = {case.query for case in gone.cases if gone.holds(case.query)}
    asked = [query_key(keys, namespace_id, query) for query in sorted(meant)]
    for part in chunks(asked):
        alike = runs.c.query_key.in_(part)
        rows = connection.execute(
            select(runs.c.id).where(runs.c.namespace_id == namespace_id, alike)
        )
        found.update(int(id_) for id_ in rows.scalars())
    holds = lru_cache(maxsize=4096)(gone.holds)  # policies are few, and questions come back
    for id_, words in all_run_words(connection, namespace_id):
        if id_ not in found and any(map(holds, words)):
            found.add(id_)
    return sorted(found)


def purge(
    connection: Connection, namespace_id: int, case_ids: Sequence[int], run_ids: Sequence[int]
) -> dict[str, int]:
    """Delete the rows that showed cases, and whole runs; how many of each there were."""
    gone = {"shown": 0, "runs": 0}
    for part in chunks(case_ids):
        rows = delete(shown_rows).where(shown_rows.c.case_id.in_(part))
        gone["shown"] += connection.execute(rows).rowcount
    for part in chunks(run_ids):
        mine = select(runs.c.id).where(runs.c.namespace_id == namespace_id, runs.c.id.in_(part))
        ids = list(connection.execute(mine).scalars())
        rows = delete(shown_rows).where(shown_rows.c.run_id.in_(ids))
        gone["shown"] += connection.execute(rows).rowcount
        wipe(connection, run_texts, run_texts.c.run_id.in_(ids))
        gone["runs"] += connection.execute(delete(runs).where(runs.c.id.in_(ids))).rowcount
    if gone["runs"]:
        owe(connection)
    return gone


def all_run_words(connection: Connection, namespace_id: int) -> Iterator[tuple[int, list[str]]]:
    """Every text of every run, some at a time."""
    after = 0
    while True:
        wanted = (
            select(run_texts)
            .join(runs, runs.c.id == run_texts.c.run_id)
            .where(runs.c.namespace_id == namespace_id, run_texts.c.id > after)
            .order_by(run_texts.c.id)
            .limit(_TEXTS)
        )
        rows = list(connection.execute(wanted))
        for row in rows:
            yield int(row.run_id), [row.query, row.name, row.policy, *_strings(row.metadata)]
        if len(rows) < _TEXTS:
            return
        after = rows[-1].id


def _strings(metadata: str) -> list[str]:
    """The texts and numbers in a JSON object, and its keys; nothing for an empty one."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value)
            walk(list(value.values()))
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif value is not None and not isinstance(value, bool):
            found.append(str(value))

    walk(json.loads(metadata))
    return found


def _demand(words: Mapping[int, int], given: Sequence[Shown], namespace: str) -> None:
    lacking = [item.case_id for item in given if item.case_id not in words]
    if lacking:
        raise NotFound(
            f"namespace {namespace!r} has no live case with id {shown(lacking)[1:-1]}; the run was "
            "not logged"
        )


def _check_same(
    connection: Connection,
    namespace_id: int,
    old: Run,
    row: Mapping[str, str],
    given: Sequence[Shown],
) -> None:
    # What was purged since is in neither.
    ids = [item.case_id for item in given]
    there = words_shown(connection, namespace_id, ids, live=False)
    still = tuple(item for item in given if item.case_id in there)
    said = (old.query, old.policy, old.metadata, old.shown)
    if said != (row["query"], row["policy"], json.loads(row["metadata"]), still):
        raise IdempotencyConflict(
            f"run {shown(old.run_id)} was logged with other content; nothing was changed: a new "
            "run needs a new id"
        )
