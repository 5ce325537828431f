"""A scan cut into tasks: spans of rows that the compiled loops read, on as many threads as pay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from retriever.head import Head
from retriever.kernels import compiled
from retriever.kernels.plan import aligned, plan
from retriever.kernels.pool import spread
from retriever.kernels.source import Source
from retriever.kernels.tiles import LANES, LONE_ROWS, QUERIES
from retriever.types import Bools, Floats, Ids

#: Below so many values, waking other threads takes longer than doing it.
LONE_VALUES = 1 << 22

#: Bytes of a tile of rows as float32: it stays in the second-level cache.
_TILE_BYTES = 1 << 17
_TILE_ROWS = 64
#: Values that one task reads, for all queries together: about a millisecond of work.
_TASK_VALUES = 1 << 25
_TASK_ROWS = 4096

_Span: TypeAlias = tuple[int, int, int, int, int, int]


class _Scratch(NamedTuple):
    """What one thread writes to; see `compiled`."""

    places: Ids
    lines: Floats
    sums: Floats
    wide: Floats  # whose addresses are in `places`


class Tasks:
    """Q queries against the rows of a source.

    Args:
        source: the rows.
        head: the head.
        queries: (Q, D + R); a few hundred at most, for they are to stay in the cache, too.
        rising: False makes the lowest logits the best.
        threads: to use, at most.
    """

    def __init__(
        self, source: Source, head: Head, queries: Floats, threads: int, *, rising: bool = True
    ) -> None:
        given = plan(head, queries, LANES, QUERIES, rising=rising, overlap=source.overlap)
        self._source, self._given, self._count = source, given, len(queries)
        width = given.weight.values.shape[1]
        fitting = _TILE_BYTES // (4 * width) // LONE_ROWS * LONE_ROWS
        self._tile_rows = min(_TILE_ROWS, max(2 * LONE_ROWS, fitting))
        values = width * self._count  # a row
        self._threads = threads if source.rows * values >= LONE_VALUES else 1
        self._spans = self._cut(values)

    def candidates(self, eligible: Bools, fetch: int) -> tuple[Floats, Ids]:
        """The `fetch` best rows of every thread, by the most they may score: (Q, F) both.

        -infinity and -1 stand where there were no more.
        """

        def work(numbers: Iterator[int]) -> tuple[Floats, Ids]:
            most = np.full((self._count, fetch), -np.inf, np.float32)
            rows = np.full((self._count, fetch), -1, np.int64)
            counts = np.zeros(self._count, np.int64)
            floors = np.full(self._count, -np.inf, np.float32)
            scratch = self._scratch()
            for number in numbers:
                self._scan(number, eligible, False, most, rows, counts, floors, scratch)
            return most, rows

        parts = spread(work, len(self._spans), self._threads)
        return (
            np.concatenate([most for most, _ in parts], axis=1),
            np.concatenate([rows for _, rows in parts], axis=1),
        )

    def collected(self, eligible: Bools, floors: Floats) -> list[Ids]:
        """Every row that may score as much as the floor, per query: (Q,) -> Q arrays."""

        def work(numbers: Iterator[int]) -> list[list[Ids]]:
            found: list[list[Ids]] = [[] for _ in range(self._count)]
            scratch = self._scratch()
            for number in numbers:
                size = self._spans[number][1] - self._spans[number][0]
                most = np.empty((self._count, size), np.float32)
                rows = np.empty((self._count, size), np.int64)
                counts = np.zeros(self._count, np.int64)
                self._scan(number, eligible, True, most, rows, counts, floors, scratch)
                for own, row, many in zip(found, rows, counts, strict=True):
                    own.append(row[:many].copy())
            return found

        parts = spread(work, len(self._spans), self._threads)
        return [
            np.concatenate([np.empty(0, np.int64), *(rows for part in parts for rows in part[q])])
            for q in range(self._count)
        ]

    def logits(self, out: Floats) -> None:
        """Every logit: into (Q, N)."""
        mask = np.ones(self._source.rows, np.bool_)
        source, given = self._source, self._given

        def work(numbers: Iterator[int]) -> None:
            scratch = self._scratch()
            for number in numbers:
                compiled.logits(
                    *(source.kind, source.rest, mask, self._spans[number], source.scales),
                    *(*self._steps(), *self._values(), given.constant, out),
                    *(scratch.places, scratch.lines, scratch.sums),
                )

        spread(work, len(self._spans), self._threads)

    def _scan(
        self,
        number: int,
        eligible: Bools,
        collect: bool,
        most: Floats,
        rows: Ids,
        counts: Ids,
        floors: Floats,
        scratch: _Scratch,
    ) -> None:
        source, given = self._source, self._given
        compiled.scan(
            *(source.kind, source.rest, eligible, self._spans[number]),
            *(source.scales, source.drifts, *self._steps(), *self._values()),
            *(given.constant, given.slope, given.reach, given.fixed),
            *(collect, most, rows, counts, floors),
            *(scratch.places, scratch.lines, scratch.sums),
        )

    def _steps(self) -> tuple[tuple[int, int, int, int]]:
        hidden, rest = self._given.weight, self._given.factors
        return ((hidden.vectors, hidden.last, rest.vectors, rest.last),)

    def _values(self) -> tuple[Floats, Floats, Floats]:
        given = self._given
        return given.weight.values, given.shifts.values, given.factors.values

    def _scratch(self) -> _Scratch:
        rows, pitch = self._tile_rows, self._given.weight.values.shape[1]
        in_place = self._count == 1 or self._source.kind.dtype == np.float32
        wide = aligned((0 if in_place else rows, pitch))
        places: Any = aligned((4, rows), np.int64)
        places[3] = wide.ctypes.data + 4 * pitch * np.arange(rows)
        sums = aligned((len(self._given.shifts.values), rows))
        return _Scratch(places, aligned((5, rows)), sums, wide)

    def _cut(self, values: int) -> list[_Span]:
        """The rows as tasks, within chunks; several for each thread, so that all end together."""
        tile, source = self._tile_rows, self._source
        size = min(_TASK_ROWS, _TASK_VALUES // values, -(-source.rows // (4 * self._threads)))
        size = max(1, -(-size // tile)) * tile
        return [
            (
                first,
                min(chunk.end, first + size),
                chunk.base + (first - chunk.first) * chunk.stride,
                chunk.stride,
                chunk.rest_base + (first - chunk.first) * chunk.rest_stride,
                chunk.rest_stride,
            )
            for chunk in source.chunks
            for first in range(chunk.first, chunk.end, size)
        ]
