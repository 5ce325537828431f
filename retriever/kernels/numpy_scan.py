"""The exact scan in numpy: for machines without numba, and for heads too narrow to be worth it."""

from __future__ import annotations

import numpy as np

from retriever.head import Head
from retriever.kernels import reference
from retriever.kernels.rescoring import Best, Bound, bound, exact_logits, ranked
from retriever.types import Block, Bools, Floats, Ids
from retriever.vectors import Vectors, shape, widened

#: Scores held at a time, 64 MiB of them.
_SCORES = 1 << 24
#: Candidates beyond k, so that near ties do not need a second look.
_SPARE = 16


class NumpyScanner:
    """Fulfils `scan.Scanner`, reading the bank's own vectors on one thread."""

    def __init__(self, reason: str = "asked for") -> None:
        self._reason = reason

    def top_k(
        self,
        block: Block,
        head: Head,
        queries: Floats,
        eligible: Bools,
        k: int,
        *,
        rising: bool = True,
    ) -> list[Best]:
        """See `scan.Scanner`."""
        vectors = reference.projections(block, head, queries, k)
        return best(head, vectors, queries, eligible, block.ids, k, rising)

    def logits(self, block: Block, head: Head, queries: Floats) -> Floats:
        """See `scan.Scanner`."""
        return reference.logits(head, reference.projections(block, head, queries), queries)

    def drop(self, namespace: str) -> None:
        """Nothing is kept."""

    def accept(self, namespace: str, version: int) -> None:
        """Nothing is kept."""

    def warm_up(self, head: Head) -> None:
        """Nothing to compile."""

    def describe(self) -> str:
        """See `scan.Scanner`."""
        return f"numpy, 1 thread, from the bank's vectors ({self._reason})"


def best(
    head: Head,
    vectors: Vectors,
    queries: Floats,
    eligible: Bools,
    ids: Ids,
    k: int,
    rising: bool = True,
) -> list[Best]:
    """The k best eligible rows for each query: (N, W), (Q, D + R), (N,), (N,) -> Q of (<=k,)."""
    rows = np.flatnonzero(eligible).astype(np.int64)
    norms = _norms(vectors)[rows] if len(rows) > k + _SPARE else None
    group = max(1, _SCORES // max(1, shape(vectors)[1]))
    found = []
    for first in range(0, len(queries), group):
        some = queries[first : first + group]
        scores = reference.logits(head, vectors, some) if norms is not None else None
        limits = bound(head, some)
        for place, query in enumerate(some):
            near = rows
            number = first + place
            if scores is not None and norms is not None:
                upper = _upper(scores[place, rows], norms, limits, place, rising)
                near = _near(head, vectors, query, rows, upper, k, rising)
            exact = exact_logits(head, vectors, query, near)
            found.append(ranked(exact, near, ids, k, rising, number=number))
    return found


def _upper(
    scores: Floats, norms: Floats, limits: Bound, place: int, rising: bool
) -> reference.Doubles:
    """The most that each row may score in truth: (L,); infinity where float32 fails."""
    with np.errstate(over="ignore", invalid="ignore"):
        signed = (scores if rising else -scores).astype(np.float64)
        upper = signed + limits.slope[place] * norms + limits.fixed[place]
        return np.where(np.isnan(upper), np.inf, upper)


def _near(
    head: Head,
    vectors: Vectors,
    query: Floats,
    rows: Ids,
    upper: reference.Doubles,
    k: int,
    rising: bool,
) -> Ids:
    """Rows among which the k best certainly are."""
    first = np.argpartition(-upper, k)[:k]
    exact = exact_logits(head, vectors, query, rows[first])
    kth = (exact if rising else -exact).min()
    # Not `upper >= kth`: a logit that is no number lets every row stay, to be found and named.
    near = ~(upper < kth)
    near[first] = True  # whatever the bound, k rows are an answer
    return np.asarray(rows[near], dtype=np.int64)


def _norms(vectors: Vectors) -> Floats:
    """(N, W) -> (N,) the length of every vector; infinity where float32 cannot hold it."""
    norms = np.empty(shape(vectors)[0], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start, block in widened(vectors):
            out = norms[start : start + len(block)]
            np.sqrt(np.einsum("bw,bw->b", block, block), out=out)
    return norms
