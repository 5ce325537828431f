"""The exact scan on the CPU: compiled loops propose, and every answer is proven.

Rows are ranked by the most that they may score, rounding and storage counted. The first k and some
more are scored exactly; a row left out whose most is below the k-th of those is out for certain.
Where it is not, every row that may reach the k-th is scored exactly. So the answer is that of a
float64 scan of the bank's own vectors, whatever the loops read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retriever.head import Head
from retriever.kernels import compiled, rescoring
from retriever.kernels.pool import spread
from retriever.kernels.reference import Doubles
from retriever.kernels.rescoring import LARGEST, Best, ranked
from retriever.kernels.source import Source, bank_source
from retriever.kernels.tasks import LONE_VALUES, Tasks, alone
from retriever.kernels.tiles import LANES
from retriever.types import Bools, Floats, Ids
from retriever.vectors import Vectors, shape

#: Candidates beyond k, so that near ties do not need a second look.
SPARE = 16
#: Queries that meet a tile of rows together; their vectors stay in the second-level cache.
GROUP = 256

#: Entries of the heaps of one thread.
_HEAP_ENTRIES = 1 << 22
#: Queries whose every possible row is collected at a time.
_AGAIN = 8


def best(
    source: Source,
    vectors: Vectors,
    head: Head,
    queries: Floats,
    eligible: Bools,
    ids: Ids,
    k: int,
    rising: bool,
    threads: int,
    spare: int = SPARE,
) -> tuple[list[Best], int]:
    """The k best eligible rows for each query, and how many queries took a second look.

    Args:
        source: what the loops read.
        vectors: the bank's own, which decide.
        head: the head.
        queries: (Q, D + R).
        eligible: (N,).
        ids: (N,).
        k: at most so many.
        rising: False takes the lowest first.
        threads: at most so many.
        spare: candidates beyond k.

    Raises:
        NonFiniteScore: see `scan.Scanner`.
    """
    # A bank's arrays are read-only, which to numba is another type, and another compilation.
    eligible = np.array(eligible, dtype=np.bool_)
    fetch = k + spare
    few = int(np.count_nonzero(eligible)) <= fetch
    group = min(GROUP, max(1, _HEAP_ENTRIES // fetch))
    found: list[Best] = []
    again = 0
    for first in range(0, len(queries), group):
        some = queries[first : first + group]
        search = _Search(source, vectors, head, some, eligible, ids, k, rising, threads, first)
        if few:
            found += search.every(np.flatnonzero(eligible).astype(np.int64))
        else:
            answers, unproven = search.nearest(fetch)
            found += answers
            again += unproven
    return found, again


class _Search:
    """One group of queries, the first of which errors call `number`; the rest is as in `best`."""

    def __init__(
        self,
        source: Source,
        vectors: Vectors,
        head: Head,
        queries: Floats,
        eligible: Bools,
        ids: Ids,
        k: int,
        rising: bool,
        threads: int,
        number: int,
    ) -> None:
        self._source, self._vectors, self._head = source, vectors, head
        self._queries, self._eligible, self._ids = queries, eligible, ids
        self._k, self._rising, self._threads, self._number = k, rising, threads, number

    def every(self, rows: Ids) -> list[Best]:
        """The best of a few rows, all of which are scored exactly."""
        count = len(self._queries)
        logits = self._exact(np.repeat(np.arange(count), len(rows)), np.tile(rows, count))
        return [
            self._ranked(query, rows, own)
            for query, own in enumerate(logits.reshape(count, len(rows)))
        ]

    def nearest(self, fetch: int) -> tuple[list[Best], int]:
        """The best of all rows, and for how many queries the first `fetch` did not prove them."""
        cutoff, rows, logits = self._alone(fetch) or self._candidates(fetch)
        keys = -logits if self._rising else logits  # the least is the best
        order = np.lexsort((self._ids[rows], keys), axis=1)[:, : self._k]  # (Q, k)
        lines = np.arange(len(order))[:, None]
        found = list(map(Best, rows[lines, order], logits[lines, order]))
        kth = -keys[lines[:, 0], order[:, -1]]
        unproven = np.nonzero(cutoff >= kth)[0]
        for first in range(0, len(unproven), _AGAIN):
            some = unproven[first : first + _AGAIN]
            tasks = self._tasks(self._queries[some])
            near = tasks.collected(self._eligible, _down(kth[some]))
            for query, own in zip(some, near, strict=True):
                found[query] = self._ranked(query, own, self._exact(np.full(len(own), query), own))
        return found, len(unproven)

    def _alone(self, fetch: int) -> tuple[Floats, Ids, Doubles] | None:
        """As `_candidates`, for one query and a bank so small that calls would take longest."""
        source, head = self._source, self._head
        own = source.own is self._vectors and not len(source.drifts)
        if len(self._queries) > 1 or not own or source.rows * head.case_width >= LONE_VALUES:
            return None
        most, rows, logits = alone(
            source, head, self._queries, self._eligible, fetch, rising=self._rising
        )
        if rows.min() < 0 or not (np.abs(logits) <= LARGEST).all():
            return None
        return most.min(axis=1), rows, logits

    def _candidates(self, fetch: int) -> tuple[Floats, Ids, Doubles]:
        """The most that a row left out may score (Q,), and rows (Q, F) with exact logits (Q, F)."""
        most, rows = self._tasks(self._queries).candidates(self._eligible, fetch)  # (Q, F) both
        # What one thread has kept is as good as what it left out, or better.
        cutoff = np.partition(most, -fetch, axis=1)[:, -fetch]
        kept = (most >= cutoff[:, None]) & (rows >= 0)
        numbers = np.ascontiguousarray(np.nonzero(kept)[0])
        logits = np.full(rows.shape, -np.inf if self._rising else np.inf)
        logits[kept] = self._exact(numbers, rows[kept])
        if not (np.abs(logits[kept]) <= LARGEST).all():
            self._refuse(logits, rows, kept)
        return cutoff, rows, logits

    def _tasks(self, queries: Floats) -> Tasks:
        return Tasks(self._source, self._head, queries, self._threads, rising=self._rising)

    def _exact(self, numbers: Ids, rows: Ids) -> Doubles:
        source = self._source if self._source.own is self._vectors else None
        return exact_logits(
            self._vectors, self._head, self._queries, numbers, rows, self._threads, source
        )

    def _ranked(self, query: int, rows: Ids, logits: Doubles) -> Best:
        number = self._number + int(query)
        return ranked(logits, rows, self._ids, self._k, self._rising, number=number)

    def _refuse(self, logits: Doubles, rows: Ids, kept: Bools) -> None:
        """Name the first query that has a broken logit, and the lowest case of it."""
        for query, good in enumerate(kept):
            self._ranked(query, rows[query, good], logits[query, good])


def logits(vectors: Vectors, head: Head, queries: Floats, threads: int) -> Floats | None:
    """Every logit: (N, W), (Q, D + R) -> (Q, N) float32; None where the loops cannot read them."""
    count, width = shape(vectors)
    source = bank_source(vectors, head)
    if source is None or width < LANES:
        return None
    scores = np.empty((len(queries), count), np.float32)
    for first in range(0, len(queries), GROUP):
        tasks = Tasks(source, head, queries[first : first + GROUP], threads)
        tasks.logits(scores[first : first + GROUP])
    return scores


def exact_logits(
    vectors: Vectors,
    head: Head,
    queries: Floats,
    numbers: Ids,
    rows: Ids,
    threads: int,
    source: Source | None = None,
) -> Doubles:
    """The exact logits of pairs of a query's number and a row: (P,), (P,) -> (P,) float64.

    `source` is the bank's, for callers that have it.
    """
    source = source or bank_source(vectors, head)
    found = np.empty(len(rows))
    if source is None or not len(rows):
        for number in np.unique(numbers):
            own = numbers == number
            found[own] = rescoring.exact_logits(head, vectors, queries[number], rows[own])
        return found
    # Copies, for what is read-only is another type to numba.
    weight = np.array(head.weight, np.float64, order="C")
    asked = np.array(queries, np.float64, order="C")
    spans = np.array(source.chunks, np.int64)

    def work(tasks: Iterator[int]) -> None:
        for task in tasks:
            compiled.exact(
                *(source.kind, numbers, rows, task * size, min(len(rows), (task + 1) * size)),
                *(spans, weight, asked, head.bias, float(head.offset), found),
            )

    size = max(64, LONE_VALUES // 8 // head.case_width)
    spread(work, -(-len(rows) // size), threads)
    return found


def _down(values: Doubles) -> Floats:
    """As float32, and not above."""
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    lower: Floats = np.where(nearest > values, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    return lower
