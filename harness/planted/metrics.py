"""How near an estimate is to a known truth, one query at a time: pure functions over numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retriever.types import Ids

Array = NDArray[np.float64]


def kendall_tau(score: Array, truth: Array) -> float:
    """Kendall's tau-b of two rankings of C cases: (C,), (C,) -> [-1, 1]; 0 if one is constant.

    Tau-b divides by the pairs that are not tied on each side (Kendall 1945). An estimate that says
    the same of every case ranks nothing, so its tau is 0 here and not undefined.
    """
    above = np.triu_indices(len(score), k=1)
    by_score = np.sign(score[:, None] - score[None, :])[above]
    by_truth = np.sign(truth[:, None] - truth[None, :])[above]
    untied = np.sqrt(float(np.abs(by_score).sum()) * float(np.abs(by_truth).sum()))
    return float((by_score * by_truth).sum() / untied) if untied else 0.0


def regret_at(k: int, score: Array, truth: Array) -> float:
    """What the top `k` by score lose against the best `k`: (C,), (C,) -> probability, 0 or more.

    Ties of the score go to the lower index, as in every search of ours.
    """
    chosen = np.argsort(-score, kind="stable")[:k]
    best = np.sort(truth)[::-1][:k]
    return float(best.mean() - truth[chosen].mean())


def truth_error(probability: Array, truth: Array) -> tuple[float, float]:
    """Mean absolute and mean signed error against the truth: (C,), (C,) -> (error, bias)."""
    difference = probability - truth
    return float(np.abs(difference).mean()), float(difference.mean())


def mean_interval(values: Array, counts: NDArray[np.int64]) -> tuple[float, float, float]:
    """Mean over Q queries, 95 % percentile interval: (Q,), (B, Q) counts -> mean, low, high.

    `counts` says how often each resample drew each query: the same counts for every system make
    their intervals comparable.
    """
    resampled = counts @ values / counts.sum(axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def resample_queries(queries: int, resamples: int, rng: np.random.Generator) -> Ids:
    """How often each of B bootstrap resamples draws each query: -> (B, Q), rows summing to Q."""
    return rng.multinomial(queries, np.full(queries, 1.0 / queries), size=resamples)
