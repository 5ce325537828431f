"""From a mode's rankings to hits: the plain best, or what `Mmr`, `Quota` and policies make of them.

A plain answer is the k best, and `Quota` the best of each group, out of the whole bank. `Mmr` and
the policies choose out of a pool; see there. With a quota every group that may be shown has a pool
of its own, so that a rare one is not crowded out; a pool holds k cases where there are so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.modes.mode import Asked, Mode, Need, Scope
from retriever.ranking.diversity import Mmr, Quota, directions
from retriever.ranking.exploration import Exploration
from retriever.ranking.ranked import Doubles, Ranked, merged
from retriever.ranking.selection import Candidates, Similarity, select
from retriever.scorer import probabilities
from retriever.types import Calibration, Hit, Ids

_GREEDY = Exploration("greedy")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of an answer beside its mode.

    Attributes:
        k: how many hits, at most.
        min_score: hits below it are not there to be chosen.
        mmr: unlike cases, or None.
        quota: successes and failures, or None.
        exploration: a policy, or None.
    """

    k: int
    min_score: float | None = None
    mmr: Mmr | None = None
    quota: Quota | None = None
    exploration: Exploration | None = None

    @property
    def plain(self) -> bool:
        """Whether the best are shown, in the order of their scores."""
        chance = self.exploration is not None and self.exploration.policy != "greedy"
        return self.mmr is None and not chance

    @property
    def pool(self) -> int | None:
        """How many cases to choose among; None: all that the mode can name."""
        pool = None if self.exploration is None else self.exploration.pool
        if pool is not None:
            return max(pool, self.k)
        return None if self.mmr is None else self.mmr.size(self.k)


def answered(
    mode: Mode,
    scope: Scope,
    queries: Sequence[str],
    wanted: Wanted,
    calibration: Calibration | None,
) -> list[list[Hit]]:
    """The hits of each query: Q queries -> Q lists of at most k."""
    mode.check(scope.block)
    if not scope.eligible.any():
        return [[] for _ in queries]
    asked = mode.ask(queries)
    groups, limits = _groups(scope, wanted)
    if wanted.plain and (wanted.quota is None or not mode.pooled):
        ranked = [
            found.at_least(wanted.min_score)
            for found in _best(mode, scope, asked, limits, groups, wanted.k)
        ]
        return [_hits(scope, found, np.ones(len(found.rows)), calibration) for found in ranked]
    hits = []
    for number, query in enumerate(queries):
        found, propensities = _chosen(
            mode, scope, asked[number : number + 1], query, wanted, limits, groups
        )
        hits.append(_hits(scope, found, propensities, calibration))
    return hits


def _groups(scope: Scope, wanted: Wanted) -> tuple[NDArray[np.int8], tuple[int, ...]]:
    """Which group every row belongs to, (N,), and the most that may be chosen of each."""
    if wanted.quota is None:
        return np.zeros(len(scope.block.ids), np.int8), (wanted.k,)
    groups = wanted.quota.groups(scope.block.columns.outcome)
    return groups, wanted.quota.limits(wanted.k)


def _best(
    mode: Mode,
    scope: Scope,
    asked: Asked,
    limits: Sequence[int],
    groups: NDArray[np.int8],
    count: int,
) -> list[Ranked]:
    """The best `count` of each query that the limits allow."""
    if len(limits) == 1:
        return mode.best(scope, asked, count)
    of_groups = [
        mode.best(scope.narrowed(groups == group), asked, limit)
        for group, limit in enumerate(limits)
        if limit
    ]
    return [merged(own).best(count, scope.block.ids) for own in zip(*of_groups, strict=True)]


def _chosen(
    mode: Mode,
    scope: Scope,
    asked: Asked,
    query: str,
    wanted: Wanted,
    limits: Sequence[int],
    groups: NDArray[np.int8],
) -> tuple[Ranked, Doubles]:
    """What is chosen for one query, by rank, and with which chance at each."""
    pool = wanted.pool
    if pool is None or mode.pooled:
        parts = [groups == group for group, limit in enumerate(limits) if limit]
        need = Need(
            wanted.k if pool is None else pool,
            () if wanted.quota is None else parts,
            wanted.min_score,
        )
        found = mode.whole(scope, asked, need)
        if pool is not None:
            found = merged(
                [
                    found.at(np.flatnonzero(part[found.rows])).best(pool, scope.block.ids)
                    for part in parts
                ]
            )
    else:
        # With a quota, so many of each group that may be shown: else there might be none of one.
        shares = [pool if limit else 0 for limit in limits]
        found = _best(mode, scope, asked, shares, groups, sum(shares))[0]
    found = found.at_least(wanted.min_score)
    # By id, so that neither ties nor random numbers hang on where a case happens to lie.
    found = found.at(np.argsort(scope.block.ids[found.rows], kind="stable"))
    exploration = wanted.exploration or _GREEDY
    choice = select(
        Candidates(found.utilities, groups[found.rows], limits),
        wanted.k,
        exploration,
        exploration.stream(query),
        wanted.mmr,
        None if wanted.mmr is None else _similarity(scope, found.rows),
    )
    shown = found.at(choice.places)
    return (shown if pool else mode.exactly(scope, asked, shown)), choice.propensities


def _similarity(scope: Scope, rows: Ids) -> Similarity:
    units = directions(scope.block, rows)  # (P, E)

    def to(place: int) -> Doubles:
        # einsum, not BLAS, whose rounding depends on a row's place: equal cases must tie.
        return np.asarray(np.einsum("pe,e->p", units, units[place]), np.float64)

    return to


def _hits(
    scope: Scope, found: Ranked, propensities: Doubles, calibration: Calibration | None
) -> list[Hit]:
    # Whole columns as Python's numbers: one by one, they would take as long as the scan of a
    # small bank.
    unknown: list[Any] = [None] * len(found.rows)
    ids, scores = scope.block.ids[found.rows].tolist(), found.scores.tolist()
    logits = chances = parts = unknown
    if found.logits is not None:
        logits = found.logits.tolist()
        if calibration is not None:
            chances = probabilities(found.logits, calibration).tolist()
    if found.parts:
        values = zip(*(part.tolist() for part in found.parts.values()), strict=True)
        parts = [dict(zip(found.parts, own, strict=True)) for own in values]
    ranks = range(1, len(ids) + 1)
    columns = (ids, scores, ranks, logits, chances, propensities.tolist(), parts)
    return [Hit(*values) for values in zip(*columns, strict=True)]
