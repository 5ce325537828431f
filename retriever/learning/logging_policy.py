"""Showing k cases without replacement, with the probability of each choice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput
from retriever.types import Ids


def sample_without_replacement(
    scores: NDArray[np.float64], k: int, temperature: float, rng: np.random.Generator
) -> tuple[Ids, NDArray[np.float64]]:
    """Draw k cases, one after the other, from a softmax: (N,) -> (k,) cases, (k,) propensities.

    Propensity r is the conditional probability of the r-th choice given the choices before it: the
    softmax of score / temperature over the cases not yet taken. Gumbel noise and one sort give the
    same distribution as k draws (Gumbel top-k; Vieira 2014, Kool et al. 2019, arXiv 1903.06059).
    """
    if not 1 <= k <= len(scores):
        raise InvalidInput(f"k must be between 1 and {len(scores)} (the cases), got {k}")
    if not temperature > 0:
        raise InvalidInput(f"temperature must be above 0, got {temperature}")
    logits = scores / temperature
    keys = logits + rng.gumbel(size=len(scores))
    first = np.argpartition(keys, -k)[-k:]
    taken = first[np.argsort(-keys[first], kind="stable")]
    chosen = logits[taken]
    # Log of the mass available at each rank: what is never taken, then the taken from the last.
    rest = np.delete(logits, taken)
    never = np.logaddexp.reduce(rest) if len(rest) else -np.inf
    available = np.logaddexp.accumulate(np.concatenate([[never], chosen[::-1]]))[1:][::-1]
    return taken, np.exp(chosen - available)
