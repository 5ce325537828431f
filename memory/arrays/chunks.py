"""Arrays that grow without moving what is there, and a compact map from ids to rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory.types import Array, Ids

#: Rows of the first chunk, so that thousands of small namespaces cost little, and of a full one.
FIRST_ROWS = 16
CHUNK_ROWS = 16_384


class Lease:
    """Held by every array of a picture: while one of them lives, its rows stay as they are."""

    __slots__ = ("__weakref__", "table")

    def __init__(self, table: object) -> None:
        self.table = table


class Chunks:
    """The vectors of one role, in chunks that never move once they are there: (n_i, dim) each."""

    def __init__(self, dim: int, dtype: np.dtype[Any]) -> None:
        self.dim, self.dtype = dim, dtype
        self._arrays: list[Array] = []
        self._starts: list[int] = []
        self._capacity = 0

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all."""
        while self._capacity < rows:
            size = min(CHUNK_ROWS, max(FIRST_ROWS, 3 * self._capacity))
            self._arrays.append(np.empty((size, self.dim), self.dtype))
            self._starts.append(self._capacity)
            self._capacity += size

    def parts(self, start: int, end: int) -> Iterator[Array]:
        """Writable views of the rows from `start` to `end`, chunk by chunk."""
        for chunk, first in zip(self._arrays, self._starts, strict=True):
            low, high = max(start - first, 0), min(end - first, len(chunk))
            if low < high:
                yield chunk[low:high]

    def append(self, start: int, rows: Array) -> None:
        """Write `rows` at `start`, for which there is room."""
        done = 0
        for part in self.parts(start, start + len(rows)):
            part[...] = rows[done : done + len(part)]
            done += len(part)

    def put(self, slots: Ids, rows: Array | float) -> None:
        """Write rows, or one value everywhere, to scattered slots."""
        homes = np.searchsorted(self._starts, slots, side="right") - 1
        for home in np.unique(homes):
            here = homes == home
            own = rows[here] if isinstance(rows, np.ndarray) else rows
            self._arrays[home][slots[here] - self._starts[home]] = own

    def views(self, rows: int, lease: Lease) -> tuple[Array, ...]:
        """The first `rows` rows, read-only; at least one chunk, so that their width shows."""
        if not rows:
            return (np.empty((0, self.dim), self.dtype),)
        return tuple(leased(part, lease) for part in self.parts(0, rows))


class Places:
    """In which slot the row of an id lies; 12 bytes an id, where a dict would take 100."""

    def __init__(self) -> None:
        self._ids: Ids = np.empty(0, np.int64)  # ascending up to _count
        self._slots: NDArray[np.int32] = np.empty(0, np.int32)  # -1: the id is gone
        self._count = 0
        self._late: dict[int, int] = {}  # ids that came out of order, until they are merged

    def find(self, ids: Ids) -> Ids:
        """The slots of ids, -1 where there is none: (n,) -> (n,)."""
        found = np.full(len(ids), -1, np.int64)
        at = np.searchsorted(self._ids[: self._count], ids)
        inside = np.flatnonzero(at < self._count)
        inside = inside[self._ids[at[inside]] == ids[inside]]
        found[inside] = self._slots[at[inside]]
        if self._late:
            for i in np.flatnonzero(found < 0):
                found[i] = self._late.get(int(ids[i]), -1)
        return found

    def put(self, ids: Ids, slots: Ids) -> None:
        """Note the slots of ids that have none.

        Raises:
            ValueError: an id is given twice.
        """
        known = self._positions(ids)
        self._slots[known[known >= 0]] = slots[known >= 0]
        ids, slots = ids[known < 0], slots[known < 0]
        if not len(ids):
            return
        rising = bool((ids[1:] > ids[:-1]).all())
        if rising and (not self._count or ids[0] > self._ids[self._count - 1]) and not self._late:
            self._append(ids, slots)
        elif len(ids) + len(self._late) <= max(1024, self._count // 16):
            if not rising and len(np.unique(ids)) < len(ids):
                raise ValueError("an id is given twice")
            self._late.update(zip(ids.tolist(), slots.tolist(), strict=True))
        else:
            self._merge(ids, slots)

    def drop(self, ids: Ids) -> None:
        """Forget ids that have a slot."""
        known = self._positions(ids)
        self._slots[known[known >= 0]] = -1
        for id_ in ids[known < 0].tolist():
            del self._late[id_]

    def _positions(self, ids: Ids) -> Ids:
        """Where ids stand in the sorted part, -1 where they do not."""
        at = np.searchsorted(self._ids[: self._count], ids)
        held = at < self._count
        held[held] = self._ids[at[held]] == ids[held]
        return np.where(held, at, -1)

    def _append(self, ids: Ids, slots: Ids) -> None:
        end = self._count + len(ids)
        self._ids = grown(self._ids, self._count, end)
        self._slots = grown(self._slots, self._count, end)
        self._ids[self._count : end] = ids
        self._slots[self._count : end] = slots
        self._count = end

    def _merge(self, ids: Ids, slots: Ids) -> None:
        keep = self._slots[: self._count] >= 0
        late = np.array(list(self._late.items()), np.int64).reshape(-1, 2)
        every = np.concatenate([self._ids[: self._count][keep], late[:, 0], ids])
        where = np.concatenate(
            [self._slots[: self._count][keep], late[:, 1], slots], dtype=np.int32, casting="unsafe"
        )
        order = np.argsort(every, kind="stable")
        every = every[order]
        if (every[1:] == every[:-1]).any():
            raise ValueError("an id is given twice")
        self._ids, self._slots, self._count, self._late = every, where[order], len(every), {}


class _Window:
    """An array through NumPy's array interface: its views keep this alive, and so the lease."""

    def __init__(self, array: NDArray[Any], lease: Lease) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], True)}  # read-only
        self.array, self.lease = array, lease


def leased(source: NDArray[Any], lease: Lease) -> Any:
    """A read-only view of an array that holds a lease as long as it, or a view of it, lives."""
    return np.asarray(_Window(source, lease))


def grown(source: NDArray[Any], used: int, rows: int) -> NDArray[Any]:
    """The array, or a larger copy with room for `rows` rows; a quarter more than needed."""
    if rows <= len(source):
        return source
    larger = np.empty(rows + rows // 4 + FIRST_ROWS, source.dtype)
    larger[:used] = source[:used]
    return larger
