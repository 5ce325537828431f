"""A scan cut into tasks: spans of rows that the compiled loops read, on as many threads as pay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from retriever.head import Head
from retriever.kernels import compiled
from retriever.kernels.plan import aligned, plan, steps
from retriever.kernels.pool import spread
from retriever.kernels.reference import Doubles
from retriever.kernels.rescoring import gamma, lost
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

_NONE = np.empty((0, 0), np.float32)


class _Scratch(NamedTuple):
    """What one thread writes to; see `compiled`."""

    places: Ids
    lines: Floats
    sums: Floats
    wide: Floats  # whose addresses are in `places`


def alone(
    source: Source, head: Head, query: Floats, eligible: Bools, fetch: int, *, rising: bool
) -> tuple[Floats, Ids, Doubles]:
    """`Tasks.candidates` of one query (1, D + R), and their exact logits: three (1, F).

    For a bank's own rows, few enough for one thread.
    """
    laid = steps(head, LANES, overlap=True)
    # Copies, for what is read-only is another type to numba.
    most, rows, logits = compiled.alone(
        *(source.kind, eligible, np.array(source.chunks, np.int64), laid, LANES),
        np.array(head.weight, np.float64, order="C"),
        np.array(query, np.float64, order="C"),
        *(float(head.offset), head.bias, 1.0 if rising else -1.0),
        *(gamma(head), lost(head)),
        *(_tile_rows(laid[0] * LANES), fetch),
    )
    return most, rows, logits[None]


def _tile_rows(width: int) -> int:
    fitting = _TILE_BYTES // (4 * width) // LONE_ROWS * LONE_ROWS
    return min(_TILE_ROWS, max(2 * LONE_ROWS, fitting))


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
        self._tile_rows = _tile_rows(width)
        values = width * self._count  # a row
        self._threads = threads if source.rows * values >= LONE_VALUES else 1
        self._tasks = self._cut(values)

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

        parts = spread(work, len(self._tasks), self._threads)
        if len(parts) == 1:
            return parts[0]
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
                spans = self._tasks[number]
                size = int((spans[:, 1] - spans[:, 0]).sum())
                most = np.empty((self._count, size), np.float32)
                rows = np.empty((self._count, size), np.int64)
                counts = np.zeros(self._count, np.int64)
                self._scan(number, eligible, True, most, rows, counts, floors, scratch)
                for own, row, many in zip(found, rows, counts, strict=True):
                    own.append(row[:many].copy())
            return found

        parts = spread(work, len(self._tasks), self._threads)
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
                    *(source.kind, source.rest, mask, self._tasks[number], source.scales),
                    *(*self._steps(), *self._values(), given.constant, out),
                    *(scratch.places, scratch.lines, scratch.sums),
                )

        spread(work, len(self._tasks), self._threads)

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
            *(source.kind, source.rest, eligible, self._tasks[number]),
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
        return given.weight.values, given.shifts, given.factors.values

    def _scratch(self) -> _Scratch:
        rows, pitch = self._tile_rows, self._given.weight.values.shape[1]
        places, lines = np.zeros((4, rows), np.int64), np.zeros((5, rows), np.float32)
        sums = np.zeros((len(self._given.shifts), rows), np.float32)
        wide = _NONE
        if self._count > 1 and self._source.kind.dtype != np.float32:
            wide = aligned((rows, pitch))
            places[3] = wide.ctypes.data + 4 * pitch * np.arange(rows)
        return _Scratch(places, lines, sums, wide)

    def _cut(self, values: int) -> list[Ids]:
        """The rows as tasks, each some spans: (S, 6), see `compiled`.

        A span lies within a chunk. Several tasks for each thread, so that all end together, and
        small chunks in one: what a call costs would be most of a small bank's scan.
        """
        tile, source = self._tile_rows, self._source
        size = min(_TASK_ROWS, _TASK_VALUES // values)
        if self._threads > 1:
            size = min(size, -(-source.rows // (4 * self._threads)))
        size = max(1, -(-size // tile)) * tile
        if 0 < source.rows <= size:
            return [np.array(source.chunks, np.int64)]
        spans: list[tuple[int, ...]] = []
        starts, room = [], 0
        for chunk in source.chunks:
            for first in range(chunk.first, chunk.end, size):
                end, past = min(chunk.end, first + size), first - chunk.first
                if end - first > room:
                    starts.append(len(spans))
                    room = size
                room -= end - first
                spans.append(
                    (
                        *(first, end),
                        *(chunk.base + past * chunk.stride, chunk.stride),
                        *(chunk.rest_base + past * chunk.rest_stride, chunk.rest_stride),
                    )
                )
        table = np.array(spans, np.int64)
        return [table[a:b] for a, b in pairwise([*starts, len(spans)])]
