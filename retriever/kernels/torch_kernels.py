"""Scores of tiles of rows in plain torch: what runs where Triton cannot, and how a call looks.

A tile keeps its rows side by side, value by value: (W, 256). `triton_scan` has the same two
functions for the same arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retriever.head import Head
from retriever.types import Array, Floats

#: Rows that lie side by side, and rows of which one best score is kept.
TILE, GROUP = 256, 32
#: Queries that share what is read, once there is more than one.
QUERIES = 16
#: Floats of a temporary, 64 MiB of them (two or three are alive at a time, whatever Q and N are),
#: and rows gathered at a time.
TEMPORARY, ROWS = 1 << 24, 8192
#: Floats: 256 bytes, more than any load of a kernel needs.
ALIGNED = 64


class Prepared(NamedTuple):
    """A head and Q queries on the device, laid out for the kernels, in `padded` columns.

    A kernel adds up weight · max(P, shift), factor · r, the case's bias and the constant.
    """

    hidden: int
    bias: bool
    rank: int
    asked: int  # Q
    block: int  # queries of one program; divides `padded`
    padded: int
    sign: float  # -1 where the lowest logits are the best
    weight: Tensor  # (D,)
    shift: Tensor  # (D, padded): -a
    factor: Tensor  # (R, padded): s
    constant: Tensor  # (padded,): Σ weight · a + offset

    @classmethod
    def of(cls, head: Head, queries: Floats, rising: bool, device: torch.device) -> Prepared:
        """(Q, D + R), Q at least 1."""
        count = len(queries)
        block = 1 if count == 1 else QUERIES
        columns = np.zeros((head.query_width, -(-count // block) * block), np.float32)
        columns[:, :count] = queries.T
        shifts, factors = columns[: head.hidden], columns[head.hidden :]
        with np.errstate(over="ignore", invalid="ignore"):
            constant = head.weight.astype(np.float64) @ shifts.astype(np.float64) + head.offset
        moved = _moved([head.weight, -shifts, factors, constant], device)
        sizes = (head.hidden, head.bias, head.rank, count, block, columns.shape[1])
        return cls(*sizes, 1.0 if rising else -1.0, *moved)


def _moved(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """Arrays to the device as float32, in one transfer, each where Triton likes it to begin."""
    starts = np.cumsum([0, *(-(-array.size // ALIGNED) * ALIGNED for array in arrays)])
    packed = np.zeros(starts[-1], np.float32)
    with np.errstate(over="ignore"):
        for array, start in zip(arrays, starts, strict=False):
            packed[start : start + array.size] = array.ravel()
    there = torch.from_numpy(packed).to(device)
    return [
        there[start : start + array.size].view(array.shape)
        for array, start in zip(arrays, starts.tolist(), strict=False)
    ]


def scores(tiles: Tensor, query: Prepared, live: Tensor | None, rows: int, group: int) -> Tensor:
    """Score every row in plain torch: (tiles, W, TILE), (rows,) -> (Q, rows) or (Q, groups).

    Beside what it returns it holds `TEMPORARY`: groups are reduced part by part.

    Args:
        tiles: the vectors, in any floating type.
        query: of which the first Q columns count.
        live: uint8, which rows may be found; not read with group 0.
        rows: how many rows there are; the last tile may be longer.
        group: 0 gives logits as they are. 1 gives what `_marked` makes of them; more, the highest
            of that of each so many rows.
    """
    used, each = -(-rows // TILE), max(1, group)
    size = TILE // each  # of what is written for a tile
    out = torch.empty((query.asked, used * size), dtype=torch.float32, device=tiles.device)
    step = max(1, TEMPORARY // (tiles.shape[1] * TILE))
    for start in range(0, used, step):
        part = tiles[start : min(start + step, used)].float()
        end = start + len(part)
        inside = torch.zeros(len(part) * TILE, dtype=torch.bool, device=tiles.device)
        if live is not None:
            some = live[start * TILE : min(rows, end * TILE)]
            inside[: len(some)] = some != 0
        for number, row in enumerate(out):
            found = _logits(part, query, number).reshape(-1)
            if group:
                found = _marked(found, query.sign, inside).view(-1, each).amax(dim=1)
            row[start * size : end * size] = found
    return out if group > 1 else out[:, :rows]


def picked(tiles: Tensor, query: Prepared, live: Tensor, rows: int, groups: Tensor) -> Tensor:
    """Score the rows of other groups for each query, in plain torch: (Q, C) -> (Q, C * GROUP)."""
    steps = torch.arange(GROUP, device=tiles.device)
    size = (len(groups), groups.shape[1] * GROUP)
    out = torch.empty(size, dtype=torch.float32, device=tiles.device)
    for number, own in enumerate(groups):
        for start in range(0, len(own), ROWS // GROUP):
            picks = (own[start : start + ROWS // GROUP, None] * GROUP + steps).view(-1)
            some = picks.clamp(max=rows - 1)
            found = tiles[some // TILE, :, some % TILE].float().T[None]  # (1, W, C)
            inside = (picks < rows) & (live[some] != 0)
            place = slice(start * GROUP, start * GROUP + len(picks))
            out[number, place] = _marked(_logits(found, query, number)[0], query.sign, inside)
    return out


def _logits(part: Tensor, query: Prepared, number: int) -> Tensor:
    """(tiles, W, L) float32 -> (tiles, L), for one query."""
    hidden, first = query.hidden, query.hidden + query.bias
    terms = torch.maximum(part[:, :hidden], query.shift[:, number, None])
    # Not a matrix product, which would be allowed to round its operands to TF32.
    total = terms.mul_(query.weight[:, None]).sum(dim=1)
    if query.bias:
        total += part[:, hidden]
    if query.rank:
        total += (part[:, first:] * query.factor[:, number, None]).sum(dim=1)
    total += query.constant[number]
    return total


def _marked(logits: Tensor, sign: float, found: Tensor) -> Tensor:
    """What may be ranked: -inf for rows not to be found, +inf for what is no number."""
    score = logits * sign
    score[~(score.abs() <= torch.finfo(torch.float32).max)] = torch.inf
    return score.masked_fill_(~found, -torch.inf)
