"""Two rankings made one: by what a model makes of a case, and by the words it shares with a query.

What is fused is a pool: the `depth` best cases of either side. A case of the pool that the words do
not match has lexical score 0. Both ways are of the literature:

* `zscore`: each side's scores, less their mean and divided by their standard deviation over the
  pool, are added with weights w and 1 - w. Montague & Croft, "Relevance score normalization for
  metasearch", CIKM 2001 (ZMUV); weighted as in Bruch, Gai & Ingber, "An analysis of fusion
  functions for hybrid retrieval", TOIS 2023. A side that gives every case of the pool the same
  score has deviation 0 and says nothing: its z is 0. Over the pool, not over the bank: of a
  million cases a few match a rare word, and over all of them their z would be in the hundreds,
  where the other side's are below 5. In a bank of at most `depth` cases the two are the same.
* `rrf`: w / (rrf_k + rank) summed over the two sides, ranks from 1 within a side's list; a case
  that a list does not have gets nothing from it. Cormack, Clarke & Büttcher, "Reciprocal rank
  fusion outperforms Condorcet and individual rank learning methods", SIGIR 2009, where rrf_k = 60
  and all weights are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retriever.errors import InvalidInput
from retriever.ranking.ranked import Doubles

METHODS = ("zscore", "rrf")
DENSE = ("exact", "cosine")


@dataclass(frozen=True, slots=True)
class Fusion:
    """How hybrid mode fuses.

    Attributes:
        method: `zscore` or `rrf`.
        weight: of the dense side, from 0 to 1; the lexical side has the rest.
        dense: the other side: `exact` or `cosine`; None takes exact where there is a trained
            retriever.
        depth: how many of its best cases each side puts into the pool (more, if more are asked
            for).
        rrf_k: the constant of `rrf`.
    """

    method: Literal["zscore", "rrf"] = "zscore"
    weight: float = 0.5
    dense: Literal["exact", "cosine"] | None = None
    depth: int = 200
    rrf_k: float = 60.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInput(f"fusion.method = {self.method!r}: one of {', '.join(METHODS)}")
        if not 0.0 <= self.weight <= 1.0:
            raise InvalidInput(f"fusion.weight = {self.weight}: from 0 to 1")
        if self.dense not in (None, *DENSE):
            raise InvalidInput(f"fusion.dense = {self.dense!r}: one of {', '.join(DENSE)}, or None")
        if self.depth < 1:
            raise InvalidInput(f"fusion.depth = {self.depth}: at least 1")
        if not (math.isfinite(self.rrf_k) and self.rrf_k >= 0):
            raise InvalidInput(f"fusion.rrf_k = {self.rrf_k}: a finite number, at least 0")

    def fused(self, dense: Side, lexical: Side) -> Doubles:
        """One score a case of the pool: (P,)."""
        if self.method == "zscore":
            return self.weight * zscores(dense.scores) + (1 - self.weight) * zscores(lexical.scores)
        return self.weight * self._reciprocal(dense) + (1 - self.weight) * self._reciprocal(lexical)

    def _reciprocal(self, side: Side) -> Doubles:
        return np.where(side.ranks > 0, 1.0 / (self.rrf_k + np.maximum(side.ranks, 1)), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side's view of the pool: (P,) scores, and ranks in its own list, 0 where not in it."""

    scores: Doubles
    ranks: Doubles


def zscores(values: Doubles) -> Doubles:
    """Mean 0, deviation 1 (of the population): (P,) -> (P,); all 0 where the deviation is 0."""
    if not len(values):
        return values
    centred = values - values.mean()
    deviation = math.sqrt(float(np.mean(centred**2)))
    # Equal values leave rounding errors behind, which must not be blown up to a ranking.
    if deviation <= 1e-12 * float(np.abs(values).max()):
        return np.zeros_like(values)
    return np.asarray(centred / deviation, np.float64)
