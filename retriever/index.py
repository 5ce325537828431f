"""Cosine search over the stored query texts: a FAISS flat index that follows a bank.

Promises: the same answer as a full sort by (cosine, then id), on any device; never an answer from
vectors that are not the bank's. The bank is the truth; the index and its saved copy are caches, and
one that does not match is logged and built again. Row i of the index is row i of the block; a row
that died is overwritten with zeros when the index next follows.

FAISS promises no order among ties, rounds by the place of a row, and ignores filters on a GPU. So
it only proposes rows, some more than asked for, and the order is made here.
"""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retriever.device import Device
from retriever.errors import DeviceUnavailable, IndexUnavailable, InvalidInput
from retriever.ordering import top_k
from retriever.saved_index import Held, contents, read, same_store, write
from retriever.types import Block, Bools, Floats, Ids
from retriever.units import filled, normalised, scanned, units, width
from retriever.vectors import block_rows

#: Past this many candidates a full scan is the better way: the classic GPU index returns at most
#: 2,048, and FAISS's result heaps get slow there on the CPU too.
MOST_CANDIDATES = 2048

log = logging.getLogger(__name__)


class CosineIndex:
    """A flat inner-product index over L2-normalised vectors, following one namespace of one bank.

    `device` is where FAISS computes: `auto` takes a GPU if FAISS sees one. Safe for threads.
    """

    def __init__(self, device: str = "auto") -> None:
        self.device = _resolve(device)
        #: Rows taken in since the index was last saved or loaded.
        self.unsaved = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._held: Held | None = None
        self._last: weakref.ref[Block] | None = None  # the block that `_held` is of
        self._floor = 0.0  # blocks of older versions are not taken in
        self._resources: Any = None  # of the GPU; not safe for two searches at once

    def search(
        self, block: Block, queries: Floats, k: int, eligible: Bools | None = None
    ) -> list[tuple[Ids, Floats]]:
        """The k rows of `block` nearest to each query: (Q, E) -> Q pairs of (<=k,) rows, cosines.

        Best first, ties to the lower id. The index first takes in what is new.

        Args:
            block: where to search.
            queries: their vectors.
            k: how many rows, at most.
            eligible: (N,) the rows that may be found, a part of the live ones; all of them if None.

        Raises:
            IndexUnavailable: the block has no embeddings.
            InvalidInput: queries of another width, or k below 1.
            NonFiniteScore: a vector that holds NaN or infinity.
        """
        wide = width(block)
        eligible = block.live if eligible is None else eligible
        if k < 1:
            raise InvalidInput(f"k must be at least 1, got {k}")
        if queries.ndim != 2 or (len(block.ids) and queries.shape[1] != wide):
            raise InvalidInput(
                f"queries {queries.shape} must be (Q, {wide}), as wide as the bank's vectors; was "
                "the cosine encoder exchanged?"
            )
        queries = normalised(queries, None)
        if not eligible.any():
            self.follow(block)
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        with self._lock:
            proposed = self._propose(block, queries, k, eligible)
        undecided = [number for number, rows in enumerate(proposed) if rows is None]
        every = scanned(block, queries[undecided], eligible) if undecided else None  # (U, N)
        found = []
        for number, rows in enumerate(proposed):
            if rows is None:
                assert every is not None
                cosines = every[undecided.index(number)]
                (best,) = top_k(cosines[None], block.ids, eligible, k)
                found.append((best, cosines[best]))
            else:
                rows = rows[eligible[rows]]
                cosines = np.einsum("ce,e->c", units(block, rows), queries[number])
                (best,) = top_k(cosines[None], block.ids[rows], eligible[rows], k)
                found.append((rows[best], cosines[best]))
        return found

    def follow(self, block: Block) -> str:
        """Take in `block`.

        Returns:
            `same`, `extended` (rows were added), `updated` (rows were overwritten or emptied, too),
            `rebuilt`, or `older` (left alone).
        """
        width(block)
        with self._lock:
            return self._follow(block)

    def save(self, folder: Path) -> int | None:
        """Write the index to `folder` so that a crash leaves the old one, or none.

        Returns:
            The version of the bank that was saved; None if there was nothing to save.
        """
        with self._saving:
            return self._save(folder)

    def load(self, folder: Path, block: Block) -> bool:
        """Take over a saved index if it is of `block` or of an earlier state of it.

        False, with the reason in the log, where there is none or it does not match in every point.
        """
        if not folder.exists():
            return False
        try:
            held = read(folder, block)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            log.warning("saved index %s is not used and will be rebuilt: %s", folder, error)
            return False
        with self._lock:
            held.faiss = self._place(held.faiss)
            self._held, self._last, self.unsaved = held, None, 0
            self._follow(block)
        return True

    def drop(self) -> None:
        """Empty the index, and take nothing in until `accept`; searches then scan.

        A save in progress is waited for. What was saved is the caller's to delete.
        """
        with self._saving, self._lock:
            self._held = self._last = None
            self.unsaved, self._floor = 0, float("inf")

    def accept(self, version: int) -> None:
        """Take in blocks again, from this version on."""
        with self._lock:
            self._floor = version

    def _save(self, folder: Path) -> int | None:
        import faiss

        with self._lock:
            if self._held is None or not len(self._held.ids):
                return None
            held = replace(self._held)
            index = held.faiss if self._resources is None else faiss.index_gpu_to_cpu(held.faiss)
            data = faiss.serialize_index(index).data
            self.unsaved = 0  # also if writing fails: not tried again at every search
        write(folder, held, data)
        return held.version

    def _follow(self, block: Block) -> str:
        if self._last is not None and self._last() is block:
            return "same"
        if block.version < self._floor:
            return "older"
        held = self._held
        known = held is not None and same_store(held, block)
        if known and held is not None and block.version < held.version:
            return "older"
        try:
            if known and held is not None:
                done = self._patch(held, block)
                if done is not None:
                    self._last = weakref.ref(block)
                    return done
            self._rebuild(block)
        except BaseException:
            # Half of a change is worse than none: the next search begins anew.
            self._held = self._last = None
            raise
        self._last = weakref.ref(block)
        return "rebuilt"

    def _patch(self, held: Held, block: Block) -> str | None:
        """Write what differs over what is there; None where building anew is quicker."""
        count = len(held.ids)
        if not 0 < count <= len(block.ids):
            return None
        agrees = held.agrees(block)
        stale = np.flatnonzero(~agrees & (block.live[:count] | (held.stamps >= 0)))
        if len(stale) > count // 2 or (len(stale) and self._resources is not None):
            return None
        if len(stale):
            import faiss

            values = faiss.rev_swig_ptr(held.faiss.get_xb(), held.faiss.ntotal * held.faiss.d)
            alive = stale[block.live[stale]]
            fresh = units(block, alive)
            vectors = values.reshape(held.faiss.ntotal, held.faiss.d)
            vectors[stale] = 0
            vectors[alive] = fresh
        for start in range(count, len(block.ids), block_rows(held.faiss.d)):
            held.faiss.add(filled(block, start))
        added = len(block.ids) - count
        held.ids, held.stamps = contents(block)
        held.version = block.version
        self.unsaved += len(stale) + added
        return "updated" if len(stale) else "extended" if added else "same"

    def _rebuild(self, block: Block) -> None:
        import faiss

        index = faiss.IndexFlatIP(width(block))
        for start in range(0, len(block.ids), block_rows(index.d)):
            index.add(filled(block, start))
        ids, stamps = contents(block)
        self._held = Held(
            block.bank,
            block.namespace,
            block.version,
            block.embeddings_key,
            ids,
            stamps,
            self._place(index),
        )
        self.unsaved = len(ids)

    def _place(self, index: Any) -> Any:
        if self.device.kind != "cuda":
            return index
        import faiss

        if self._resources is None:
            self._resources = faiss.StandardGpuResources()
        return faiss.index_cpu_to_gpu(self._resources, self.device.index, index)

    def _propose(self, block: Block, queries: Floats, k: int, eligible: Bools) -> list[Ids | None]:
        """Rows among which the k best eligible ones certainly are, per query; None: all rows."""
        proposed: list[Ids | None] = [None] * len(queries)
        if self._follow(block) == "older":
            # A newer search was faster; its index may hold cases this snapshot does not know.
            return proposed
        assert self._held is not None
        # Two float32 dot products of unit vectors differ by at most 2 E u in exact arithmetic
        # (u = 2^-24); two of them compared, by twice that.
        margin = 4 * queries.shape[1] * 2.0**-24
        fetch, most = k + 16, min(MOST_CANDIDATES, len(block.ids))
        undecided = list(range(len(queries)))
        while undecided and fetch < most:
            scores, rows = self._held.faiss.search(queries[undecided], fetch)  # (U, fetch) both
            for number, found, row in zip(undecided, scores, rows, strict=True):
                good = found[eligible[row]]
                if len(good) >= k and good[k - 1] - margin > found[-1]:
                    proposed[number] = row
            undecided = [number for number in undecided if proposed[number] is None]
            fetch *= 2
        return proposed


def _resolve(device: str) -> Device:
    """Where FAISS will compute, found out once."""
    wanted = Device.parse(device)
    if wanted.kind == "cpu":
        return wanted
    try:
        import faiss
    except ImportError as error:
        raise IndexUnavailable(
            "cosine search needs FAISS; install precedent-memory[cpu] or precedent-memory[gpu]"
        ) from error
    gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if wanted.kind == "auto":
        return Device("cuda" if gpus else "cpu")
    if wanted.index >= gpus:
        raise DeviceUnavailable(
            f"index device = {device!r}, but FAISS sees {gpus} GPUs; install "
            "precedent-memory[gpu] on a machine with a GPU, or choose cpu or auto"
        )
    return wanted
