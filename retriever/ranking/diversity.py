"""What keeps an answer from being eight times the same case, or eight successes and no failure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput
from retriever.ranking.ranked import Doubles
from retriever.types import Array, Block, Floats, Ids
from retriever.units import normalised
from retriever.values import number, whole
from retriever.vectors import taken

#: What a stored case is by its outcome, as an index into `Quota.limits`.
UNKNOWN, POSITIVE, NEGATIVE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Mmr:
    """Maximal marginal relevance: each rank takes the case that is relevant and unlike those above.

    Carbonell & Goldstein, SIGIR 1998: the next case is argmax over the pool of
    λ · relevance - (1 - λ) · (its greatest similarity to a case chosen already, 0 at rank 1).
    There both are one measure; here a mode's score is on any scale, so relevance is the utility
    moved to [0, 1] over the pool (the best 1, the worst 0; all 1 where they are equal). Similarity
    is the cosine of the stored queries' embeddings, or, in a bank without them, of the projections.

    Attributes:
        weight: λ; 1 leaves the order of the mode, 0 looks at similarity alone.
        pool: of how many of the best cases one chooses; None: 10 k, at least 100.
    """

    weight: float = 0.7
    pool: int | None = None

    def __post_init__(self) -> None:
        number("mmr.weight", self.weight, 0, 1)
        whole("mmr.pool", self.pool, 1, none="10 k, at least 100")

    def size(self, k: int) -> int:
        """How many cases are in the pool, at most."""
        return max(k, self.pool) if self.pool is not None else max(10 * k, 100)


@dataclass(frozen=True, slots=True)
class Quota:
    """At most so many successes and so many failures, as Memento shows both.

    The outcome limits how many of each are taken, best first; it never moves a case up or down, and
    the answer is in the order of the scores. An answer may be shorter than k. Each kind is looked
    for by itself, so that a rare one is found wherever it stands in the mode's order.

    Attributes:
        positive: most cases with a known outcome of at least `positive_at`.
        negative: most cases with a known outcome below it.
        unknown: most cases whose outcome is not known; None: as many as there is room for.
        positive_at: from which outcome on a case is a success.
    """

    positive: int
    negative: int
    unknown: int | None = 0
    positive_at: float = 1.0

    def __post_init__(self) -> None:
        whole("quota.positive", self.positive, 0)
        whole("quota.negative", self.negative, 0)
        whole("quota.unknown", self.unknown, 0, none="as many as there is room for")
        if not (self.positive or self.negative or self.unknown is None or self.unknown):
            raise InvalidInput("quota lets no case through; raise positive, negative or unknown")
        number("quota.positive_at", self.positive_at, 0, 1, why="outcomes are in [0, 1]")

    def limits(self, k: int) -> tuple[int, int, int]:
        """The most of each group, in the groups' order; none is above k."""
        unknown = k if self.unknown is None else self.unknown
        return min(unknown, k), min(self.positive, k), min(self.negative, k)

    def groups(self, outcomes: Array) -> NDArray[np.int8]:
        """Which group each case belongs to: (C,) outcomes, NaN where unknown -> (C,)."""
        known = ~np.isnan(outcomes)
        good = outcomes >= self.positive_at
        return np.where(known, np.where(good, POSITIVE, NEGATIVE), UNKNOWN).astype(np.int8)


def relevance(utilities: Doubles) -> Doubles:
    """(P,) on any scale -> (P,) in [0, 1]: the best 1, the worst 0; all 1 where they are equal."""
    if not len(utilities):
        return utilities
    low, high = float(utilities.min()), float(utilities.max())
    if high == low:
        return np.ones_like(utilities)
    # Halved first: the distance of two great numbers may be beyond the greatest.
    return np.asarray((utilities / 2 - low / 2) / (high / 2 - low / 2), np.float64)


def directions(block: Block, rows: Ids) -> Floats:
    """Unit vectors of some cases, whose products are their similarities: (P,) -> (P, E).

    Raises:
        InvalidInput: the bank holds no vectors.
    """
    vectors = block.projections if block.embeddings is None else block.embeddings
    if vectors is None:
        raise InvalidInput(
            f"mmr needs vectors, and namespace {block.namespace!r} has none; open the bank with "
            "QueryEmbedder(encoder) or CaseProjector(scorer), or leave mmr out"
        )
    return normalised(taken(vectors, rows), block.ids[rows])
