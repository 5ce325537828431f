"""Which rows go into which step: whole queries together, a pure function of the seed."""

from __future__ import annotations

import numpy as np

from retriever.learning.data.rows import Rows
from retriever.types import Ids


def grouped_batches(
    rows: Rows,
    *,
    queries_per_batch: int,
    max_rows_per_query: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
) -> list[Ids]:
    """Row numbers of every step of an epoch, each row once.

    The rows of a query stand together, so its text is encoded once a step; a query with more than
    `max_rows_per_query` rows is cut into several, which bounds a step at `queries_per_batch` x
    `max_rows_per_query` rows whatever the order. The number of steps is the same in every epoch,
    and the same (seed, epoch) gives the same batches, whatever ran before: an exact resume needs
    both.
    """
    if not len(rows):
        return []
    order = np.argsort(rows.group, kind="stable")  # rows of one query side by side
    bounds = np.flatnonzero(np.diff(rows.group[order])) + 1
    parts = [
        query[start : start + max_rows_per_query]
        for query in np.split(order, bounds)
        for start in range(0, len(query), max_rows_per_query)
    ]
    if shuffle:
        rng = np.random.default_rng([seed, epoch])
        parts = [parts[i] for i in rng.permutation(len(parts))]
    steps = -(-len(parts) // queries_per_batch)
    # Even shares: no last step of one query, whose gradient would be mostly noise.
    return [
        np.concatenate([parts[i] for i in share])
        for share in np.array_split(np.arange(len(parts)), steps)
    ]


def shard(batches: list[Ids], rank: int, world_size: int) -> list[Ids]:
    """Every `world_size`-th batch, the first ones repeated so that all ranks take as many steps."""
    if world_size == 1 or not batches:
        return batches
    steps = -(-len(batches) // world_size)
    return [batches[(step * world_size + rank) % len(batches)] for step in range(steps)]
