"""Policies that choose among cases by chance, and say with which.

A log from which one can learn what would have happened otherwise must say how likely each choice
was. A propensity here is conditional: the chance of the case at its rank, given those above it.
(The chance to be anywhere in the answer has no closed form under softmax.)
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retriever.ranking.ranked import Doubles
from retriever.types import Bools
from retriever.values import number, one_of, whole

POLICIES = ("greedy", "epsilon", "softmax")


@dataclass(frozen=True, slots=True)
class Exploration:
    """How each rank is filled, from the top, with one of the cases that are left.

    * `greedy`: the best one, ties to the lower id.
    * `epsilon`: the best one with chance 1 - ε, else any, all alike (the best among them).
    * `softmax`: each with a chance proportional to exp(utility / temperature); all ranks together
      are Gumbel top-k, as Plackett and Luce have it. Kool, van Hoof & Welling, ICML 2019.

    The utility is the logit in exact and ann mode, the cosine, BM25 (`ts_rank` on PostgreSQL), the
    fused score in hybrid mode; with `Mmr` its λ-weighted difference. Temperature is in its units.

    Attributes:
        policy: see above.
        epsilon: ε, from 0 to 1.
        temperature: above 0.
        pool: choose among so many of the best cases; None: among all that can be found (exact and
            cosine), that match (lexical) or that were candidates (hybrid, ann, `Mmr`). It is never
            below k, and with a quota it is of each group.
        seed: the same seed, query and bank give the same answer, whatever else is asked with it;
            None draws anew every time.
    """

    policy: Literal["greedy", "epsilon", "softmax"] = "softmax"
    epsilon: float = 0.1
    temperature: float = 1.0
    pool: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        one_of("exploration.policy", self.policy, POLICIES)
        number("exploration.epsilon", self.epsilon, 0, 1)
        smallest = math.nextafter(0, 1)
        above = "a finite number above 0"
        number("exploration.temperature", self.temperature, smallest, why=above)
        whole("exploration.pool", self.pool, 1, none="all cases")
        whole("exploration.seed", self.seed, 0, none="another one every time")

    def stream(self, query: str) -> np.random.Generator:
        """The random numbers for one query: of its text, so that its neighbours do not matter."""
        if self.seed is None:
            return np.random.default_rng()
        digest = hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()
        words = np.frombuffer(digest, np.uint32)
        return np.random.default_rng([self.seed, *(int(word) for word in words)])

    def probabilities(self, utilities: Doubles, allowed: Bools) -> Doubles:
        """The chance of each case at the next rank: (C,), 0 where not allowed, else summing to 1.

        At least one must be allowed. The first of equal ones counts as the best: give them by id.
        """
        best = np.where(allowed, utilities, -np.inf)
        top = float(best.max())
        if self.policy == "softmax":
            with np.errstate(over="ignore"):  # a very low one, over a small temperature
                weights = np.exp((best - top) / self.temperature)
            return np.asarray(weights / weights.sum(), np.float64)
        chances = np.zeros(len(utilities))
        if self.policy == "epsilon":
            chances[allowed] = self.epsilon / np.count_nonzero(allowed)
            chances[best.argmax()] += 1.0 - self.epsilon
        else:
            chances[best.argmax()] = 1.0
        return chances


def drawn(chances: Doubles, rng: np.random.Generator) -> int:
    """A place with the chances given; never one whose chance is 0."""
    ladder = np.cumsum(chances)
    place = int(np.searchsorted(ladder, rng.random() * ladder[-1], side="right"))
    # The product may round up to the top itself.
    return place if place < len(chances) else int(np.flatnonzero(chances)[-1])
