"""Some rows of a block with what they are ranked by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.types import Ids

Doubles: TypeAlias = NDArray[np.float64]


class Ranked(NamedTuple):
    """C rows for one query, best first unless said otherwise.

    Attributes:
        rows: (C,) of the block.
        utilities: (C,) what they are ranked by, more is better: the logit (turned round where the
            calibration falls with it), the cosine, BM25, or the fused score.
        scores: (C,) the mode's score, as a hit tells it: in exact mode the probability.
        logits: (C,) where the head was used.
        parts: (C,) each, by name: what a fused score is made of.
    """

    rows: Ids
    utilities: Doubles
    scores: Doubles
    logits: Doubles | None = None
    parts: Mapping[str, Doubles] = {}  # a default that nobody writes to

    def at(self, places: NDArray[np.intp]) -> Ranked:
        """Those at some places, in that order."""
        return Ranked(
            self.rows[places],
            self.utilities[places],
            self.scores[places],
            None if self.logits is None else self.logits[places],
            {name: values[places] for name, values in self.parts.items()},
        )

    def at_least(self, score: float | None) -> Ranked:
        """Those whose score is not below a bound."""
        return self if score is None else self.at(np.flatnonzero(self.scores >= score))

    def best(self, count: int, ids: Ids) -> Ranked:
        """The `count` best, best first, ties to the lower id; `ids` (N,) are the block's."""
        return self.at(np.lexsort((ids[self.rows], -self.utilities))[:count])


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


def nothing(*parts: str, logits: bool = False) -> Ranked:
    """No rows."""
    empty = np.empty(0, np.float64)
    found = dict.fromkeys(parts, empty)
    return Ranked(np.empty(0, np.int64), empty, empty, empty if logits else None, found)


def by_score(rows: Ids, scores: NDArray[np.floating[Any]]) -> Ranked:
    """Rows whose score is what they are ranked by: (C,) both."""
    exact = scores.astype(np.float64)
    return Ranked(rows, exact, exact)
