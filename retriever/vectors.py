"""N vectors as a bank holds them: chunks of consecutive rows, float32 or float16.

A vector in half precision is widened, exactly, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput
from retriever.types import Array, Floats

#: Floats of the working block, half a mebibyte: stays in the second-level cache, and was the
#: fastest of 16, 32, ... 512 rows at D = 512.
BLOCK_FLOATS = 1 << 17

#: N vectors: one array, or chunks of consecutive rows.
Vectors: TypeAlias = Array | Sequence[Array]

_SIGN_EXPONENT_FRACTION = np.int32(-0x70002000)  # the bits 0x8FFFE000
_BIAS = np.float32(2.0**112)  # 127 - 15, the exponents' biases
_NO_NUMBER = 0x7C00  # the exponent of infinity and NaN


def shape(vectors: Vectors) -> tuple[int, int]:
    """(N, D) of vectors in chunks.

    Raises:
        InvalidInput: no chunk at all, or chunks of different widths.
    """
    chunks = chunked(vectors)
    widths = {chunk.shape[1] if chunk.ndim == 2 else None for chunk in chunks}
    if len(widths) != 1 or None in widths:
        shapes = [chunk.shape for chunk in chunks[:3]]
        raise InvalidInput(f"chunks {shapes} must be one or more of (n_i, D) with one D")
    return sum(len(chunk) for chunk in chunks), chunks[0].shape[1]


def block_rows(width: int) -> int:
    """How many rows `widened` gives at a time, at most."""
    return max(1, BLOCK_FLOATS // max(1, width))


def widened(vectors: Vectors) -> Iterator[tuple[int, Floats]]:
    """Blocks of float32 rows and where each begins; a block is good until the next one."""
    size = block_rows(shape(vectors)[1])
    buffer: Floats | None = None
    start = 0
    for chunk in chunked(vectors):
        for first in range(0, len(chunk), size):
            block = chunk[first : first + size]
            if block.dtype == np.float32:
                yield start + first, block.astype(np.float32, copy=False)
                continue
            if buffer is None:
                buffer = np.empty((size, block.shape[1]), dtype=np.float32)
            widen(block, buffer[: len(block)])
            yield start + first, buffer[: len(block)]
        start += len(chunk)


def widen(block: Array, out: Floats) -> None:
    """Write (B, D) of any floating type to `out`, float32; float16 in a third of numpy's time.

    A half is sign, 5 bits of exponent and 10 of fraction. Moved to their places in a float32 they
    mean the same but for the exponent's bias, which a multiplication by 2^112 sets right, also for
    subnormals; every step is exact.
    """
    if block.dtype != np.float16 or not block.size:
        np.copyto(out, block)
        return
    halves = block.view(np.uint16)
    if (halves & _NO_NUMBER).max() == _NO_NUMBER:
        np.copyto(out, block)  # infinity and NaN keep their exponent; they are rare
        return
    bits = out.view(np.int32)
    np.copyto(bits, halves.view(np.int16))  # with the sign in every bit above
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_EXPONENT_FRACTION, out=bits)
    np.multiply(out, _BIAS, out=out)


def taken(vectors: Vectors, rows: NDArray[np.integer]) -> Floats:
    """Some rows, as float32: (N, D), (C,) -> (C, D)."""
    chunks = chunked(vectors)
    out = np.empty((len(rows), shape(vectors)[1]), dtype=np.float32)
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])[:-1]
    # Of equal starts, which an empty chunk makes, the last holds the row.
    homes = np.searchsorted(starts, rows, side="right") - 1
    for home in np.unique(homes):
        here = homes == home
        out[here] = chunks[home][rows[here] - starts[home]]
    return out


def chunked(vectors: Vectors) -> Sequence[Array]:
    """The chunks; one array is one chunk."""
    return [vectors] if isinstance(vectors, np.ndarray) else vectors
