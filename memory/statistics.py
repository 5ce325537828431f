"""What a bank holds, counted: for whoever runs it. No words, but the names of namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, case, func, select

from memory.arrays.snapshot import SUFFIX
from memory.schema import cases, embedders, namespaces, receipts, runs, scheduled, vectors
from memory.storage.erasing import erasure
from memory.storage.store import Store


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """One namespace.

    Attributes:
        name: its name.
        version: its last change.
        cases: live cases.
        by_kind: live cases by kind.
        scored: live cases whose outcome is known.
        history: cases kept only for history.
        vectors: stored vectors, by embedder.
        runs: logged runs.
        scored_runs: runs whose outcome is known.
        receipts: receipts of requests to forget.
        scheduled: requests that wait.
    """

    name: str
    version: int
    cases: int
    by_kind: Mapping[str, int]
    scored: int
    history: int
    vectors: Mapping[str, int]
    runs: int
    scored_runs: int
    receipts: int
    scheduled: int


@dataclass(frozen=True, slots=True)
class BankStats:
    """A whole bank; sizes in bytes, None where they cannot be read.

    Attributes:
        location: where it is.
        uid: its identity.
        engine: `sqlite` or `postgresql`.
        lexical: how its full-text index cuts words.
        namespaces: by name.
        database_bytes: the database with its log; of a server, the tables of the bank.
        snapshots: the snapshot files.
        snapshot_bytes: their size.
        erasure: `done`, or `pending`: bytes of deleted words may still be there.
        receipts_pending: receipts that wait for that.
    """

    location: str
    uid: str
    engine: str
    lexical: str
    namespaces: tuple[NamespaceStats, ...]
    database_bytes: int | None
    snapshots: int
    snapshot_bytes: int
    erasure: str
    receipts_pending: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def bank_stats(store: Store, snapshots: Path | None) -> BankStats:
    """Count everything, in one snapshot of the database."""
    with store.read() as connection:
        engine = connection.dialect.name
        found = _namespaces(connection)
        size = _server_bytes(connection) if store.path is None else _file_bytes(store.path)
    files = [] if snapshots is None else sorted(snapshots.glob(f"*{SUFFIX}"))
    state = erasure(store)
    return BankStats(
        store.shown,
        store.uid,
        engine,
        store.lexical,
        found,
        size,
        len(files),
        sum(file.stat().st_size for file in files),
        state.state,
        state.receipts,
    )


def _namespaces(connection: Connection) -> tuple[NamespaceStats, ...]:
    live = cases.c.invalidated_at.is_(None)
    known = case((cases.c.outcome.is_not(None), 1), else_=0)
    by_kind = _grouped(
        connection,
        select(cases.c.namespace_id, cases.c.kind, func.count(), func.sum(known))
        .where(live)
        .group_by(cases.c.namespace_id, cases.c.kind)
        .order_by(cases.c.kind),
    )
    history = _grouped(
        connection,
        select(cases.c.namespace_id, func.count()).where(~live).group_by(cases.c.namespace_id),
    )
    held = _grouped(
        connection,
        select(vectors.c.namespace_id, embedders.c.key, func.count())
        .join(embedders, embedders.c.id == vectors.c.embedder_id)
        .group_by(vectors.c.namespace_id, embedders.c.key)
        .order_by(embedders.c.key),
    )
    logged = _grouped(
        connection,
        select(runs.c.namespace_id, func.count(), func.count(runs.c.outcome)).group_by(
            runs.c.namespace_id
        ),
    )
    told = _grouped(
        connection,
        select(receipts.c.namespace_id, func.count()).group_by(receipts.c.namespace_id),
    )
    waiting = _grouped(
        connection,
        select(scheduled.c.namespace_id, func.count())
        .where(scheduled.c.due_at > 0)
        .group_by(scheduled.c.namespace_id),
    )
    rows = connection.execute(select(namespaces.c.id, namespaces.c.name, namespaces.c.version))
    return tuple(
        NamespaceStats(
            name=row.name,
            version=int(row.version),
            cases=sum(count for _, count, _ in by_kind.get(row.id, [])),
            by_kind={kind: count for kind, count, _ in by_kind.get(row.id, [])},
            scored=sum(scored for _, _, scored in by_kind.get(row.id, [])),
            history=_one(history, row.id)[0],
            vectors=dict(held.get(row.id, [])),
            runs=_one(logged, row.id)[0],
            scored_runs=_one(logged, row.id)[-1],
            receipts=_one(told, row.id)[0],
            scheduled=_one(waiting, row.id)[0],
        )
        for row in sorted(rows, key=lambda row: row.name)
    )


def _grouped(connection: Connection, query: Any) -> dict[int, list[tuple[Any, ...]]]:
    """Rows by their first value, the namespace's id."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for owner, *rest in connection.execute(query):
        numbers = (value if isinstance(value, str) else int(value) for value in rest)
        found.setdefault(owner, []).append(tuple(numbers))
    return found


def _one(found: dict[int, list[tuple[Any, ...]]], owner: int) -> tuple[int, ...]:
    return found.get(owner, [(0,)])[0]


def _file_bytes(path: Path) -> int:
    beside = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in beside if file.exists())


def _server_bytes(connection: Connection) -> int:
    query = (
        "SELECT coalesce(sum(pg_total_relation_size(format('%I.%I', schemaname, tablename)"
        "::regclass)), 0) FROM pg_catalog.pg_tables WHERE schemaname = current_schema()"
    )
    return int(connection.exec_driver_sql(query.replace("%", "%%")).scalar_one())
