"""FAISS's inverted lists: a query is compared with the rows of the lists nearest to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.tiers.module import faiss_module
from retriever.tiers.tier import filtered
from retriever.types import Bools, Floats, Ids


class IvfTier:
    """`IndexIVFFlat`, or a scalar quantiser in the lists; ids are rows of the block.

    Args:
        index: trained; empty, or as `state` gave it.
        probes: lists that one search visits; more under a filter, so that as many rows are seen.
        rows: N, where the index is not empty.
    """

    kind = "ivf"

    def __init__(self, index: Any, probes: int, rows: int = 0) -> None:
        self._index, self._probes = index, probes
        #: (N,) the list that a row is in, -1 for none.
        self._homes = np.full(rows, -1, np.int32)
        for home in range(index.nlist) if rows else ():
            self._homes[self._list(home)[0]] = home

    def add(self, start: int, vectors: Floats, live: Bools) -> None:
        """See `Tier.add`."""
        self._homes = np.concatenate([self._homes[:start], np.full(len(live), -1, np.int32)])
        self._enter(start + np.flatnonzero(live), vectors[live])

    def put(self, rows: Ids, vectors: Floats, live: Bools) -> bool:
        """See `Tier.put`."""
        # Not `add_with_ids` over what is there, which would keep both.
        self._leave(rows)
        self._enter(rows[live], vectors[live])
        return True

    def search(self, queries: Floats, count: int, eligible: Bools) -> tuple[Floats, Ids]:
        """See `Tier.search`."""
        faiss = faiss_module()

        chosen, fetch = filtered(count, eligible, self._index.ntotal)
        most = self._index.nlist
        probes = probes_for(self._probes, eligible, most)
        params = faiss.SearchParametersIVF(nprobe=probes, sel=chosen)
        scores, rows = self._index.search(queries, fetch, params=params)
        short = np.flatnonzero(rows[:, -1] < 0)
        while len(short) and probes < most:
            # The lists visited held too few; further ones, for these queries alone.
            probes = min(4 * probes, most)
            params = faiss.SearchParametersIVF(nprobe=probes, sel=chosen)
            scores[short], rows[short] = self._index.search(queries[short], fetch, params=params)
            short = np.flatnonzero(rows[:, -1] < 0)
        return scores, rows

    def stored(self, rows: Ids) -> Floats:
        """See `HostTier.stored`."""
        vectors = np.empty((len(rows), self._index.d), np.float32)
        for home in np.unique(self._homes[rows]):
            ids, codes = self._list(int(home))
            order = np.argsort(ids)
            here = np.flatnonzero(self._homes[rows] == home)
            places = order[np.searchsorted(ids, rows[here], sorter=order)]
            vectors[here] = self._decoded(codes[places])
        return vectors

    def state(self) -> tuple[Any, Mapping[str, NDArray[Any]]]:
        """See `Tier.state`."""
        return self._index, {}

    def _enter(self, rows: Ids, vectors: Floats) -> None:
        faiss = faiss_module()

        if not len(rows):
            return
        vectors = np.ascontiguousarray(vectors, np.float32)
        rows = np.ascontiguousarray(rows, np.int64)
        homes = np.ascontiguousarray(self._index.quantizer.assign(vectors, 1)[:, 0])
        # The assignment is wanted here too, so that a row can be found again to be taken out.
        self._index.add_core(
            len(rows), faiss.swig_ptr(vectors), faiss.swig_ptr(rows), faiss.swig_ptr(homes)
        )
        self._homes[rows] = homes

    def _leave(self, rows: Ids) -> None:
        """Close the gaps in the lists and zero what is left over at their ends.

        `remove_ids` would visit every list, and leave the bytes behind the shortened ones.
        """
        rows = rows[self._homes[rows] >= 0]
        for home in np.unique(self._homes[rows]):
            ids, codes = self._list(int(home))
            stays = ~np.isin(ids, rows)
            count = int(np.count_nonzero(stays))
            ids[:count], codes[:count] = ids[stays], codes[stays]
            ids[count:], codes[count:] = -1, 0
            self._index.invlists.resize(int(home), count)
        self._index.ntotal -= len(rows)
        self._homes[rows] = -1

    def _list(self, home: int) -> tuple[Ids, NDArray[np.uint8]]:
        """FAISS's own memory of one list: (n,) rows, (n, bytes of a row)."""
        faiss = faiss_module()

        lists, size = self._index.invlists, self._index.code_size
        count = lists.list_size(home)
        if not count:
            return np.empty(0, np.int64), np.empty((0, size), np.uint8)
        ids: Ids = faiss.rev_swig_ptr(lists.get_ids(home), count)
        codes: NDArray[np.uint8] = faiss.rev_swig_ptr(lists.get_codes(home), count * size)
        return ids, codes.reshape(count, size)

    def _decoded(self, codes: NDArray[np.uint8]) -> Floats:
        quantiser = getattr(self._index, "sq", None)
        if quantiser is None:
            plain: Floats = np.ascontiguousarray(codes).view(np.float32)
            return plain
        vectors: Floats = quantiser.decode(np.ascontiguousarray(codes))
        return vectors


def probes_for(probes: int, eligible: Bools, lists: int) -> int:
    """Lists to visit: the fewer rows may be found, the more, up to all."""
    share = np.count_nonzero(eligible) / max(1, len(eligible))
    return int(min(lists, np.ceil(probes / max(share, 1e-9))))
