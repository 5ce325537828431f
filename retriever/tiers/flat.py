"""A flat FAISS index: position i is row i of the block, and every row is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.tiers.module import faiss_module
from retriever.tiers.tier import filtered
from retriever.types import Bools, Floats, Ids


class FlatTier:
    """`IndexFlatIP`, or a scalar quantiser over it. Dead rows hold zeros and are masked."""

    kind = "flat"

    def __init__(self, index: Any) -> None:
        self._index = index

    def add(self, start: int, vectors: Floats, live: Bools) -> None:
        """See `Tier.add`."""
        assert start == self._index.ntotal, "rows are appended in order"
        self._index.add(vectors)
        self._codes()[start + np.flatnonzero(~live)] = 0

    def put(self, rows: Ids, vectors: Floats, live: Bools) -> bool:
        """See `Tier.put`."""
        # In place: `remove_ids` would shift every row behind.
        codes = self._codes()
        codes[rows] = self._index.sa_encode(vectors) if len(rows) else 0
        codes[rows[~live]] = 0
        return True

    def search(self, queries: Floats, count: int, eligible: Bools) -> tuple[Floats, Ids]:
        """See `Tier.search`."""
        faiss = faiss_module()

        chosen, fetch = filtered(count, eligible, self._index.ntotal)
        params = None if chosen is None else faiss.SearchParameters(sel=chosen)
        scores, rows = self._index.search(queries, fetch, params=params)
        return scores, rows

    def stored(self, rows: Ids) -> Floats:
        """See `HostTier.stored`."""
        vectors: Floats = self._index.sa_decode(self._codes()[rows])
        return vectors

    def state(self) -> tuple[Any, Mapping[str, NDArray[Any]]]:
        """See `Tier.state`."""
        return self._index, {}

    def _codes(self) -> NDArray[np.uint8]:
        """FAISS's own memory: (N, bytes of a row)."""
        faiss = faiss_module()

        size = self._index.code_size
        if not self._index.ntotal:
            return np.empty((0, size), np.uint8)
        codes: NDArray[np.uint8] = faiss.rev_swig_ptr(
            self._index.codes.data(), self._index.ntotal * size
        )
        return codes.reshape(-1, size)
