"""The scan on a GPU: two Triton kernels that read tiles of rows and write no (Q, N) matrix.

A tile keeps its rows side by side, value by value: (W, 256). Neighbouring lanes then read
neighbouring memory whatever D is, a program streams one contiguous piece, and a value costs one
maximum and one multiply-add, in float32 whatever the storage:

    Σ weight[d] · max(P[d], -a[d])        (the constant Σ weight · a is added once a query)

`scores` writes the best of each group of 32 rows; torch picks groups by it; `picked` scores the
rows of those. The k best rows lie in the k groups with the highest bests, so nothing is lost.

A program holds 16 queries x 256 rows in the registers of one warp, 128 sums a lane. Compiled for
sm_90 (Triton 3.3 to 3.7), nine of ten instructions of the loop are the maxima and multiply-adds.
"""

# Tensors of a kernel have no types of Python's.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from retriever.kernels.torch_kernels import GROUP, TILE, Prepared

#: Values of the inner loop written out, so that their loads are under way together. With 4 of them
#: ptxas takes 240 registers a lane for 16 queries, with 8 only 172: 11 warps a processor, not 8.
UNROLL = 8
WARPS = 1
#: Rows of one program of `picked`: for few programs, latency counts, not bandwidth.
PICKED_ROWS = 64

_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _logits(
    base,  # of the tiles, or of the one tile
    places,  # (1, L) of the rows' first values
    weight,  # (D,)
    shift,  # (D, stride): -a, a column a query
    factor,  # (R, stride): s
    constant,  # (stride,)
    columns,  # (Q, 1) of the queries
    stride,
    Q: tl.constexpr,
    L: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    BIAS: tl.constexpr,
    RANK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The logits of some rows for some queries: (Q, L)."""
    total = tl.zeros((Q, L), tl.float32)
    # Left to itself, tl.maximum takes the number beside a NaN, and a broken case would be ranked.
    for start in range(0, D - D % UNROLL, UNROLL):
        for step in tl.static_range(UNROLL):
            d = start + step
            p = tl.load(base + d * T + places).to(tl.float32)
            a = tl.load(shift + d * stride + columns)
            total += tl.load(weight + d) * tl.maximum(p, a, propagate_nan=tl.PropagateNan.ALL)
    for d in range(D - D % UNROLL, D):
        p = tl.load(base + d * T + places).to(tl.float32)
        a = tl.load(shift + d * stride + columns)
        total += tl.load(weight + d) * tl.maximum(p, a, propagate_nan=tl.PropagateNan.ALL)
    for r in range(RANK):
        p = tl.load(base + (D + BIAS + r) * T + places).to(tl.float32)
        total += p * tl.load(factor + r * stride + columns)
    if BIAS:
        total += tl.load(base + D * T + places).to(tl.float32)
    return total + tl.load(constant + columns)


@triton.jit
def _marked(logits, sign, found):
    """What a search may rank: -inf for rows that it must not find, +inf for what is no number."""
    score = logits * sign
    score = tl.where(tl.abs(score) <= _LARGEST, score, float("inf"))
    return tl.where(found, score, float("-inf"))


@triton.jit(do_not_specialize=["rows", "width"])
def _scores(
    tiles, weight, shift, factor, constant, live, out, sign, rows, stride, width,
    Q: tl.constexpr, T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    BIAS: tl.constexpr, RANK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile for Q queries; GROUP = 0 writes logits as they are, 1 marked, more the groups' best.

    Programs that run together share a tile in the cache: queries vary first. The grid has one axis,
    for the others end at 65,535.
    """
    blocks = stride // Q
    first = tl.program_id(0) % blocks * Q
    tile = (tl.program_id(0) // blocks).to(tl.int64)
    lanes = tl.arange(0, T)[None, :]  # (1, T)
    columns = first + tl.arange(0, Q)[:, None]  # (Q, 1)
    row = tile * T + lanes
    inside = row < rows
    found = inside
    if GROUP > 0:
        found = tl.load(live + row, mask=inside, other=0) != 0
    score = tl.full((Q, T), float("-inf"), tl.float32)
    if tl.max(found.to(tl.int32)) > 0:  # else a whole tile that a filter leaves out
        score = _logits(
            tiles + tile * (W * T), lanes, weight, shift, factor, constant, columns, stride,
            Q, T, T, D, BIAS, RANK, UNROLL,
        )  # fmt: skip
        if GROUP > 0:
            score = _marked(score, sign, found)
    place = out + columns.to(tl.int64) * width
    if GROUP > 1:
        groups: tl.constexpr = T // GROUP
        best = tl.max(tl.reshape(score, (Q, groups, GROUP)), axis=2)
        tl.store(place + tile * groups + tl.arange(0, groups)[None, :], best)
    else:
        tl.store(place + row, score, mask=inside)


@triton.jit(do_not_specialize=["rows", "picks"])
def _picked(
    tiles, weight, shift, factor, constant, live, groups, out, sign, rows, stride, picks,
    L: tl.constexpr, T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    BIAS: tl.constexpr, RANK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The rows of some groups, other ones for each query: (Q, picks) -> (Q, picks * GROUP)."""
    blocks = tl.cdiv(picks * GROUP, L)
    query = tl.program_id(0) // blocks
    lanes = tl.program_id(0) % blocks * L + tl.arange(0, L)[None, :]  # (1, L)
    inside = lanes < picks * GROUP
    group = tl.load(groups + query.to(tl.int64) * picks + lanes // GROUP, mask=inside, other=0)
    row = group * GROUP + lanes % GROUP  # int64
    inside = inside & (row < rows)
    found = tl.load(live + row, mask=inside, other=0) != 0
    columns = query + tl.zeros((1, 1), tl.int32)
    logits = _logits(
        tiles, row // T * (W * T) + row % T, weight, shift, factor, constant, columns, stride,
        1, L, T, D, BIAS, RANK, UNROLL,
    )  # fmt: skip
    place = out + query.to(tl.int64) * picks * GROUP + lanes
    tl.store(place, _marked(logits, sign, found), mask=lanes < picks * GROUP)


def scores(tiles: Tensor, query: Prepared, live: Tensor | None, rows: int, group: int) -> Tensor:
    """See `torch_kernels.scores`."""
    count = -(-rows // TILE)
    width = rows if group < 2 else count * (TILE // group)
    out = torch.empty((query.padded, width), dtype=torch.float32, device=tiles.device)
    _scores[(query.padded // query.block * count,)](
        tiles, query.weight, query.shift, query.factor, query.constant,
        query.constant if live is None else live, out, query.sign, rows, query.padded, width,
        Q=query.block, T=TILE, GROUP=group, D=query.hidden, W=tiles.shape[1], BIAS=query.bias,
        RANK=query.rank, UNROLL=UNROLL, num_warps=WARPS,
    )  # fmt: skip
    return out[: query.asked]


def picked(tiles: Tensor, query: Prepared, live: Tensor, rows: int, groups: Tensor) -> Tensor:
    """See `torch_kernels.picked`."""
    groups, picks = groups.contiguous(), groups.shape[1]
    out = torch.empty((query.asked, picks * GROUP), dtype=torch.float32, device=tiles.device)
    _picked[(-(-picks * GROUP // PICKED_ROWS) * query.asked,)](
        tiles, query.weight, query.shift, query.factor, query.constant, live, groups, out,
        query.sign, rows, query.padded, picks,
        L=PICKED_ROWS, T=TILE, GROUP=GROUP, D=query.hidden, W=tiles.shape[1], BIAS=query.bias,
        RANK=query.rank, UNROLL=UNROLL, num_warps=WARPS,
    )  # fmt: skip
    return out
