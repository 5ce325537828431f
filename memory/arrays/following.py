"""The change sequence of a bank as followers read it: `Feed` over the database."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, and_, select

from memory.arrays.feed import UNKNOWN_TIME, Batch, Changes, Columns
from memory.case import KINDS
from memory.schema import case_vectors, cases, removals, vectors
from memory.storage.namespaces import namespace_state, newest_version
from memory.storage.store import Store
from memory.storage.vectors import STORED, Shelf
from memory.types import Array, Embedder, Times

_BATCH = 4096  # rows read at once: some megabytes of vectors
_KIND = {name: number for number, name in enumerate(KINDS)}
_BY_BYTES: dict[int, np.dtype[Any]] = {dtype.itemsize: dtype for dtype in STORED.values()}


class DatabaseFeed:
    """What changed in a namespace, read in one snapshot of the database."""

    def __init__(self, store: Store) -> None:
        self.uid = store.life
        self._store = store
        self._shelves: dict[tuple[str, ...], Shelf] = {}
        self._lock = threading.Lock()

    def version(self, namespace: str) -> int | None:
        """The last change of a namespace, None where there is none of that name."""
        return newest_version(self._store, namespace)

    @contextmanager
    def changes(
        self, namespace: str, after: int, roles: Sequence[Embedder]
    ) -> Iterator[Changes | None]:
        """What changed after `after`, with the vectors of `roles`; None: no such namespace."""
        shelf = self.shelf(roles)
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                yield None
                return
            gone = select(removals.c.case_id).where(
                removals.c.namespace_id == state.id, removals.c.seq > after
            )
            removed = np.array(list(connection.execute(gone).scalars()), np.int64)
            query = _changed(state.id, after, shelf.ids)
            with closing(_batches(connection, query, roles)) as batches:
                yield Changes(state.version, state.id, removed, batches)

    def embed_missing(self, namespace: str, roles: Sequence[Embedder]) -> int:
        """Embed the cases that lack a vector of `roles`; how many there were."""
        return self.shelf(roles).embed_missing(namespace)

    def shelf(self, roles: Sequence[Embedder]) -> Shelf:
        """The vectors under these embedders."""
        keys = tuple(role.key for role in roles)
        with self._lock:
            if keys not in self._shelves:
                self._shelves[keys] = Shelf(self._store, roles)
            return self._shelves[keys]


def _changed(namespace_id: int, after: int, embedder_ids: Sequence[int]) -> Select[Any]:
    c = cases.c
    query = select(
        c.id,
        c.seq,
        c.invalidated_at.is_(None).label("live"),
        c.outcome,
        c.kind,
        c.created_at,
        c.valid_from,
        c.valid_to,
    )
    for embedder_id in embedder_ids:
        link, vector = case_vectors.alias(), vectors.alias()
        query = query.add_columns(vector.c.vector)
        query = query.outerjoin(
            link, and_(link.c.embedder_id == embedder_id, link.c.case_id == c.id)
        ).outerjoin(vector, vector.c.id == link.c.vector_id)
    # The index on (namespace, change) gives this order, in SQLite the id too.
    return query.where(c.namespace_id == namespace_id, c.seq > after).order_by(c.seq, c.id)


def _batches(
    connection: Connection, query: Select[Any], roles: Sequence[Embedder]
) -> Generator[Batch, None, None]:
    # The driver's own rows: a million of SQLAlchemy's cost seconds. Only our own numbers are in it.
    sql = str(query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
    driver: Any = connection.connection.driver_connection
    # Named, a server's cursor sends a part at a time instead of everything at once.
    named = {"name": "changes"} if connection.dialect.name == "postgresql" else {}
    cursor = driver.cursor(**named)
    try:
        cursor.execute(sql)
        while rows := cursor.fetchmany(_BATCH):
            yield _batch(rows, roles)
    finally:
        cursor.close()


def _batch(rows: Sequence[Sequence[Any]], roles: Sequence[Embedder]) -> Batch:
    ids, seqs, live, outcome, kind, created_at, valid_from, valid_to, *held = zip(
        *rows, strict=True
    )
    alive = np.array(live, np.bool_)
    return Batch(
        ids=np.array(ids, np.int64),
        stamps=np.array(seqs, np.int64),
        live=alive,
        columns=Columns(
            outcome=np.array(outcome, np.float64),  # None becomes NaN
            kind=np.array([_KIND[name] for name in kind], np.uint8),
            created_at=_times(created_at),
            valid_from=_times(valid_from),
            valid_to=_times(valid_to),
        ),
        vectors=tuple(
            _array(blobs, live, role.dim) for blobs, role in zip(held, roles, strict=True)
        ),
    )


def _times(moments: Sequence[int | None]) -> Times:
    return np.array([UNKNOWN_TIME if m is None else m for m in moments], np.int64)


def _array(blobs: Sequence[bytes | None], live: Sequence[bool], dim: int) -> Array | None:
    """(n, dim) of what is stored, zeros for cases of history; None where a live case lacks it."""
    zeros = bytes(4 * dim)
    held: list[bytes] = []
    for blob, alive in zip(blobs, live, strict=True):
        if blob is None and alive:
            return None
        held.append(zeros if blob is None else blob)
    sizes = set(map(len, held))
    if len(sizes) == 1:
        dtype = _BY_BYTES[sizes.pop() // dim]
        whole: Array = np.frombuffer(b"".join(held), dtype).reshape(len(held), dim)
        return whole
    # Stored under two configurations.
    rows = [np.frombuffer(blob, _BY_BYTES[len(blob) // dim]).astype(np.float32) for blob in held]
    return np.stack(rows)
