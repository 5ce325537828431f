"""Where the compiled loops find the rows of a block, as addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retriever.head import Head
from retriever.types import Array, Floats
from retriever.vectors import Vectors, chunked

#: How a stored type is called where half precision has no name of its own.
KINDS = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.int16, "int8": np.int8}

_NONE = np.empty(0, np.float32)
_FLOAT32 = np.dtype(np.float32)
#: From the precision of a bank to what tells the loops of it.
_OWN = {np.dtype(name): np.empty(0, KINDS[name]) for name in ("float32", "float16")}


class Chunk(NamedTuple):
    """Consecutive rows: from which to which, where they are, and the bytes from row to row."""

    first: int
    end: int
    base: int
    stride: int
    rest_base: int
    rest_stride: int


@dataclass(frozen=True, slots=True)
class Source:
    """N rows in chunks.

    Attributes:
        kind: an empty array of the type that says how the hidden part of a row is stored.
        rest: likewise for bias and product.
        chunks: in order of rows.
        scales: (N,) of int8 rows, or none.
        drifts: (N,) how far each stored row is from the bank's, or none where it is the bank's own.
        overlap: whether bias and product lie behind the hidden part, in the same row.
        held: what has to live as long as the addresses are used.
        own: the vectors that these rows are, read in place; None for a copy of them.
    """

    kind: NDArray[Any]
    rest: NDArray[Any]
    chunks: tuple[Chunk, ...]
    scales: Floats
    drifts: Floats
    overlap: bool
    held: Any
    own: Vectors | None = None

    @property
    def rows(self) -> int:
        """N."""
        return self.chunks[-1].end if self.chunks else 0


def bank_source(vectors: Vectors, head: Head) -> Source | None:
    """A bank's own vectors, read in place; None where they are not all of one precision.

    A chunk whose values do not lie one behind the other is copied.
    """
    held = [_lined_up(chunk) for chunk in chunked(vectors)]
    kinds = {chunk.dtype for chunk in held if len(chunk)} or {_FLOAT32}
    if len(kinds) > 1 or not kinds <= _OWN.keys():
        return None
    kind = _OWN[kinds.pop()]
    chunks, start = [], 0
    for chunk in held:
        if len(chunk):
            base, stride = chunk.ctypes.data, chunk.strides[0]
            rest = base + head.hidden * chunk.itemsize
            chunks.append(Chunk(start, start + len(chunk), base, stride, rest, stride))
        start += len(chunk)
    return Source(kind, kind, tuple(chunks), _NONE, _NONE, True, held, vectors)


def _lined_up(chunk: Array) -> Array:
    together = chunk.shape[1] < 2 or chunk.strides[1] == chunk.itemsize
    return chunk if together else np.ascontiguousarray(chunk)
