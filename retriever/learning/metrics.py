"""How good probabilities are, as pure functions over numpy arrays.

Outcomes are numbers in [0, 1] and may be fractional. AUC, accuracy and F1 need two classes: a row
is positive where its outcome is at least 0.5, and predicted positive where its probability is. A
weight of 2 says the same as the row twice. What is undefined is NaN (AUC of one class, F1 without
any positive), never a made-up number. Intervals are made in `bootstrap`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retriever.errors import InvalidInput

Values: TypeAlias = NDArray[np.float64]

#: Probabilities are clipped to [CLIP, 1 - CLIP] before the logarithm: a sure mistake costs 16 nats.
CLIP = 1e-7
POSITIVE_AT = 0.5
ECE_BINS = 15


@dataclass(frozen=True, slots=True)
class WithinQuery:
    """Mean AUC over the queries that have both classes, and how many they are (0: `auc` is NaN)."""

    auc: float
    queries: int


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram, [low, high); its means are NaN where it is empty."""

    low: float
    high: float
    weight: float
    mean_probability: float
    mean_outcome: float


def auc(outcome: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Area under the ROC curve: (R,), (R,) -> how often a positive row outscores a negative one.

    A tie counts one half, exactly. NaN where one class has no weight.
    """
    y, s, w = checked(outcome, score, weight, probability=False)
    positive = y >= POSITIVE_AT
    negative_scores = s[~positive]
    order = np.argsort(negative_scores)
    below = np.concatenate([[0.0], np.cumsum(w[~positive][order])])
    wins = _half_ties(below, negative_scores[order], s[positive])
    total = w[positive].sum() * below[-1]
    return float((w[positive] * wins).sum() / total) if total > 0 else float("nan")


def log_loss(outcome: ArrayLike, probability: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Mean cross-entropy in nats: (R,), (R,) -> one number; probabilities are clipped at `CLIP`."""
    y, p, w = checked(outcome, probability, weight)
    return _mean(row_log_loss(y, p), w)


def brier(outcome: ArrayLike, probability: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Mean squared distance of outcome (R,) and probability (R,)."""
    y, p, w = checked(outcome, probability, weight)
    return _mean((y - p) ** 2, w)


def accuracy(outcome: ArrayLike, probability: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Share of rows (R,) predicted on the right side of 0.5."""
    y, p, w = checked(outcome, probability, weight)
    return _mean(row_hit(y, p), w)


def f1(outcome: ArrayLike, probability: ArrayLike, weight: ArrayLike | None = None) -> float:
    """F1 of the positive class at 0.5: (R,), (R,) -> 2 tp / (2 tp + fp + fn).

    NaN where there is no positive, neither true nor predicted.
    """
    y, p, w = checked(outcome, probability, weight)
    true, predicted = y >= POSITIVE_AT, p >= POSITIVE_AT
    denominator = float(w[true].sum() + w[predicted].sum())
    return float(2 * w[true & predicted].sum() / denominator) if denominator > 0 else float("nan")


def ece(
    outcome: ArrayLike,
    probability: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    bins: int = ECE_BINS,
) -> float:
    """Expected calibration error: mean |mean outcome - mean probability| over equal-width bins.

    Bins over [0, 1] as in Guo et al. 2017 (arXiv 1706.04599), whose 15 is the default. It is biased
    upwards on few rows, so compare it only between systems on the same rows.
    """
    y, p, w = checked(outcome, probability, weight)
    gap = np.bincount(bin_index(p, bins), weights=w * (y - p), minlength=bins)
    return float(np.abs(gap).sum() / w.sum())


def reliability(
    outcome: ArrayLike,
    probability: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    bins: int = ECE_BINS,
) -> list[Bin]:
    """The bins behind `ece`, from low to high; the last one includes probability 1."""
    y, p, w = checked(outcome, probability, weight)
    index = bin_index(p, bins)
    mass, sum_p, sum_y = (
        np.bincount(index, weights=values, minlength=bins) for values in (w, w * p, w * y)
    )
    with np.errstate(invalid="ignore"):
        mean_p, mean_y = sum_p / mass, sum_y / mass
    return [
        Bin(i / bins, (i + 1) / bins, float(mass[i]), float(mean_p[i]), float(mean_y[i]))
        for i in range(bins)
    ]


def within_query_auc(outcome: ArrayLike, score: ArrayLike, group: ArrayLike) -> WithinQuery:
    """Mean over queries of the AUC within the query: (R,), (R,), (R,) -> one number and its base.

    Only queries with both classes count, each once. It says whether the right case was ranked up;
    an AUC over all rows also rewards knowing which query is easy.
    """
    aucs = auc_by_query(outcome, score, group)
    measured = aucs[np.isfinite(aucs)]
    return WithinQuery(float(measured.mean()) if len(measured) else float("nan"), len(measured))


def auc_by_query(outcome: ArrayLike, score: ArrayLike, group: ArrayLike) -> Values:
    """The AUC within each distinct group, ascending: (R,) x 3 -> (G,), NaN where one class."""
    y, s, _ = checked(outcome, score, None, probability=False)
    query, queries = query_codes(group, len(y))
    order = np.lexsort((s, query))
    y, s, query = y[order], s[order], query[order]
    positive = y >= POSITIVE_AT
    negatives = np.concatenate([[0.0], np.cumsum(~positive)])  # (R + 1,) negatives before each row
    first_of_query = np.searchsorted(query, query, side="left")
    new_tie = np.concatenate([[True], (query[1:] != query[:-1]) | (s[1:] != s[:-1])])
    tie = np.cumsum(new_tie) - 1
    tie_start = np.flatnonzero(new_tie)
    tie_end = np.append(tie_start[1:], len(y))
    wins = 0.5 * (negatives[tie_start[tie]] + negatives[tie_end[tie]]) - negatives[first_of_query]
    won = np.bincount(query, weights=wins * positive, minlength=queries)
    positives = np.bincount(query, weights=positive, minlength=queries)
    pairs = positives * (np.bincount(query, minlength=queries) - positives)
    with np.errstate(invalid="ignore"):
        return np.divide(won, pairs, dtype=np.float64)


def row_log_loss(outcome: Values, probability: Values) -> Values:
    """Cross-entropy of each row: (R,), (R,) -> (R,) nats."""
    p = np.clip(probability, CLIP, 1 - CLIP)
    return np.asarray(-(outcome * np.log(p) + (1 - outcome) * np.log1p(-p)))


def row_hit(outcome: Values, probability: Values) -> Values:
    """1.0 where a row is predicted on the right side of 0.5: (R,), (R,) -> (R,)."""
    hit = (outcome >= POSITIVE_AT) == (probability >= POSITIVE_AT)
    return np.asarray(hit, dtype=np.float64)


def bin_index(probability: Values, bins: int) -> NDArray[np.int64]:
    """The equal-width bin of each probability: (R,) -> (R,) in 0..bins-1; 1.0 is in the last."""
    if bins < 1:
        raise InvalidInput(f"bins must be at least 1, got {bins}")
    return np.minimum((probability * bins).astype(np.int64), bins - 1)


def query_codes(group: ArrayLike, rows: int) -> tuple[NDArray[np.int64], int]:
    """Groups renumbered 0..G-1 in ascending order of their label: (R,) -> (R,), G."""
    labels = np.asarray(group)
    if labels.shape != (rows,):
        raise InvalidInput(
            f"group has shape {labels.shape}; give one query number a row, shape ({rows},)"
        )
    distinct, codes = np.unique(labels, return_inverse=True)
    return np.asarray(codes, dtype=np.int64), len(distinct)


def checked(
    outcome: ArrayLike,
    prediction: ArrayLike,
    weight: ArrayLike | None,
    *,
    probability: bool = True,
) -> tuple[Values, Values, Values]:
    """The three columns as float64 of one length, or `InvalidInput` with the value that is wrong.

    With `probability`, predictions must lie in [0, 1]; without, they only have to be finite.
    """
    y = numbers("outcome", outcome)
    p = numbers("probability" if probability else "score", prediction)
    w = np.ones(len(y)) if weight is None else numbers("weight", weight)
    if not len(y) == len(p) == len(w):
        raise InvalidInput(
            f"outcome, prediction and weight must have one length, got {len(y)}, {len(p)}, {len(w)}"
        )
    if len(y) == 0:
        raise InvalidInput("no rows to measure; give at least one")
    _within("outcome", y, 0.0, 1.0)
    if probability:
        _within("probability", p, 0.0, 1.0)
    _within("weight", w, 0.0, np.inf)
    if not w.sum() > 0:
        raise InvalidInput("all weights are 0; at least one row needs a weight above 0")
    return y, p, w


def numbers(name: str, values: ArrayLike) -> Values:
    """One finite float64 a row, (R,), or `InvalidInput` that names the first value that is not."""
    given: Any = np.asarray(values)
    if given.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} must hold numbers, got values of type {given.dtype}")
    if given.ndim != 1:
        raise InvalidInput(f"{name} must have one dimension, got shape {given.shape}")
    array: Values = given.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise InvalidInput(
            f"{name}[{wrong[0]}] is {array[wrong[0]]}; every value must be a finite number"
        )
    return array


def _within(name: str, values: Values, low: float, high: float) -> None:
    wrong = np.flatnonzero((values < low) | (values > high))
    if len(wrong):
        span = f"at least {low:g}" if np.isinf(high) else f"from {low:g} to {high:g}"
        raise InvalidInput(f"{name}[{wrong[0]}] is {values[wrong[0]]}; it must be {span}")


def _half_ties(below: Values, negative_scores: Values, score: Values) -> Values:
    lower = np.searchsorted(negative_scores, score, side="left")
    upper = np.searchsorted(negative_scores, score, side="right")
    return np.asarray(0.5 * (below[lower] + below[upper]))


def _mean(values: Values, weight: Values) -> float:
    return float((weight * values).sum() / weight.sum())
