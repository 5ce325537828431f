"""Vectors of length one, made of what a bank holds: what cosine search compares.

Every function works row by row, and equal vectors give equal results wherever they lie.
"""

from __future__ import annotations

import numpy as np

from retriever.errors import IndexUnavailable, NonFiniteScore
from retriever.types import Block, Bools, Floats, Ids
from retriever.vectors import shape, taken, widened


def width(block: Block) -> int:
    """How many values a query vector of the block has.

    Raises:
        IndexUnavailable: the block has no embeddings.
    """
    if block.embeddings is None:
        raise IndexUnavailable(
            f"namespace {block.namespace!r} has no query embeddings; open the bank with a cosine "
            "encoder (cosine_encoder=FOLDER when serving), or search with mode='exact'"
        )
    return shape(block.embeddings)[1]


def units(block: Block, rows: Ids) -> Floats:
    """Some rows' vectors, of length one: (C,) -> (C, E)."""
    assert block.embeddings is not None
    return normalised(taken(block.embeddings, rows), block.ids[rows])


def scanned(block: Block, queries: Floats, eligible: Bools) -> Floats:
    """The cosines of every eligible row, zeros elsewhere: (U, E) -> (U, N)."""
    assert block.embeddings is not None
    cosines = np.zeros((len(queries), len(block.ids)), np.float32)
    for start, vectors in widened(block.embeddings):
        own = np.flatnonzero(eligible[start : start + len(vectors)])
        rows = normalised(vectors[own], block.ids[start + own])
        for query, out in zip(queries, cosines, strict=True):
            # einsum, not BLAS, whose rounding depends on a row's place: equal vectors must tie.
            out[start + own] = np.einsum("ce,e->c", rows, query)
    return cosines


def sound_units(block: Block, rows: Ids) -> tuple[Floats, Bools]:
    """As `units`, with zeros for what is no number, and which rows are none of that: (C,)."""
    assert block.embeddings is not None
    vectors = taken(block.embeddings, rows)
    # One broken value, and only that, breaks the sum: it is taken in float64.
    with np.errstate(invalid="ignore"):
        sound = np.isfinite(vectors.sum(axis=1, dtype=np.float64))
    vectors[~sound] = 0
    return normalised(vectors, block.ids[rows]), sound


def normalised(vectors: Floats, ids: Ids | None) -> Floats:
    """(N, E) -> (N, E) of length one; a zero vector stays zero, its cosine to anything is 0.

    Args:
        vectors: of the cases `ids`, or of queries.
        ids: for the message.
    """
    squares = np.einsum("ne,ne->n", vectors, vectors, dtype=np.float64)  # (N,)
    if not np.isfinite(squares).all():
        row = int(np.flatnonzero(~np.isfinite(squares))[0])
        what = f"query {row}" if ids is None else f"case {ids[row]}"
        raise NonFiniteScore(f"the vector of {what} holds NaN or infinity; embed its text again")
    lengths = np.where(squares == 0, 1.0, np.sqrt(squares))[:, None]
    unit = np.empty(vectors.shape, dtype=np.float32)
    return np.divide(vectors, lengths, out=unit, casting="same_kind")
