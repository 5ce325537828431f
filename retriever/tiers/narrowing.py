"""Of many candidates, the few that can be among the best: before they are scored in float64."""

from __future__ import annotations

import numpy as np

from retriever import scan
from retriever.head import Head
from retriever.kernels.rescoring import bound
from retriever.types import Floats, Ids
from retriever.vectors import Vectors, taken


def narrowed(
    head: Head, vectors: Vectors, query: Floats, rows: Ids, k: int, *, rising: bool = True
) -> Ids:
    """The candidates among which the k best certainly are: (N, W), (D + R,), (C,) -> (<=C,).

    Scored once in float32, which is several times as quick; a row is kept unless, with the kernel's
    error on both sides, k others are above it. What is no number is kept, for the exact score to
    report.

    Args:
        head: the head.
        vectors: the bank's own, in chunks.
        query: the query's vector.
        rows: the candidates.
        k: how many are wanted.
        rising: False where the lowest logits are.
    """
    if len(rows) <= k:
        return rows
    cases = taken(vectors, rows)  # (C, W)
    logits = scan.logits(head, cases, query[None])[0].astype(np.float64)  # (C,)
    if not rising:
        logits = -logits
    allowed = bound(head, query[None])
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("cw,cw->c", cases, cases).astype(np.float64))
        error = allowed.slope[0] * lengths + allowed.fixed[0]
        lowest, highest = logits - error, logits + error
    sound = np.isfinite(lowest) & np.isfinite(highest)
    lowest[~sound] = -np.inf
    kth = np.partition(lowest, len(lowest) - k)[len(lowest) - k]
    kept: Ids = rows[~sound | (highest >= kth)]
    return kept
