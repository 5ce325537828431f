"""The exact scan: every case of a bank scored for every query, in numpy.

The head splits (Memento's classifier, softmax class 1), so that a case's half is computed once:

    P_c = W_case h_case + b1        cached per case
    a_q = W_query h_query           once per query
    logit(q, c) = weight · relu(P_c + a_q) + offset

No index can stand in for it, for it is no inner product. Equal cases get equal logits wherever they
lie in the bank, so that a tie is a tie and the lower id comes first. A vector may be held in half
precision; it is widened, exactly, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput, NonFiniteScore
from retriever.types import Array, Bools, Floats, Ids

#: Floats of the working block, half a mebibyte: stays in the second-level cache, and was the
#: fastest of 16, 32, ... 512 rows at D = 512.
BLOCK_FLOATS = 1 << 17

#: N vectors: one array, or chunks of consecutive rows.
Vectors: TypeAlias = Array | Sequence[Array]

_SIGN_EXPONENT_FRACTION = np.int32(-0x70002000)  # the bits 0x8FFFE000
_BIAS = np.float32(2.0**112)  # 127 - 15, the exponents' biases
_NO_NUMBER = 0x7C00  # the exponent of infinity and NaN


def logits(projections: Vectors, queries: Floats, weight: Floats, offset: float) -> Floats:
    """Score every case for every query: (N, D), (Q, D), (D,) -> (Q, N) logits.

    Overflow is not hidden: it shows as infinity or NaN, which `top_k` refuses.

    Args:
        projections: one (N, D) array, or at least one chunk (n_i, D) of consecutive rows; float32
            or float16.
        queries: the queries' halves.
        weight: of the head.
        offset: added to every logit.
    """
    count, width = shape(projections)
    if queries.ndim != 2 or queries.shape[1] != width or weight.shape != (width,):
        raise InvalidInput(
            f"projections ({count}, {width}), queries {queries.shape} and weight {weight.shape} "
            "must be (N, D), (Q, D) and (D,) with one D"
        )
    scores = np.empty((len(queries), count), dtype=np.float32)
    buffer = np.empty((block_rows(width), width), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start, block in widened(projections):  # (B, D)
            hidden = buffer[: len(block)]
            for query, out in zip(queries, scores, strict=True):
                np.add(block, query, out=hidden)
                np.maximum(hidden, 0.0, out=hidden)
                # Not `hidden @ weight`: BLAS rounds a row by its place in the matrix, and equal
                # cases would then not tie. Within 15 % of its speed at D = 512.
                np.einsum("bd,d->b", hidden, weight, out=out[start : start + len(block)])
        scores += np.float32(offset)
    return scores


def top_k(scores: Floats, ids: Ids, live: Bools, k: int) -> list[Ids]:
    """The rows of the k best live cases per query, best first: (Q, N) -> Q arrays.

    Ties go to the lower id, in whatever order the rows are. Fewer than k live cases give fewer
    rows; an empty bank gives none.

    Raises:
        InvalidInput: k below 1.
        NonFiniteScore: a live case's score is NaN or infinite; the message names query and case.
    """
    if k < 1:
        raise InvalidInput(f"k must be at least 1, got {k}")
    rows = np.flatnonzero(live)  # (L,)
    return [_best(per_query[rows], ids, rows, k, number) for number, per_query in enumerate(scores)]


def shape(vectors: Vectors) -> tuple[int, int]:
    """(N, D) of vectors in chunks.

    Raises:
        InvalidInput: no chunk at all, or chunks of different widths.
    """
    chunks = _chunks(vectors)
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
    for chunk in _chunks(vectors):
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
    chunks = _chunks(vectors)
    out = np.empty((len(rows), shape(vectors)[1]), dtype=np.float32)
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])[:-1]
    # Of equal starts, which an empty chunk makes, the last holds the row.
    homes = np.searchsorted(starts, rows, side="right") - 1
    for home in np.unique(homes):
        here = homes == home
        out[here] = chunks[home][rows[here] - starts[home]]
    return out


def _chunks(vectors: Vectors) -> Sequence[Array]:
    return [vectors] if isinstance(vectors, np.ndarray) else vectors


def _best(scores: Floats, ids: Ids, rows: NDArray[np.intp], k: int, number: int) -> Ids:
    finite = np.isfinite(scores)
    if not finite.all():
        culprit = int(np.flatnonzero(~finite)[0])
        raise NonFiniteScore(
            f"query {number} and case {ids[rows[culprit]]} score {scores[culprit]}: the model or "
            "a stored vector of this case is broken; embed the bank again, or load another artifact"
        )
    if k < len(scores):
        # Every score that ties with the k-th stays in, for the ids to decide.
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        rows, scores = rows[scores >= kth], scores[scores >= kth]
    order = np.lexsort((ids[rows], -scores))[:k]
    return rows[order].astype(np.int64)
