"""Inner folds: which training queries choose a setting for the others.

The splits that a report stands on are made in `retriever.learning.data.split`; these folds live
inside a training side and never reach the report.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retriever.errors import InvalidInput
from retriever.learning.metrics import numbers, query_codes


def query_folds(
    outcome: ArrayLike, group: ArrayLike, *, folds: int, seed: int
) -> NDArray[np.int64]:
    """A fold for every row, one for all rows of a query: (R,), (R,) -> (R,) in 0..folds-1.

    Queries are shuffled, ordered by their mean outcome and dealt out in turn, so the folds have
    nearly the same number of queries and the same base rate. With fewer queries than folds, there
    are as many folds as queries.
    """
    if folds < 2:
        raise InvalidInput(f"folds must be at least 2, got {folds}")
    y = numbers("outcome", outcome)
    query, queries = query_codes(group, len(y))
    if queries == 0:
        return query
    means = np.bincount(query, weights=y) / np.bincount(query)
    shuffled = np.random.default_rng(seed).permutation(queries)
    ordered = shuffled[np.argsort(means[shuffled], kind="stable")]
    fold = np.empty(queries, np.int64)
    fold[ordered] = np.arange(queries) % folds
    return fold[query]
