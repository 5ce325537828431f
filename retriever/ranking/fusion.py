"""Two rankings made one: by what a model makes of a case, and by the words it shares with a query.

What is fused is a pool: the `depth` best cases of either side. Both sides score all of it; a case
that the words do not match has lexical score 0. A quota may bring in cases from beyond the pool:
they are scored as if they were in it, and move nothing that is. Both ways are of the literature:

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

from retriever.ranking.ranked import Doubles
from retriever.types import Bools
from retriever.values import number, one_of, whole

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
        one_of("fusion.method", self.method, METHODS)
        number("fusion.weight", self.weight, 0, 1)
        one_of("fusion.dense", self.dense, DENSE, or_none=True)
        whole("fusion.depth", self.depth, 1)
        number("fusion.rrf_k", self.rrf_k, 0)

    def fused(self, dense: Side, lexical: Side, pool: Bools | None = None) -> Doubles:
        """One score a case: (P,); with `pool` (P,), z-scores are over these cases of them."""
        if self.method == "zscore":
            near, matching = zscores(dense.scores, pool), zscores(lexical.scores, pool)
            return self.weight * near + (1 - self.weight) * matching
        return self.weight * self._reciprocal(dense) + (1 - self.weight) * self._reciprocal(lexical)

    def _reciprocal(self, side: Side) -> Doubles:
        return np.where(side.ranks > 0, 1.0 / (self.rrf_k + np.maximum(side.ranks, 1)), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side's view of the pool: (P,) scores, and ranks in its own list, 0 where not in it."""

    scores: Doubles
    ranks: Doubles


def zscores(values: Doubles, over: Bools | None = None) -> Doubles:
    """Mean 0, deviation 1 (of the population): (P,) -> (P,); all 0 where the deviation is 0.

    With `over` (P,), mean and deviation are of these alone.
    """
    if not len(values):
        return values
    own = values if over is None else values[over]
    centred = values - own.mean()
    deviation = math.sqrt(float(np.mean((own - own.mean()) ** 2)))
    # Equal values leave rounding errors behind, which must not be blown up to a ranking.
    if deviation <= 1e-12 * float(np.abs(own).max()):
        return np.zeros_like(values)
    return np.asarray(centred / deviation, np.float64)
