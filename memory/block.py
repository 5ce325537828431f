"""The arrays a search reads, one immutable picture a namespace, following the database."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from memory.errors import BankBusy
from memory.rows import namespace_state
from memory.store import Store
from memory.types import Bools, Embedder, Floats, Ids
from memory.vectors import Shelf

_LOAD_BATCH = 4096
_ATTEMPTS = 20  # at embedding what others keep adding without vectors


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One namespace at one version, row i of every array being one case; arrays are read-only.

    `ids` (N,) ascending; `live` (N,) False for cases that no search may return; `embeddings` (N, E)
    and `projections` (N, D), None where the bank was opened without that embedder.
    """

    bank: str
    namespace: str
    version: int
    ids: Ids
    live: Bools
    embeddings: Floats | None
    projections: Floats | None
    embeddings_key: str | None
    projections_key: str | None

    def __len__(self) -> int:
        return len(self.ids)


class Blocks:
    """The newest block of every namespace asked for; only rows that came since are read."""

    def __init__(
        self, store: Store, shelf: Shelf, embeddings: Embedder | None, projections: Embedder | None
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._roles = (embeddings, projections)
        self._followers: dict[str, _Follower] = {}
        self._lock = threading.Lock()

    def block(self, namespace: str) -> Block:
        """The newest acknowledged state; cases that lack a vector are embedded first."""
        with self._store.read() as connection:
            state = namespace_state(connection, namespace)
        if state is None:
            # Not remembered: asking for names that do not exist must not fill the memory.
            return _Follower(self._roles).picture(self._store.uid, namespace, 0)
        with self._lock:
            follower = self._followers.setdefault(namespace, _Follower(self._roles))
        known = follower.newest
        if known is not None and known.version >= state.version:
            return known
        with follower.lock:
            return self._follow(follower, namespace)

    def _follow(self, follower: _Follower, namespace: str) -> Block:
        for _ in range(_ATTEMPTS):
            # A case is only ever appended, with a larger id than every case before it.
            after = follower.last_id
            with self._store.read() as connection:
                state = namespace_state(connection, namespace)
                assert state is not None, "namespaces are never removed"
                if follower.newest is not None and follower.newest.version == state.version:
                    return follower.newest
                complete = True
                size = follower.size
                for ids, arrays in self._shelf.rows(connection, state.id, after, _LOAD_BATCH):
                    if arrays is None:
                        complete = False
                        break
                    size = follower.write(size, ids, arrays)
            if complete:
                follower.size = size
                follower.newest = follower.picture(self._store.uid, namespace, state.version)
                return follower.newest
            self._shelf.embed_missing(namespace, after=after)
        raise BankBusy(
            f"namespace {namespace!r} still has cases without vectors after {_ATTEMPTS} rounds of "
            "embedding: others add them faster than they are embedded; add with wait=True"
        )


class _Follower:
    """Arrays with room at the end; a block is a view of their first rows, which never change."""

    def __init__(self, roles: tuple[Embedder | None, Embedder | None]) -> None:
        self.lock = threading.Lock()
        self.newest: Block | None = None
        self.size = 0
        self._roles = roles
        self._ids: Ids = np.empty(0, np.int64)
        self._vectors: list[Floats | None] = [
            None if role is None else np.empty((0, role.dim), np.float32) for role in roles
        ]

    @property
    def last_id(self) -> int:
        return int(self._ids[self.size - 1]) if self.size else 0

    def write(self, start: int, ids: list[int], arrays: list[Floats]) -> int:
        """Put n rows at `start`, which lies past every block made so far; where they end."""
        end = start + len(ids)
        self._reserve(start, end)
        self._ids[start:end] = ids
        remaining = iter(arrays)
        for target in self._vectors:
            if target is not None:
                target[start:end] = next(remaining)
        return end

    def picture(self, bank: str, namespace: str, version: int) -> Block:
        ids: Ids = self._ids[: self.size]
        live: Bools = np.ones(self.size, np.bool_)
        embeddings, projections = (
            None if rows is None else rows[: self.size] for rows in self._vectors
        )
        for array in (ids, live, embeddings, projections):
            if array is not None:
                array.flags.writeable = False
        keys = [None if role is None else role.key for role in self._roles]
        return Block(bank, namespace, version, ids, live, embeddings, projections, *keys)

    def _reserve(self, used: int, rows: int) -> None:
        if rows <= len(self._ids):
            return
        # A quarter more than needed: appending one case at a time stays cheap, memory bounded.
        capacity = rows + rows // 4 + 64
        ids = np.empty(capacity, np.int64)
        ids[:used] = self._ids[:used]
        self._ids = ids
        for i, old in enumerate(self._vectors):
            if old is not None:
                new = np.empty((capacity, old.shape[1]), np.float32)
                new[:used] = old[:used]
                self._vectors[i] = new
