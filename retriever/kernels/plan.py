"""A head and its queries as the tiles read them: padded to whole vectors, aligned, best is most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.head import Head
from retriever.kernels.rescoring import bound
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
        values: (V, vectors * lanes) what stands beside the columns; V is one or the queries.
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
    shifts: Part
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
    sign = 1.0 if rising else -1.0
    hidden, count = head.hidden, len(queries)
    weight = sign * head.weight.astype(np.float64)
    lines = -(-max(count, 1) // tile) * tile
    shifts = np.zeros((lines, hidden), np.float32)
    shifts[:count] = -queries[:, :hidden]
    factors = np.zeros((lines, head.case_width - hidden), np.float32)
    factors[:count, : int(head.bias)] = sign
    factors[:count, int(head.bias) :] = sign * queries[:, hidden:]
    with np.errstate(over="ignore", invalid="ignore"):
        constant = (
            np.einsum("qd,d->q", queries[:, :hidden].astype(np.float64), weight)
            + sign * head.offset
        )
        limits = bound(head, queries)
        return Plan(
            weight=_part(weight[None], 0, lanes, overlap),
            shifts=_part(shifts, 0, lanes, overlap),
            factors=_part(factors, hidden, lanes, overlap),
            constant=constant.astype(np.float32),
            slope=_up(limits.slope),
            reach=_up(limits.reach),
            fixed=_up(limits.fixed),
        )


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Zeros that begin at a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    values: NDArray[Any] = memory[start : start + size].view(dtype).reshape(shape)
    return values


def _part(values: NDArray[Any], room: int, lanes: int, overlap: bool) -> Part:
    """Lay out columns that have `room` columns of the same row before them."""
    lines, count = values.shape
    vectors = -(-count // lanes)
    full = max(0, vectors - 1) * lanes
    last = max(count - lanes, -room) if overlap and count else full
    out = aligned((lines, vectors * lanes))
    out[:, :full] = values[:, :full]
    out[:, full + full - last : full + count - last] = values[:, full:]
    return Part(vectors, last, out)


def _up(values: NDArray[np.float64]) -> Floats:
    """As float32, and not below."""
    found: Floats = np.nextafter(values.astype(np.float32), np.float32(np.inf))
    return found
