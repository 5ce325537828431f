"""The rows of one namespace: appended, retired and used again, while older pictures are held.

A row that was retired keeps its content until no picture older than its retirement is held by
anybody; then it is overwritten with zeros, in memory, and becomes free.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from memory.arrays.chunks import Chunks, Lease, Places, grown, leased
from memory.arrays.feed import Batch, Columns
from memory.types import Array, Bools, Ids

#: What a table keeps a row besides vectors, in the order of a snapshot file.
FIELDS: Mapping[str, DTypeLike] = {
    "ids": np.int64,
    "stamps": np.int64,
    "outcome": np.float64,  # as the database has it: filters compare them
    "kind": np.uint8,
    "created_at": np.int64,
    "valid_from": np.int64,
    "valid_to": np.int64,
}
#: Values a vector has, and how one is held, by the name of a block's attribute.
Widths: TypeAlias = Mapping[str, tuple[int, "np.dtype[Any]"]]


class Picture(NamedTuple):
    """N rows at one moment; read-only. Rows where `live` is False have no defined content."""

    ids: Ids
    stamps: Ids
    live: Bools
    columns: Columns
    vectors: dict[str, tuple[Array, ...]]


class Table:
    """The rows of one namespace. Safe for threads that write in turn while others let go."""

    def __init__(self, widths: Widths) -> None:
        self.size = 0
        self._fields = {name: np.empty(0, dtype) for name, dtype in FIELDS.items()}
        self._live: Bools = np.empty(0, np.bool_)
        self._chunks = {name: Chunks(*width) for name, width in widths.items()}
        self._places = Places()
        self._free = array("q")
        self._retired: deque[tuple[int, Ids]] = deque()  # version of the retirement, slots
        self._leases: list[tuple[int, weakref.ref[Lease]]] = []
        # Taken for single operations only, and never waited for by a reader that lets go.
        self._lock = threading.Lock()
        self._due = False

    @property
    def pending(self) -> int:
        """Retired rows whose content is still there, for an older picture is held."""
        return sum(len(slots) for _, slots in list(self._retired))

    def put(self, batch: Batch, version: int) -> None:
        """Store the live rows of a batch; what they replace, and the others, retires.

        Raises:
            FloatingPointError: a value does not fit into float16.
        """
        with self._held():
            self._retire(batch.ids, version)
            rows = np.flatnonzero(batch.live)
            slots, reused = self._allocate(len(rows))
            try:
                self._write(batch, rows, slots, reused)
            except BaseException:
                self._retired.append((version, slots))
                self._due = True
                raise
            self._live[slots] = True
            self._places.put(batch.ids[rows], slots)

    def retire(self, ids: Ids, version: int) -> int:
        """Take cases out of every picture from `version` on; how many of them were here."""
        with self._held():
            return self._retire(ids, version)

    def clear(self, version: int) -> None:
        """Retire every row."""
        with self._held():
            self._retire(self._fields["ids"][: self.size][self._live[: self.size]], version)

    def picture(self, version: int) -> Picture:
        """The rows as they are now; the caller says which version of the namespace that is."""
        with self._held():
            lease = Lease(self)
            release = _releasing(weakref.ref(self))
            self._leases.append((version, weakref.ref(lease, release)))
            live = self._live[: self.size].copy()
            live.flags.writeable = False
            ids, stamps, *columns = (leased(f[: self.size], lease) for f in self._fields.values())
            vectors = {name: held.views(self.size, lease) for name, held in self._chunks.items()}
        return Picture(ids, stamps, live, Columns(*columns), vectors)

    def restore(self, rows: int, read_into: Callable[[str, NDArray[Any]], None]) -> None:
        """Fill an empty table with `rows` live rows, array by array, without a second copy.

        Args:
            rows: how many there are.
            read_into: fills an array of the section named; a section comes in consecutive parts.

        Raises:
            ValueError: an id is there twice.
        """
        assert not self.size, "a table is filled once"
        with self._held():
            slots, _ = self._allocate(rows)
            for name, field in self._fields.items():
                read_into(name, field[:rows])
            for name, chunks in self._chunks.items():
                for part in chunks.parts(0, rows):
                    read_into(name, part)
            self._live[:rows] = True
            self._places.put(self._fields["ids"][:rows], slots)

    def settle(self) -> None:
        """Zero and free what no picture needs any more. Never waits.

        Runs in whatever thread let the last old picture go, which may hold this very lock: whoever
        holds it looks again after letting it go.
        """
        while self._due and self._lock.acquire(blocking=False):
            try:
                self._due = False
                self._reclaim()
            finally:
                self._lock.release()

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self.settle()

    def release(self) -> None:
        """A picture was let go."""
        self._due = True
        self.settle()

    def _allocate(self, count: int) -> tuple[Ids, int]:
        """Slots for `count` rows: free ones first, how many of those, then new ones in a row."""
        reused = min(count, len(self._free))
        kept = len(self._free) - reused
        free = np.sort(np.array(self._free[kept:], np.int64))
        del self._free[kept:]
        end = self.size + count - reused
        for name, field in self._fields.items():
            self._fields[name] = grown(field, self.size, end)
        self._live = grown(self._live, self.size, end)
        for chunks in self._chunks.values():
            chunks.reserve(end)
        slots = np.concatenate([free, np.arange(self.size, end)])
        self._live[self.size : end] = False  # until every array is written
        self.size = end
        return slots, reused

    def _write(self, batch: Batch, rows: Ids, slots: Ids, reused: int) -> None:
        given: tuple[NDArray[Any], ...] = (batch.ids, batch.stamps, *batch.columns)
        for target, values in zip(self._fields.values(), given, strict=True):
            target[slots] = values[rows]
        for chunks, vectors in zip(self._chunks.values(), batch.vectors, strict=True):
            assert vectors is not None, "an incomplete batch is not stored"
            own = vectors if len(rows) == len(vectors) else vectors[rows]
            with np.errstate(over="raise"):
                chunks.put(slots[:reused], own[:reused])
                chunks.append(self.size - (len(rows) - reused), own[reused:])

    def _retire(self, ids: Ids, version: int) -> int:
        slots = self._places.find(ids)
        here = slots >= 0
        slots = slots[here]
        if len(slots):
            self._places.drop(ids[here])
            self._live[slots] = False
            self._retired.append((version, slots))
            self._due = True
        return len(slots)

    def _reclaim(self) -> None:
        self._leases = [(version, ref) for version, ref in self._leases if ref() is not None]
        oldest = min((version for version, _ in self._leases), default=None)
        while self._retired and (oldest is None or self._retired[0][0] <= oldest):
            _, slots = self._retired.popleft()
            for field in self._fields.values():
                field[slots] = 0
            for chunks in self._chunks.values():
                chunks.put(slots, 0.0)
            self._free.extend(slots.tolist())


def _releasing(table: weakref.ref[Table]) -> Callable[[weakref.ref[Lease]], None]:
    """What happens when a lease ends; not a method, which would keep the table in a cycle."""

    def release(_: weakref.ref[Lease]) -> None:
        alive = table()
        if alive is not None:
            alive.release()

    return release
