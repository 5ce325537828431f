"""From a mode's rankings to hits: the plain best, or what `Mmr`, `Quota` and policies make of them.

A plain answer is the k best, and `Quota` the best of each group, out of the whole bank. `Mmr` and
the policies choose out of a pool; see there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever.modes.mode import Asked, Mode, Scope
from retriever.ranking.diversity import Mmr, Quota, directions
from retriever.ranking.exploration import Exploration
from retriever.ranking.ranked import Doubles, Ranked
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
        found = mode.whole(scope, asked, 0 if pool is None else pool)
        if pool is not None:
            found = found.best(pool, scope.block.ids)
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


def merged(parts: Sequence[Ranked]) -> Ranked:
    """Several rankings one after the other; at least one, and all of one mode."""
    first = parts[0]
    return Ranked(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.utilities for part in parts]),
        np.concatenate([part.scores for part in parts]),
        None
        if first.logits is None
        else np.concatenate([part.logits for part in parts if part.logits is not None]),
        {name: np.concatenate([part.parts[name] for part in parts]) for name in first.parts},
    )


def _hits(
    scope: Scope, found: Ranked, propensities: Doubles, calibration: Calibration | None
) -> list[Hit]:
    chances = None
    if found.logits is not None and calibration is not None:
        chances = probabilities(found.logits, calibration)
    return [
        Hit(
            id=int(scope.block.ids[row]),
            score=float(found.scores[place]),
            rank=place + 1,
            logit=None if found.logits is None else float(found.logits[place]),
            probability=None if chances is None else float(chances[place]),
            propensity=float(propensities[place]),
            parts={name: float(part[place]) for name, part in found.parts.items()} or None,
        )
        for place, row in enumerate(found.rows)
    ]
