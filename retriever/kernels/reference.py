"""The head in numpy: what runs where numba cannot, and the arithmetic of the last digit.

`exact` is the definition of a score: float64, every sum in one fixed order, so that a pair's logit
is the same bits on every machine, alone or among others, by numpy or by the compiled twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.errors import IndexUnavailable, InvalidInput
from retriever.head import Head
from retriever.types import Array, Block, Floats
from retriever.vectors import Vectors, block_rows, shape, widened

Doubles: TypeAlias = NDArray[np.float64]

#: Running sums of `exact`: value i goes to sum i mod 8.
LANES = 8


def check(head: Head, vectors: Vectors, queries: Floats) -> tuple[int, int]:
    """(N, W) of the cases' vectors.

    Raises:
        InvalidInput: a width does not fit the head; all of them are named.
    """
    count, width = shape(vectors)
    if queries.ndim != 2 or (width, queries.shape[1]) != (head.case_width, head.query_width):
        raise InvalidInput(
            f"cases ({count}, {width}) and queries {queries.shape} must be (N, {head.case_width}) "
            f"and (Q, {head.query_width}) for a head of {head.hidden} hidden units, rank "
            f"{head.rank} and {'a' if head.bias else 'no'} bias"
        )
    return count, width


def projections(block: Block, head: Head, queries: Floats, k: int = 1) -> Sequence[Array]:
    """The vectors of a block that a scan reads, once everything about the call is found right.

    Raises:
        IndexUnavailable: the block has none.
        InvalidInput: k below 1, or a width that does not fit the head.
    """
    if k < 1:
        raise InvalidInput(f"k must be at least 1, got {k}")
    if block.projections is None:
        raise IndexUnavailable(
            f"namespace {block.namespace!r} has no projections; open the bank with CaseProjector"
        )
    check(head, block.projections, queries)
    return block.projections


def logits(head: Head, vectors: Vectors, queries: Floats) -> Floats:
    """Score every case for every query: (N, W), (Q, D + R) -> (Q, N) float32.

    No (Q, N, D) temporary; overflow is not hidden: it shows as infinity or NaN.
    """
    count, width = check(head, vectors, queries)
    hidden = head.hidden
    scores = np.empty((len(queries), count), dtype=np.float32)
    buffer = np.empty((block_rows(width), hidden), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start, block in widened(vectors):  # (B, W)
            sums = buffer[: len(block)]
            for query, row in zip(queries, scores, strict=True):
                out = row[start : start + len(block)]
                np.add(block[:, :hidden], query[:hidden], out=sums)
                np.maximum(sums, 0.0, out=sums)
                # Not `sums @ weight`: BLAS rounds a row by its place in the matrix, and equal
                # cases would then not tie. Within 15 % of its speed at D = 512.
                np.einsum("bd,d->b", sums, head.weight, out=out)
                if head.bias:
                    out += block[:, hidden]
                if head.rank:
                    out += np.einsum("br,r->b", block[:, -head.rank :], query[hidden:])
        scores += np.float32(head.offset)
    return scores


def exact(head: Head, cases: Floats, queries: Floats) -> Doubles:
    """The logits of C pairs in float64, in the one order: (C, W), (C or 1, D + R) -> (C,)."""
    hidden = head.hidden
    with np.errstate(over="ignore", invalid="ignore"):
        terms = cases[:, :hidden].astype(np.float64)
        terms += queries[:, :hidden]
        np.maximum(terms, 0.0, out=terms)
        terms *= head.weight
        total = _summed(terms)
        if head.bias:
            total += cases[:, hidden]
        if head.rank:
            products = cases[:, -head.rank :].astype(np.float64)
            products *= queries[:, hidden:]
            total += _summed(products)
        total += head.offset
    return total


def _summed(terms: Doubles) -> Doubles:
    """(C, D) -> (C,): lane by lane, then the eight lanes as a tree."""
    count, width = terms.shape
    blocks = -(-width // LANES)
    if width % LANES:
        padded = np.zeros((count, blocks * LANES))
        padded[:, :width] = terms
        terms = padded
    # Along an axis that is not the last, numpy adds one after the other.
    lanes = np.add.reduce(terms.reshape(count, blocks, LANES), axis=1)  # (C, 8)
    fours = lanes[:, :4] + lanes[:, 4:]
    twos = fours[:, :2] + fours[:, 2:]
    total: Doubles = twos[:, 0] + twos[:, 1]
    return total
