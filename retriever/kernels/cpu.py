"""The CPU scanner: the compiled scan over a bank's blocks, from its vectors or a copy of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from retriever.following import Follower
from retriever.head import Head
from retriever.kernels import cpu_scan, numpy_scan, reference
from retriever.kernels.compact import CompactCopy
from retriever.kernels.rescoring import Best
from retriever.kernels.source import Source, bank_source
from retriever.kernels.tiles import LANES
from retriever.types import Block, Bools, Floats
from retriever.vectors import Vectors


def spare(storage: str, rows: int) -> int:
    """Candidates beyond k, of so many rows, for the k best to be certain at one look, mostly.

    On noisy copies of real projections, int8 needed no second look with a thousandth of the rows,
    and scoring those takes a hundredth of the scan.
    """
    if storage == "int8":
        return max(112, rows >> 10)
    return 32 if storage == "bfloat16" else cpu_scan.SPARE


class CpuScanner:
    """Fulfils `scan.Scanner`. Safe for threads.

    Args:
        storage: `bank`, or the copy to keep of each namespace: `bfloat16` or `int8`. Searches of
            one namespace that read a copy take turns.
        threads: of one search.
    """

    def __init__(self, storage: str, threads: int) -> None:
        self._storage, self._threads = storage, threads
        #: Queries whose answer took a second look to prove.
        self.looked_again = 0
        self._copies: dict[str, tuple[Follower, CompactCopy]] = {}
        self._lock = threading.Lock()

    def top_k(
        self,
        block: Block,
        head: Head,
        queries: Floats,
        eligible: Bools,
        k: int,
        *,
        rising: bool = True,
    ) -> list[Best]:
        """See `scan.Scanner`."""
        vectors = reference.projections(block, head, queries, k)
        with self._source(block, head, vectors) as source:
            if source is None:
                return numpy_scan.best(head, vectors, queries, eligible, block.ids, k, rising)
            found, again = cpu_scan.best(
                source,
                vectors,
                head,
                queries,
                eligible,
                block.ids,
                k,
                rising,
                self._threads,
                spare(self._storage, len(block.ids)),
            )
        self.looked_again += again
        return found

    def logits(self, block: Block, head: Head, queries: Floats) -> Floats:
        """See `scan.Scanner`; always from the bank's own vectors."""
        vectors = reference.projections(block, head, queries)
        scores = cpu_scan.logits(vectors, head, queries, self._threads)
        return reference.logits(head, vectors, queries) if scores is None else scores

    def drop(self, namespace: str) -> None:
        """See `scan.Scanner`."""
        if self._storage != "bank":
            self._copy(namespace)[0].drop()

    def accept(self, namespace: str, version: int) -> None:
        """See `scan.Scanner`."""
        if self._storage != "bank":
            self._copy(namespace)[0].accept(version)

    def warm_up(self, head: Head) -> None:
        """See `scan.Scanner`: compiles, or loads what an earlier process compiled."""
        if head.case_width < LANES:
            return
        count = cpu_scan.SPARE + 2
        every, ids = np.ones(count, np.bool_), np.arange(count)
        for dtype in (np.float32, np.float16):
            vectors = [np.zeros((count, head.case_width), dtype)]
            sources = [bank_source(vectors, head)]
            if self._storage != "bank":
                copy = CompactCopy(self._storage)
                copy.wanted = head
                rows: Any = SimpleNamespace(ids=ids, live=every, projections=vectors)
                copy.build(rows)
                sources.append(copy.source(head))
            for source in sources:
                assert source is not None
                for asked in (1, 2):  # one query over a small bank has a loop of its own
                    queries = np.zeros((asked, head.query_width), np.float32)
                    cpu_scan.best(source, vectors, head, queries, every, ids, 1, True, 1)

    def describe(self) -> str:
        """See `scan.Scanner`."""
        read = "the bank's vectors" if self._storage == "bank" else f"a copy in {self._storage}"
        return f"numba, {32 * LANES}-bit vectors, {self._threads} threads, from {read}"

    @contextmanager
    def _source(self, block: Block, head: Head, vectors: Vectors) -> Iterator[Source | None]:
        """What the loops read, and it stays as it is; None where they cannot."""
        if head.case_width < LANES:
            yield None
            return
        if self._storage == "bank":
            yield bank_source(vectors, head)
            return
        follower, copy = self._copy(block.namespace)
        with follower.locked():
            copy.wanted = head
            with follower.held(block) as done:
                source = None if done == "older" else copy.source(head)
                if source is not None:
                    yield source
                    return
        yield bank_source(vectors, head)

    def _copy(self, namespace: str) -> tuple[Follower, CompactCopy]:
        with self._lock:
            pair = self._copies.get(namespace)
            if pair is None:
                copy = CompactCopy(self._storage)
                pair = self._copies[namespace] = Follower(copy, "projections"), copy
            return pair
