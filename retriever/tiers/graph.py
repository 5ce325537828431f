"""FAISS's HNSW: a graph that is walked towards the query. It cannot delete (FAISS issue 3339)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.tiers.module import faiss_module
from retriever.tiers.tier import unfiltered
from retriever.types import Bools, Floats, Ids


class GraphTier:
    """`IndexHNSWFlat`, or a scalar quantiser in the nodes.

    A row that dies or changes leaves a node of zeros, which is walked through and never returned; a
    changed row gets a new node. Past `share` of such nodes the graph is to be built anew.

    FAISS's own filter makes a graph return too few (a filter of 2 rows gave 1), so none is used:
    more is fetched, and masked by whoever asks.

    Args:
        index: trained; empty, or as `state` gave it.
        breadth: of the search, ef; None: as many as are fetched.
        share: of empty nodes, at most.
        rows: (nodes,) the row of each node, -1 where it is empty.
    """

    kind = "hnsw"

    def __init__(
        self, index: Any, breadth: int | None, share: float, rows: Ids | None = None
    ) -> None:
        self._index, self._breadth, self._share = index, breadth, share
        self._rows = np.empty(0, np.int64) if rows is None else rows

    def add(self, start: int, vectors: Floats, live: Bools) -> None:
        """See `Tier.add`."""
        self._enter(start + np.flatnonzero(live), vectors[live])

    def put(self, rows: Ids, vectors: Floats, live: Bools) -> bool:
        """See `Tier.put`."""
        nodes = np.flatnonzero(np.isin(self._rows, rows) & (self._rows >= 0))
        empty = np.count_nonzero(self._rows < 0) + len(nodes)
        if empty > self._share * (len(self._rows) + np.count_nonzero(live)):
            return False
        self._codes()[nodes] = 0
        self._rows[nodes] = -1
        self._enter(rows[live], vectors[live])
        return True

    def search(self, queries: Floats, count: int, eligible: Bools) -> tuple[Floats, Ids]:
        """See `Tier.search`."""
        faiss = faiss_module()

        if not len(self._rows):
            return np.zeros((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        fetch = unfiltered(count, eligible, len(self._rows))
        params = faiss.SearchParametersHNSW(efSearch=max(fetch, self._breadth or 0))
        scores, nodes = self._index.search(queries, fetch, params=params)
        rows = np.where(nodes >= 0, self._rows[nodes], -1)
        return scores, rows

    def stored(self, rows: Ids) -> Floats:
        """See `HostTier.stored`."""
        order = np.argsort(self._rows)
        nodes = order[np.searchsorted(self._rows, rows, sorter=order)]
        vectors: Floats = self._storage().sa_decode(self._codes()[nodes])
        return vectors

    def state(self) -> tuple[Any, Mapping[str, NDArray[Any]]]:
        """See `Tier.state`."""
        return self._index, {"rows": self._rows}

    def _enter(self, rows: Ids, vectors: Floats) -> None:
        if len(rows):
            self._index.add(np.ascontiguousarray(vectors, np.float32))
            self._rows = np.concatenate([self._rows, rows])

    def _storage(self) -> Any:
        faiss = faiss_module()

        return faiss.downcast_index(self._index.storage)

    def _codes(self) -> NDArray[np.uint8]:
        faiss = faiss_module()

        storage = self._storage()
        codes: NDArray[np.uint8] = faiss.rev_swig_ptr(
            storage.codes.data(), storage.ntotal * storage.code_size
        )
        return codes.reshape(-1, storage.code_size)
