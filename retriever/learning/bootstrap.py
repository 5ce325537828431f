"""Confidence intervals by drawing whole queries with replacement.

Rows of one query are not independent (in Memento's log all share one outcome), so a resample draws
queries, not rows. A resample is a count per query; a statistic turns counts (B, G) into values (B,)
from sums made once, so nothing is re-sorted. All statistics of one `bootstrap_by_query` call see
the same resamples, which is what makes a difference of two systems paired.

The intervals are percentile intervals; they are rough below some twenty queries, and undefined
(NaN) for one query.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retriever.errors import InvalidInput
from retriever.learning import metrics
from retriever.learning.metrics import Values

K = TypeVar("K", bound=Hashable)

#: Counts (B, G), how often each query was drawn -> values (B,); NaN where it is undefined.
Statistic: TypeAlias = Callable[[Values], Values]

#: Numbers held at once by one step; about what a core's cache keeps.
BLOCK = 2**18


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate on the rows as they are, and the percentile interval of its resamples.

    `resamples` were used, `skipped` were left out because the statistic is undefined on them (one
    class). `low` and `high` are NaN where there is no interval.
    """

    estimate: float
    low: float
    high: float
    resamples: int
    skipped: int


@dataclass(frozen=True)
class Bootstrap(Generic[K]):
    """Every statistic on the rows as they are, and on each of B shared resamples of `queries`."""

    queries: int
    estimates: dict[K, float]
    values: dict[K, Values]

    def interval(self, key: K, level: float = 0.95) -> Interval:
        """The percentile interval of one statistic."""
        self._require(key)
        return _interval(self.estimates[key], self.values[key], self.queries, level)

    def _require(self, key: K) -> None:
        if key not in self.values:
            raise InvalidInput(f"no statistic {key!r} here; known: {list(self.values)}")


def bootstrap_by_query(
    group: ArrayLike,
    statistics: Mapping[K, Statistic],
    *,
    resamples: int,
    rng: np.random.Generator,
) -> Bootstrap[K]:
    """Evaluate every statistic on the same `resamples` draws of whole queries from `group` (R,).

    Each statistic must have been made from the same `group`.
    """
    if resamples < 1:
        raise InvalidInput(f"resamples must be at least 1, got {resamples}")
    labels = np.asarray(group)
    if labels.size == 0:
        raise InvalidInput("no rows to resample; give at least one")
    query, queries = metrics.query_codes(labels, len(labels))
    values = {key: np.empty(resamples) for key in statistics}
    step = max(1, BLOCK // len(query))
    for start in range(0, resamples, step):
        stop = min(start + step, resamples)
        counts = _draw(queries, stop - start, rng)
        for key, statistic in statistics.items():
            values[key][start:stop] = statistic(counts)
    once = np.ones((1, queries))
    estimates = {key: float(statistic(once)[0]) for key, statistic in statistics.items()}
    return Bootstrap(queries, estimates, values)


def paired_difference(
    bootstrap: Bootstrap[K], first: K, second: K, level: float = 0.95
) -> Interval:
    """`first` minus `second` on the same resamples; of a statistic with itself it is exactly 0."""
    bootstrap._require(first)
    bootstrap._require(second)
    return _interval(
        bootstrap.estimates[first] - bootstrap.estimates[second],
        bootstrap.values[first] - bootstrap.values[second],
        bootstrap.queries,
        level,
    )


def statistics_of(
    outcome: ArrayLike, probability: ArrayLike, group: ArrayLike
) -> dict[str, Statistic]:
    """Every figure of the report for one system: (R,) x 3 -> name -> statistic over resamples."""
    y, p, _ = metrics.checked(outcome, probability, None)
    query, queries = metrics.query_codes(group, len(y))
    return {
        "auc": _auc(y, p, query),
        "accuracy": _mean(metrics.row_hit(y, p), query, queries),
        "f1": _f1(y, p, query, queries),
        "log_loss": _mean(metrics.row_log_loss(y, p), query, queries),
        "brier": _mean((y - p) ** 2, query, queries),
        "ece": _ece(y, p, query, queries),
        "within_query_auc": _within_query_auc(y, p, group),
    }


def _draw(queries: int, resamples: int, rng: np.random.Generator) -> Values:
    """Draw `queries` queries with replacement, `resamples` times: -> counts (B, G)."""
    drawn = rng.integers(0, queries, size=(resamples, queries))
    drawn += np.arange(resamples)[:, None] * queries
    counts = np.bincount(drawn.ravel(), minlength=resamples * queries)
    return counts.reshape(resamples, queries).astype(np.float64)


def _interval(estimate: float, values: Values, queries: int, level: float) -> Interval:
    if not 0.0 < level < 1.0:
        raise InvalidInput(f"level must be between 0 and 1, got {level}")
    defined = values[np.isfinite(values)]
    skipped = len(values) - len(defined)
    if queries < 2 or len(defined) < 2:
        return Interval(estimate, float("nan"), float("nan"), len(defined), skipped)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), len(defined), skipped)


def _sums(columns: list[Values], query: NDArray[np.int64], queries: int) -> Values:
    """Sum each column over the rows of each query: list of (R,) -> (G, columns)."""
    return np.stack([np.bincount(query, weights=c, minlength=queries) for c in columns], axis=1)


def _ratio(numerator: Values, denominator: Values) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def _mean(values: Values, query: NDArray[np.int64], queries: int) -> Statistic:
    sums = _sums([values, np.ones_like(values)], query, queries)

    def statistic(counts: Values) -> Values:
        totals = counts @ sums  # (B, 2)
        return _ratio(totals[:, 0], totals[:, 1])

    return statistic


def _f1(y: Values, p: Values, query: NDArray[np.int64], queries: int) -> Statistic:
    true = y >= metrics.POSITIVE_AT
    predicted = p >= metrics.POSITIVE_AT
    both = (true & predicted).astype(np.float64)
    either = true.astype(np.float64) + predicted.astype(np.float64)
    sums = _sums([2 * both, either], query, queries)

    def statistic(counts: Values) -> Values:
        totals = counts @ sums
        return _ratio(totals[:, 0], totals[:, 1])

    return statistic


def _ece(y: Values, p: Values, query: NDArray[np.int64], queries: int) -> Statistic:
    bins = metrics.ECE_BINS
    cell = query * bins + metrics.bin_index(p, bins)
    gaps = np.bincount(cell, weights=y - p, minlength=queries * bins).reshape(queries, bins)
    rows = np.bincount(query, minlength=queries).astype(np.float64)

    def statistic(counts: Values) -> Values:
        return _ratio(np.abs(counts @ gaps).sum(axis=1), counts @ rows)

    return statistic


def _auc(y: Values, score: Values, query: NDArray[np.int64]) -> Statistic:
    positive = y >= metrics.POSITIVE_AT
    order = np.argsort(score[~positive])
    negative_scores = score[~positive][order]
    negative_query, positive_query = query[~positive][order], query[positive]
    # For each positive row: how many sorted negatives lie strictly below, and below or level.
    lower = np.searchsorted(negative_scores, score[positive], side="left")
    upper = np.searchsorted(negative_scores, score[positive], side="right")

    def statistic(counts: Values) -> Values:
        below = np.zeros((len(counts), len(negative_query) + 1))
        np.cumsum(counts[:, negative_query], axis=1, out=below[:, 1:])
        weight = counts[:, positive_query]  # (B, positives)
        wins = below[:, lower]
        if (lower != upper).any():
            wins = 0.5 * (wins + below[:, upper])
        return _ratio(np.einsum("bp,bp->b", weight, wins), weight.sum(axis=1) * below[:, -1])

    return statistic


def _within_query_auc(y: Values, score: Values, group: ArrayLike) -> Statistic:
    aucs = metrics.auc_by_query(y, score, group)
    measured = np.isfinite(aucs).astype(np.float64)
    filled = np.where(measured > 0, aucs, 0.0)

    def statistic(counts: Values) -> Values:
        return _ratio(counts @ filled, counts @ measured)

    return statistic
