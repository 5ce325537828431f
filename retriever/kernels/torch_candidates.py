"""From scores on a GPU to the rows that a search must look at exactly.

A row is left out only where its score is below the k-th best by more than twice what either may be
off: nothing else can be proven from float32 scores, and nothing else is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retriever.head import Head
from retriever.kernels.rescoring import bound
from retriever.kernels.torch_kernels import GROUP, Prepared
from retriever.kernels.torch_resident import Resident
from retriever.types import Block, Bools, Floats, Ids

#: Candidates beyond k, so that near ties do not need a second look.
SPARE = 24
#: Scores that may be written one by one; of more, the best of each group is.
DIRECT = 1 << 20
#: Floats on the device at a time, 256 MiB of them, for the scores of some queries and what is
#: chosen from them; one query's may be more.
SCORES = 1 << 26
#: Floats a candidate takes: its score and its row, and both once more while they are sorted.
CHOSEN = 6


class Candidates(NamedTuple):
    """The highest scores of Q queries, on the host; what is in no row here is at most `ceiling`."""

    rows: Ids  # (Q, C)
    scores: Floats  # (Q, C) falling
    ceiling: Floats  # (Q,)


class Search:
    """One call of `top_k` on the device: from Q queries to the rows that may be among the best."""

    def __init__(
        self, run: Callable[..., Tensor], copy: Resident, block: Block, eligible: Bools
    ) -> None:
        assert copy.tiles is not None
        self._run, self._copy, self._tiles = run, copy, copy.tiles
        self._rows = len(block.ids)
        self._live = copy.mask(block, eligible)

    def near(self, head: Head, queries: Floats, k: int, rising: bool) -> list[Ids]:
        """For each query, rows among which its k best certainly are."""
        groups = -(-self._rows // GROUP)
        direct = len(queries) * self._rows <= DIRECT or groups <= k + SPARE
        chosen = CHOSEN * min(k + SPARE, self._rows)
        each = self._rows if direct else groups + (k + SPARE) * GROUP
        step = max(1, SCORES // (each + chosen))
        found: list[Ids] = []
        for start in range(0, len(queries), step):
            found += self._near(head, queries[start : start + step], k, rising, direct)
        return found

    def _near(self, head: Head, queries: Floats, k: int, rising: bool, direct: bool) -> list[Ids]:
        query = Prepared.of(head, queries, rising, self._tiles.device)
        group = 1 if direct else GROUP
        # (Q, N), or the best of each group: (Q, N / 32).
        coarse = self._run("scores", self._tiles, query, self._live, self._rows, group)
        best = self._best(query, coarse, k + SPARE, direct)
        limits = bound(head, queries)
        with np.errstate(over="ignore", invalid="ignore"):
            off = limits.slope * (self._copy.longest + self._copy.furthest) + limits.fixed
            off += limits.reach * self._copy.furthest  # (Q,)
            numbers = np.isfinite(best.scores)
            kth = np.cumsum(numbers, axis=1) == k  # from the k-th number on; the first is it
            place = kth.argmax(axis=1)
            floor = best.scores[np.arange(len(queries)), place].astype(np.float64) - 2 * off
        # What is no number, bound or score, keeps every row: float64 then finds what is broken.
        floor = np.where(kth.any(axis=1) & ~np.isnan(floor), floor, -np.inf)
        found = []
        for number, lowest in enumerate(floor):
            if best.ceiling[number] == -np.inf or best.ceiling[number] < lowest:
                scores = best.scores[number]
                found.append(best.rows[number][(scores >= lowest) & (scores > -np.inf)])
            else:
                one = Prepared.of(head, queries[number : number + 1], rising, self._tiles.device)
                found.append(self._all_above(one, coarse[number], lowest, direct))
        return found

    def _best(self, query: Prepared, coarse: Tensor, count: int, direct: bool) -> Candidates:
        best = coarse.topk(min(count, coarse.shape[1]), dim=1)
        rows, values = best.indices, best.values
        left = values[:, -1:] if best.values.shape[1] < coarse.shape[1] else None
        if not direct:
            fine = self._run("picked", self._tiles, query, self._live, self._rows, rows)
            top = fine.topk(min(count, fine.shape[1]), dim=1)
            groups = rows.gather(1, top.indices // GROUP)
            rows, values = groups * GROUP + top.indices % GROUP, top.values
            worst = values[:, -1:]
            left = worst if left is None else torch.maximum(left, worst)
        if left is None:
            left = torch.full_like(values[:, :1], -torch.inf)
        moved = torch.cat([values, left], dim=1).cpu().numpy()
        return Candidates(rows.cpu().numpy(), moved[:, :-1], moved[:, -1])

    def _all_above(self, one: Prepared, coarse: Tensor, floor: float, direct: bool) -> Ids:
        """Every row that scores at least so much: for near ties, and bounds that prove little."""
        with np.errstate(over="ignore"):
            lowest = float(np.nextafter(np.float32(floor), np.float32(-np.inf)))
        places = ((coarse >= lowest) & (coarse > -torch.inf)).nonzero()[:, 0]
        if direct:
            found: Ids = places.cpu().numpy()
            return found
        rows = [np.empty(0, np.int64)]
        step = max(1, SCORES // (CHOSEN * GROUP))
        for start in range(0, len(places), step):
            groups = places[start : start + step]
            fine = self._run("picked", self._tiles, one, self._live, self._rows, groups[None])[0]
            inside = ((fine >= lowest) & (fine > -torch.inf)).nonzero()[:, 0]
            rows.append((groups[inside // GROUP] * GROUP + inside % GROUP).cpu().numpy())
        return np.concatenate(rows)
