"""The exact scan: every case of a bank scored for every query, in numpy.

The head splits (Memento's classifier, softmax class 1), so that a case's half is computed once:

    P_c = W_case h_case + b1        cached per case
    a_q = W_query h_query           once per query
    logit(q, c) = weight · relu(P_c + a_q) + offset

No index can stand in for it, for it is no inner product. Equal cases get equal logits wherever they
lie in the bank, so that a tie is a tie and the lower id comes first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput, NonFiniteScore
from retriever.types import Bools, Floats, Ids

#: Floats of the working block, half a mebibyte: stays in the second-level cache, and was the
#: fastest of 16, 32, ... 512 rows at D = 512.
BLOCK_FLOATS = 1 << 17


def logits(projections: Floats, queries: Floats, weight: Floats, offset: float) -> Floats:
    """Score every case for every query: (N, D), (Q, D), (D,) -> (Q, N) logits.

    Overflow is not hidden: it shows as infinity or NaN, which `top_k` refuses.
    """
    count, width = projections.shape
    if queries.ndim != 2 or queries.shape[1] != width or weight.shape != (width,):
        raise InvalidInput(
            f"projections {projections.shape}, queries {queries.shape} and weight {weight.shape} "
            "must be (N, D), (Q, D) and (D,) with one D"
        )
    scores = np.empty((len(queries), count), dtype=np.float32)
    rows = max(1, BLOCK_FLOATS // max(1, width))
    buffer = np.empty((min(rows, count), width), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, count, rows):
            block = projections[start : start + rows]  # (B, D)
            hidden = buffer[: len(block)]
            for query, out in zip(queries, scores, strict=True):
                np.add(block, query, out=hidden)
                np.maximum(hidden, 0.0, out=hidden)
                # Not `hidden @ weight`: BLAS rounds a row by its place in the matrix, and equal
                # cases would then not tie. Within 15 % of its speed at D = 512.
                np.einsum("bd,d->b", hidden, weight, out=out[start : start + rows])
        scores += np.float32(offset)
    return scores


def top_k(scores: Floats, ids: Ids, live: Bools, k: int) -> list[Ids]:
    """The rows of the k best live cases per query, best first: (Q, N) -> Q arrays.

    Ties go to the lower id. Fewer than k live cases give fewer rows; an empty bank gives none.

    Raises:
        InvalidInput: k below 1.
        NonFiniteScore: a live case's score is NaN or infinite; the message names query and case.
    """
    if k < 1:
        raise InvalidInput(f"k must be at least 1, got {k}")
    rows = np.flatnonzero(live)  # (L,)
    return [_best(per_query[rows], ids, rows, k, number) for number, per_query in enumerate(scores)]


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
