"""From logits to probabilities: score = sigmoid(a * logit + b), fitted on held-out queries.

A temperature alone cannot undo a prior shift (class weights, a drifting base rate), so there is an
offset too (Platt 1999). `a` is kept above 0: a calibration never turns a ranking round.

The fit minimises cross-entropy plus a pull towards (1, 0): normal priors, of standard deviation
`SLOPE_SD` on `a` and `PRIOR_SD` on the level of the logits. Without the pull on `a`, a few dozen
queries are enough to blow up the noise of a model that learned nothing: its logits hardly differ,
and slopes in the hundreds fit whatever the queries happened to be. Next to hundreds of queries with
a signal the pull vanishes. As it is 0 at (1, 0), the weighted log-loss of the rows fitted on is
never above that of the uncalibrated logits, which Platt's smoothed targets do not promise.

Rows of one run share their outcome: eight of them are one observation, not eight. Callers pass
`query_weights`, by which every query counts as one row.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from retriever.errors import InvalidInput
from retriever.learning.folds import query_folds
from retriever.learning.metrics import Values, checked, numbers
from retriever.types import Calibration

logger = logging.getLogger(__name__)

#: `a` is 1 unless queries say otherwise; half or double is ordinary, a hundredfold is not.
SLOPE_SD = 1.0
#: Chosen so that n rows of one class come out near Laplace's (n + 1) / (n + 2).
PRIOR_SD = 2.0
#: The least spread (standard deviation) of the calibrated logits: the order survives, no more.
LEAST_SPREAD = 1e-3
MAX_STEPS = 200


@dataclass(frozen=True, slots=True)
class CalibrationFit:
    """A calibration and how it came about.

    `carries_signal` is False where the best slope is 0 or below, or all logits are equal: then `b`
    gives the base rate and the ranking says nothing about the outcome. Losses are mean
    cross-entropies in nats on the rows fitted on.
    """

    calibration: Calibration
    carries_signal: bool
    log_loss_before: float
    log_loss_after: float


def fit(logit: ArrayLike, outcome: ArrayLike, weight: ArrayLike | None = None) -> Calibration:
    """Fit (a, b) to held-out rows: (R,), (R,) -> `Calibration`, a > 0; logs a missing signal."""
    return fit_with_diagnostics(logit, outcome, weight).calibration


def fit_with_diagnostics(
    logit: ArrayLike, outcome: ArrayLike, weight: ArrayLike | None = None
) -> CalibrationFit:
    """As `fit`, with what a report says about it. A weight of 2 says the same as the row twice."""
    y, x, w = checked(outcome, logit, weight, probability=False)
    centre = float((w * x).sum() / w.sum())
    spread = float(np.sqrt((w * (x - centre) ** 2).sum() / w.sum()))
    if spread <= 1e-12 * max(1.0, abs(centre)):
        z, spread = np.zeros_like(x), 0.0  # constant logits: only the level can be fitted
    else:
        z = (x - centre) / spread
    slope, level = _minimise(z, y, w, spread, centre, free_slope=spread > 0)
    # The least slope stays at or below the identity's, so that (1, 0) is always allowed.
    least = min(LEAST_SPREAD, spread)
    carries_signal = slope > least
    if not carries_signal and spread > 0:
        _, level = _minimise(z, y, w, least, centre, free_slope=False)
        slope = least
    a = slope / spread if spread > 0 else 1.0
    calibration = Calibration(a, level - a * centre)
    if not carries_signal:
        logger.warning(
            "the logits carry no signal about the outcome on %d held-out rows; calibrated scores "
            "are the base rate, in the unchanged order",
            len(y),
        )
    return CalibrationFit(
        calibration,
        carries_signal,
        log_loss_before=_cross_entropy(x, y, w),
        log_loss_after=_cross_entropy(calibration.a * x + calibration.b, y, w),
    )


def apply(logit: ArrayLike, calibration: Calibration) -> Values:
    """The probability of each logit: (R,) -> (R,)."""
    return _sigmoid(calibration.a * numbers("logit", logit) + calibration.b)


def cross_fitted(
    logit: ArrayLike, outcome: ArrayLike, group: ArrayLike, *, folds: int = 2, seed: int
) -> Values:
    """Calibrate every row by the rows of other queries: (R,) x 3 -> (R,) probabilities.

    For rows that serve both to calibrate and to report. Needs at least two queries.
    """
    y, x, _ = checked(outcome, logit, None, probability=False)
    fold = query_folds(y, group, folds=folds, seed=seed)
    if fold.max() == 0:
        raise InvalidInput(
            "all rows are of one query; cross-fitting needs two or more, or use fit() on other rows"
        )
    probability = np.empty_like(x)
    for held_out in range(int(fold.max()) + 1):
        inside = fold == held_out
        weight = query_weights(np.asarray(group)[~inside])
        probability[inside] = apply(x[inside], fit(x[~inside], y[~inside], weight))
    return probability


def query_weights(group: ArrayLike) -> Values:
    """Weights by which every query counts as one row, however many it has: (R,) -> (R,)."""
    _, query, rows = np.unique(np.asarray(group), return_inverse=True, return_counts=True)
    return np.asarray(1.0 / rows[query], dtype=np.float64)


def _minimise(
    z: Values, y: Values, w: Values, slope: float, level: float, *, free_slope: bool
) -> tuple[float, float]:
    """Newton's method with step halving: the (slope, level) of slope * z + level.

    It starts at the uncalibrated logits, and the convex objective never increases on the way.
    """
    start = np.array([slope, level])
    # In units of standardised logits, a = 1 is the slope that the fit starts at. A large level is
    # not sacred: beyond 1, the pull is measured in units of it.
    scale = np.array([SLOPE_SD * max(slope, 1e-12), PRIOR_SD * max(1.0, abs(level))])
    precision = 1.0 / scale**2
    design = np.stack([z, np.ones_like(z)], axis=1)  # (R, 2)
    free = np.array([free_slope, True])

    def objective(parameters: Values) -> float:
        logits = design @ parameters
        pull = 0.5 * float((precision * (parameters - start) ** 2).sum())
        return float((w * (np.logaddexp(0.0, logits) - y * logits)).sum()) + pull

    current, value = start, objective(start)
    for _ in range(MAX_STEPS):
        p = _sigmoid(design @ current)
        gradient = design.T @ (w * (p - y)) + precision * (current - start)
        hessian = (design.T * (w * p * (1 - p))) @ design + np.diag(precision)
        step = np.zeros(2)
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        decrement = float(gradient @ step)
        if decrement < 1e-14 * max(1.0, value):
            break
        rate = 1.0
        while (trial := objective(current - rate * step)) > value - 1e-4 * rate * decrement:
            rate /= 2
            if rate < 1e-12:
                return float(current[0]), float(current[1])
        current, value = current - rate * step, trial
    return float(current[0]), float(current[1])


def _sigmoid(x: Values) -> Values:
    """Without overflow: (R,) -> (R,)."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _cross_entropy(logits: Values, y: Values, w: Values) -> float:
    return float((w * (np.logaddexp(0.0, logits) - y * logits)).sum() / w.sum())
