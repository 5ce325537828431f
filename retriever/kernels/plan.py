"""A head and its queries as the tiles read them: padded to whole vectors, aligned, best is most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.head import Head
from retriever.kernels import compiled
from retriever.kernels.rescoring import gamma, lost
from retriever.types import Floats

_LINE = 64  # bytes of a cache line, and of the widest vector


@dataclass(frozen=True, slots=True)
class Part:
    """Some columns of a row, as vectors from front to back.

    A vector at the end that is not full begins earlier, where the row has the room, and counts
    values twice that have been counted: what stands beside them is 0. So nothing beyond the row is
    ever read.

    Attributes:
        vectors: how many.
        last: the column at which the last begins, from the part's own first.
        values: (V, vectors * lanes) what stands beside the columns; V is one or, made up to whole
            tiles, the queries.
    """

    vectors: int
    last: int
    values: Floats


@dataclass(frozen=True, slots=True)
class Plan:
    """Q queries against a head, for scores whose most is best (negated where least is).

    v(q, c) = Σ weight · max(P_c, shifts_q)  +  Σ factors_q · [b_c | r_c]  +  constant_q
    and, in exact arithmetic, v is at most
    v(q, c) + slope_q ‖v_c‖ + reach_q ‖v_c - stored_c‖ + fixed_q.
    """

    weight: Part
    shifts: Floats
    factors: Part
    constant: Floats
    slope: Floats
    reach: Floats
    fixed: Floats


def plan(
    head: Head, queries: Floats, lanes: int, tile: int, *, rising: bool, overlap: bool
) -> Plan:
    """For queries (Q, D + R), and tiles of so many lanes and queries.

    Args:
        head: the head.
        queries: their vectors.
        lanes: values of a vector.
        tile: queries of a tile; there are lines for a whole number of them.
        rising: False negates.
        overlap: whether the case's vector is one row of the bank, at least `lanes` long; else bias
            and product have a row of their own, padded to whole vectors.
    """
    count = len(queries)
    lines = -(-max(count, 1) // tile) * tile
    vectors, last, rest_vectors, rest_last = steps(head, lanes, overlap)
    beside = aligned((1 + lines, vectors * lanes))  # the weight, then the queries' shifts
    factors = aligned((lines, rest_vectors * lanes))
    limits = np.empty((4, count))
    # Copies, for what is read-only is another type to numba.
    compiled.planned(
        np.array(head.weight, np.float64, order="C"),
        np.array(queries, np.float64, order="C"),
        *(float(head.offset), head.bias, 1.0 if rising else -1.0),
        *(gamma(head), lost(head)),
        *((vectors - 1) * lanes, last, (rest_vectors - 1) * lanes, rest_last),
        *(beside, factors, limits),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        constant = limits[3].astype(np.float32)
        slope, reach, fixed = _up(limits[:3])
    return Plan(
        weight=Part(vectors, last, beside[:1]),
        shifts=beside[1:],
        factors=Part(rest_vectors, rest_last, factors),
        constant=constant,
        slope=slope,
        reach=reach,
        fixed=fixed,
    )


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Zeros that begin at a cache line."""
    memory = np.zeros(math.prod(shape) + _LINE, dtype)
    start = -memory.ctypes.data % _LINE // memory.itemsize
    values: NDArray[Any] = memory[start : start + math.prod(shape)].reshape(shape)
    return values


def steps(head: Head, lanes: int, overlap: bool) -> tuple[int, int, int, int]:
    """See `Part`: (vectors, last) of the hidden part, then of what follows it."""
    hidden = _laid_out(head.hidden, 0, lanes, overlap)
    return hidden + _laid_out(head.case_width - head.hidden, head.hidden, lanes, overlap)


def _laid_out(count: int, room: int, lanes: int, overlap: bool) -> tuple[int, int]:
    """How many vectors, and where the last begins, for columns with `room` columns before them."""
    vectors = -(-count // lanes)
    return vectors, max(count - lanes, -room) if overlap and count else (vectors - 1) * lanes


def _up(values: NDArray[np.float64]) -> Floats:
    """As float32, and not below."""
    found: Floats = np.nextafter(values.astype(np.float32), np.float32(np.inf))
    return found
