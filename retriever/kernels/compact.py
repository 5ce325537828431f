"""Copies of a bank's case vectors in fewer bytes, for scans that wait for memory.

`bfloat16` takes half of float32, `int8` a quarter, with a scale a row; bias and product stay
float32 beside it. Each row knows how far it is from the bank's (‖P_c - stored_c‖), which is what
makes the scan's answer provable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.head import Head
from retriever.kernels.plan import aligned
from retriever.kernels.source import KINDS, Chunk, Source
from retriever.kernels.tiles import LANES
from retriever.types import Block, Floats, Ids
from retriever.vectors import block_rows, taken

#: Rows of a chunk, but for the first, which is no larger than what it is made for.
_CHUNK_ROWS = 16_384
_NONE = np.empty(0, np.float32)


class CompactCopy:
    """The projections of one namespace as bfloat16 or int8; fulfils `following.Copy`.

    Set `wanted` to the head before a block is taken in; `source` gives what the loops read.
    """

    def __init__(self, storage: str) -> None:
        self.wanted: Head | None = None
        self._storage = storage
        self._head: Head | None = None
        self._chunks: list[NDArray[Any]] = []
        self._rests: list[Floats] = []
        self._scales, self._drifts = _NONE, _NONE
        self._count = 0

    def build(self, block: Block) -> None:
        """See `Copy.build`."""
        self.clear()
        self._head = self.wanted
        self._append(block, 0)

    def patch(self, block: Block, stale: Ids, start: int) -> bool:
        """See `Copy.patch`."""
        self._write(block, stale)
        self._append(block, start)
        return True

    def clear(self) -> None:
        """See `Copy.clear`; what was there is overwritten."""
        for array in (*self._chunks, *self._rests, self._scales, self._drifts):
            array[:] = 0
        self._chunks, self._rests = [], []
        self._scales = self._drifts = _NONE
        self._count = 0

    def source(self, head: Head) -> Source | None:
        """What the loops read; None where the copy is of another head's vectors."""
        mine = self._head
        if mine is None or (mine.hidden, mine.case_width) != (head.hidden, head.case_width):
            return None
        chunks, first = [], 0
        for chunk, rest in zip(self._chunks, self._rests, strict=True):
            end = min(self._count, first + len(chunk))
            chunks.append(
                Chunk(
                    *(first, end, chunk.ctypes.data, chunk.strides[0]),
                    *(rest.ctypes.data, rest.strides[0]),
                )
            )
            first = end
        return Source(
            kind=np.empty(0, KINDS[self._storage]),
            rest=_NONE,
            chunks=tuple(chunks),
            scales=self._scales if self._storage == "int8" else _NONE,
            drifts=self._drifts,
            overlap=False,
            held=(self._chunks, self._rests),
        )

    def arrays(self) -> list[NDArray[Any]]:
        """The stored hidden parts, chunk by chunk."""
        return list(self._chunks)

    def nbytes(self) -> int:
        """What it takes in memory."""
        every = (*self._chunks, *self._rests, self._scales, self._drifts)
        return sum(array.nbytes for array in every)

    def _append(self, block: Block, start: int) -> None:
        self._reserve(len(block.ids))
        self._count = len(block.ids)
        self._write(block, np.arange(start, self._count))

    def _reserve(self, rows: int) -> None:
        assert self._head is not None
        capacity = sum(len(chunk) for chunk in self._chunks)
        hidden = -(-self._head.hidden // LANES) * LANES
        rest = -(-(self._head.case_width - self._head.hidden) // LANES) * LANES
        while capacity < rows:
            size = min(_CHUNK_ROWS, max(16, rows if not capacity else 3 * capacity))
            self._chunks.append(aligned((size, hidden), KINDS[self._storage]))
            self._rests.append(aligned((size, rest)))
            capacity += size
        self._scales = _grown(self._scales, capacity)
        self._drifts = _grown(self._drifts, capacity)

    def _write(self, block: Block, rows: Ids) -> None:
        """Store rows of the block; zeros for those that are not live."""
        assert self._head is not None
        assert block.projections is not None
        starts = np.cumsum([0, *(len(chunk) for chunk in self._chunks)])
        size, hidden = block_rows(self._head.case_width), self._head.hidden
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            vectors = taken(block.projections, some)
            vectors[~block.live[some]] = 0
            stored, scales, drifts = encoded(self._storage, vectors[:, :hidden])
            self._scales[some], self._drifts[some] = scales, drifts
            homes = np.searchsorted(starts, some, side="right") - 1
            for home in np.unique(homes):
                here = homes == home
                places = some[here] - starts[home]
                self._chunks[home][places, :hidden] = stored[here]
                self._rests[home][places, : vectors.shape[1] - hidden] = vectors[here, hidden:]


def encoded(storage: str, vectors: Floats) -> tuple[NDArray[Any], Floats, Floats]:
    """(B, D) as stored, (B,) scales, (B,) how far each stored row is off, not less than it is.

    bfloat16 is rounded to the nearest, ties to even: at most 2^-8 of each value off. int8 takes the
    largest magnitude of the row as 127: at most half of a 127th of that off. A row that holds NaN
    or infinity, or overflows, is infinitely far off.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if storage == "bfloat16":
            bits = np.ascontiguousarray(vectors, dtype=np.float32).view(np.uint32)
            bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            stored: NDArray[Any] = (bits >> np.uint32(16)).astype(np.uint16).view(np.int16)
            back = (bits & np.uint32(0xFFFF0000)).view(np.float32)
            scales = np.ones(len(vectors), np.float32)
        else:
            scales = np.abs(vectors).max(axis=1, initial=0.0) / np.float32(127)
            usable = np.isfinite(scales) & (scales > np.finfo(np.float32).tiny)
            inverse = np.divide(1, scales, out=np.zeros_like(scales), where=usable)
            whole = np.rint(vectors * inverse[:, None])
            whole[~usable] = 0
            stored = np.clip(whole, -127, 127).astype(np.int8)
            scales[~usable] = 0
            back = stored * scales[:, None]
        away = (vectors - back).astype(np.float64)
        drifts = np.sqrt(np.einsum("bd,bd->b", away, away)) * (1 + 1e-6)
    drifts[~np.isfinite(drifts)] = np.inf
    return stored, scales, np.nextafter(drifts.astype(np.float32), np.float32(np.inf))


def _grown(values: Floats, size: int) -> Floats:
    if size <= len(values):
        return values
    larger = np.zeros(size, np.float32)
    larger[: len(values)] = values
    return larger
