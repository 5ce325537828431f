"""Logistic regression over rows that share their features.

The rows of a log repeat few texts many times: features are kept once per distinct text and rows
point at them, so a step costs the distinct texts, not the rows. The objective is scikit-learn's,
1/2 |w|^2 + C * (sum of cross-entropies) with a free intercept; outcomes may be fractional.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput
from retriever.learning import metrics
from retriever.learning.folds import query_folds
from retriever.learning.metrics import Values

#: C, from strong to weak regularisation.
GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
INNER_FOLDS = 3
MAX_STEPS = 50
MAX_INNER_STEPS = 200
#: Largest entry of the gradient of the mean loss at which a fit is done.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Block:
    """One group of features: row r has the features `matrix[index[r]]`.

    `matrix` (K, F) is a scipy sparse matrix or a dense array; `index` (R,).
    """

    matrix: Any
    index: NDArray[np.int64]

    def take(self, rows: NDArray[Any]) -> Block:
        """The rows selected by an index or a mask."""
        return Block(self.matrix, self.index[rows])

    def dot(self, weights: Values) -> Values:
        """(F,) -> (R,)."""
        return np.asarray(self.matrix @ weights)[self.index]

    def transposed_dot(self, values: Values) -> Values:
        """(R,) -> (F,)."""
        by_key = np.bincount(self.index, weights=values, minlength=self.matrix.shape[0])
        return np.asarray(self.matrix.T @ by_key)


def fit(
    blocks: Sequence[Block], outcome: Values, *, c: float, start: Values | None = None
) -> Values:
    """Weights of all blocks and the intercept, (F1 + F2 + ... + 1,), for outcomes (R,) in [0, 1].

    Newton's method, each step solved by conjugate gradients (as in Lin, Weng and Keerthi 2008,
    with step halving for their trust region). The outcomes must not be all 0 or all 1: the
    intercept is not regularised and would run away.
    """
    if not 0.0 < float(outcome.mean()) < 1.0:
        raise InvalidInput(
            f"a logistic regression needs two classes, got only outcome {outcome.flat[0]:g}; "
            "predict the base rate instead"
        )
    rows, size = len(outcome), sum(_sizes(blocks)) + 1
    penalty = np.full(size, 1.0 / (c * rows))
    penalty[-1] = 0.0

    def objective(logits: Values, parameters: Values) -> float:
        losses = np.maximum(logits, 0.0) + np.log1p(np.exp(-np.abs(logits))) - outcome * logits
        return float(losses.mean() + 0.5 * (penalty * parameters**2).sum())

    parameters = np.zeros(size) if start is None else start
    logits = decision(blocks, parameters)
    value = objective(logits, parameters)
    for _ in range(MAX_STEPS):
        p = probability(logits)
        gradient = _transposed(blocks, (p - outcome) / rows) + penalty * parameters
        if np.abs(gradient).max() < TOLERANCE:
            break
        step = _newton_step(blocks, p * (1 - p) / rows, penalty, gradient)
        along, slope = decision(blocks, step), float((gradient * step).sum())
        rate = 1.0
        while True:
            trial = objective(logits - rate * along, parameters - rate * step)
            if trial <= value - 1e-4 * rate * slope:
                break
            rate /= 2
            if rate < 1e-10:
                return parameters  # no descent left in float64
        logits, parameters, value = logits - rate * along, parameters - rate * step, trial
    return parameters


def decision(blocks: Sequence[Block], parameters: Values) -> Values:
    """The logit of every row: (F + 1,) -> (R,)."""
    ends = np.cumsum(_sizes(blocks))
    parts = np.split(parameters[:-1], ends[:-1])
    logits = np.full(len(blocks[0].index), parameters[-1])
    for block, part in zip(blocks, parts, strict=True):
        logits += block.dot(part)
    return logits


def probability(logits: Values) -> Values:
    """Sigmoid without overflow: (R,) -> (R,)."""
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1.0, small) / (1.0 + small))


def choose_c(
    blocks: Sequence[Block], outcome: Values, group: NDArray[np.int64], *, seed: int
) -> float:
    """The C of `GRID` with the least log-loss on held-out queries of these rows.

    Ties take the smallest; so does a single query, where nothing can be held out.
    """
    fold = query_folds(outcome, group, folds=INNER_FOLDS, seed=seed)
    if fold.max() == 0:
        return GRID[0]
    held_out = np.empty((len(GRID), len(outcome)))
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        held_out[:, inside] = _path(blocks, outcome, inside)
    losses = [metrics.log_loss(outcome, p) for p in held_out]
    return GRID[int(np.argmin(losses))]


def _path(blocks: Sequence[Block], outcome: Values, inside: NDArray[np.bool_]) -> Values:
    """Probabilities of the rows inside, fitted on those outside, for every C: -> (GRID, inside)."""
    train, test = ([b.take(keep) for b in blocks] for keep in (~inside, inside))
    y = outcome[~inside]
    if not 0.0 < float(y.mean()) < 1.0:
        return np.full((len(GRID), int(inside.sum())), float(y.mean()))
    parameters: Values | None = None
    rows = []
    for c in GRID:
        parameters = fit(train, y, c=c, start=parameters)
        rows.append(probability(decision(test, parameters)))
    return np.stack(rows)


def _newton_step(
    blocks: Sequence[Block], curvature: Values, penalty: Values, gradient: Values
) -> Values:
    """Solve Hessian * step = gradient to a tenth, by conjugate gradients: (F,) -> (F,).

    Sums of products are spelt out instead of calling BLAS: on vectors this short its threads cost
    more than they bring, many times more on a busy machine.
    """
    step = np.zeros_like(gradient)
    residual = gradient.copy()
    direction = residual.copy()
    square = float((residual**2).sum())
    enough = 0.01 * square  # of the square: a tenth of the length
    for _ in range(MAX_INNER_STEPS):
        bent = _transposed(blocks, curvature * decision(blocks, direction)) + penalty * direction
        length = square / float((direction * bent).sum())
        step += length * direction
        residual -= length * bent
        previous, square = square, float((residual**2).sum())
        if square <= enough:
            break
        direction = residual + (square / previous) * direction
    return step


def _transposed(blocks: Sequence[Block], values: Values) -> Values:
    """The transpose of `decision`: (R,) -> (F + 1,)."""
    return np.concatenate([*(b.transposed_dot(values) for b in blocks), [values.sum()]])


def _sizes(blocks: Sequence[Block]) -> list[int]:
    return [int(block.matrix.shape[1]) for block in blocks]
