"""Which rows are best: by score, ties to the lower id, wherever they lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput, NonFiniteScore
from retriever.types import Bools, Floats, Ids


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
