"""Which of the candidates are shown, rank by rank, and with which chance each was chosen.

One loop serves everything: at each rank the candidates left have utilities given those above
(`Mmr`), some are allowed (`Quota`), and the policy gives each a chance. Softmax without `Mmr` need
not go rank by rank: all its noise is drawn once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.ranking.diversity import Mmr, relevance
from retriever.ranking.exploration import Exploration, drawn
from retriever.ranking.ranked import Doubles

#: From a place to the similarity of every candidate to the one there: (C,).
Similarity: TypeAlias = "Callable[[int], Doubles]"

#: Beyond, noise added to utility / temperature is rounded off and ties would not be broken.
_WIDEST = 1e6


class Choice(NamedTuple):
    """The places chosen, by rank, and the chance of each given those before it: (<=k,) both."""

    places: NDArray[np.intp]
    propensities: Doubles


class Candidates(NamedTuple):
    """C cases in the order of their ids.

    Attributes:
        utilities: (C,) finite, more is better.
        groups: (C,) which limit a case counts against.
        limits: how many of each group may be chosen.
    """

    utilities: Doubles
    groups: NDArray[np.int8]
    limits: Sequence[int]


def select(
    candidates: Candidates,
    k: int,
    exploration: Exploration,
    rng: np.random.Generator,
    mmr: Mmr | None = None,
    similarity: Similarity | None = None,
) -> Choice:
    """Choose k of the candidates, or as many as the limits allow."""
    if mmr is None and exploration.policy == "softmax" and len(candidates.utilities):
        low, high = float(candidates.utilities.min()), float(candidates.utilities.max())
        if (high - low) / exploration.temperature <= _WIDEST:
            return _at_once(candidates, k, exploration.temperature, rng)
    return _rank_by_rank(candidates, k, exploration, rng, mmr, similarity)


def _rank_by_rank(
    candidates: Candidates,
    k: int,
    exploration: Exploration,
    rng: np.random.Generator,
    mmr: Mmr | None,
    similarity: Similarity | None,
) -> Choice:
    given, groups, limits = candidates
    left = np.array(limits)
    allowed = left[groups] > 0  # (C,)
    gains = given if mmr is None else mmr.weight * relevance(given)
    nearest: Doubles | None = None  # (C,) the greatest similarity to a chosen one
    places: list[int] = []
    propensities: list[float] = []
    while len(places) < k and allowed.any():
        utilities = gains
        if mmr is not None and nearest is not None:
            utilities = gains - (1 - mmr.weight) * nearest
        chances = exploration.probabilities(utilities, allowed)
        place = drawn(chances, rng)
        places.append(place)
        propensities.append(chances[place])
        allowed[place] = False
        left[groups[place]] -= 1
        if not left[groups[place]]:
            allowed &= groups != groups[place]
        if similarity is not None:
            now = similarity(place)
            nearest = now if nearest is None else np.maximum(nearest, now)
    return Choice(np.array(places, np.intp), np.array(propensities, np.float64))


def _at_once(
    candidates: Candidates, k: int, temperature: float, rng: np.random.Generator
) -> Choice:
    """Softmax without replacement: the greatest of logits with Gumbel noise are the ranks in turn.

    That stays so when a group's limit is reached: given what was chosen, the noise of all that is
    left has one common bound, and under such a bound the greatest of any of them is again softmax.
    """
    given, groups, limits = candidates
    logits = (given - given.max()) / temperature  # (C,) at most 0
    # Minus the logarithm of an exponential variable is a Gumbel one.
    noise = -np.log(np.maximum(rng.standard_exponential(len(given)), np.finfo(float).tiny))
    noisy = logits + noise
    firsts = [
        _greatest(noisy, np.flatnonzero(groups == group), min(limit, k))
        for group, limit in enumerate(limits)
    ]
    places = np.concatenate(firsts)
    places = places[np.argsort(-noisy[places], kind="stable")][:k]
    return Choice(places, _propensities(logits, groups, limits, places))


def _greatest(values: Doubles, places: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    if count >= len(places):
        return places
    if not count:
        return places[:0]
    return places[np.argpartition(values[places], len(places) - count)[len(places) - count :]]


def _propensities(
    logits: Doubles, groups: NDArray[np.int8], limits: Sequence[int], places: NDArray[np.intp]
) -> Doubles:
    """The chance of each choice among what was left and allowed: (k,).

    The normaliser at a rank is a sum over what is left. It is built up from the last rank to the
    first: taken away from the sum of all, what is left after a very likely case would be noise.
    """
    open_ = np.ones(len(logits), np.bool_)
    open_[places] = False
    rest = [_log_sum(logits[open_ & (groups == group)]) for group in range(len(limits))]
    left = [limit - int(np.count_nonzero(groups[places] == g)) for g, limit in enumerate(limits)]
    propensities = np.empty(len(places))
    for rank in range(len(places) - 1, -1, -1):
        group = groups[places[rank]]
        rest[group] = np.logaddexp(rest[group], logits[places[rank]])
        left[group] += 1
        total = np.logaddexp.reduce([sum_ for sum_, n in zip(rest, left, strict=True) if n > 0])
        propensities[rank] = np.exp(logits[places[rank]] - total)
    return np.minimum(propensities, 1.0)  # of a sum that rounded down


def _log_sum(logits: Doubles) -> float:
    if not len(logits):
        return -np.inf
    top = float(logits.max())
    return top + float(np.log(np.exp(logits - top).sum()))
