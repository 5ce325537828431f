"""Splits by query: no query, after normalisation, on two sides, ever.

Rows of one run share their outcome, and rows of one query nearly do; a split by rows lets a model
look the answer up (a bag of words reaches AUC 1.0 that way on Memento's log). So whole queries are
dealt, stratified by their mean outcome. What a query is dealt depends on its text, the outcomes and
the seed, and not on the order of the rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput, SplitRefused
from retriever.learning.data.rows import Rows
from retriever.text import normalise_query
from retriever.types import Bools, Ids

SIDES = ("train", "validation", "test")
_TRAIN, _VALIDATION, _TEST = range(3)


@dataclass(frozen=True, eq=False)
class Split:
    """Row indices of each side, ascending; `test` is empty where none was asked for.

    `digest` is the sha256 over the sorted (normalised query, side): two splits with one digest deal
    the same queries to the same sides, whatever the order of the rows.
    """

    train: Ids
    validation: Ids
    test: Ids
    digest: str

    def sides(self) -> Iterator[tuple[str, Ids]]:
        """(name, row indices) of the three sides."""
        yield from zip(SIDES, (self.train, self.validation, self.test), strict=True)


@dataclass(frozen=True, eq=False)
class _Queries:
    """The Q normalised queries of some rows, sorted, and what stratification needs of each."""

    texts: list[str]
    of_row: Ids  # (R,)
    mean: NDArray[np.float64]  # (Q,)
    classes: Bools  # (Q, 2): has a row in the lower, the upper half of the outcomes

    def __len__(self) -> int:
        return len(self.texts)


def grouped_split(
    rows: Rows, *, validation_fraction: float, test_fraction: float, seed: int
) -> Split:
    """Deal the queries to train, validation and test; fractions are of the queries.

    Each side gets at least one query, and both classes where the log has enough queries for that;
    `test_fraction=0` leaves test empty.

    Raises:
        SplitRefused: one query, one class, or fewer queries than sides.
    """
    _check_fractions(validation_fraction, test_fraction)
    queries = _queries(rows)
    sides = 3 if test_fraction > 0 else 2
    if len(queries) < sides:
        raise SplitRefused(
            f"the log has {len(queries)} queries, and {sides} sides need one each; "
            f"log more queries{', or set test_fraction to 0' if sides == 3 else ''}"
        )
    rng = np.random.default_rng(seed)
    order = _by_outcome(queries, rng)
    sizes = _sizes(len(queries), validation_fraction, test_fraction)
    side = np.full(len(queries), _TRAIN, dtype=np.int64)
    for number, size in ((_TEST, sizes[1]), (_VALIDATION, sizes[0])):
        free = order[side[order] == _TRAIN]
        side[_one_of_each_stratum(free, size, rng)] = number
    _spread_classes(side, queries, rng)
    return _split_of(side, queries)


def grouped_folds(rows: Rows, *, folds: int, validation_fraction: float, seed: int) -> list[Split]:
    """K splits; fold k is the test side of split k, and every row is tested once.

    The validation side is dealt from the queries outside the fold, `validation_fraction` of them.

    Raises:
        SplitRefused: one query, one class, or too few queries for the folds.
    """
    if folds < 2:
        raise InvalidInput(f"folds must be at least 2, got {folds}; or use grouped_split")
    _check_fractions(validation_fraction, 0.0)
    queries = _queries(rows)
    largest = math.ceil(len(queries) / folds)
    # One query each must be left to train and to validate on.
    if len(queries) < max(folds, largest + 2):
        raise SplitRefused(
            f"the log has {len(queries)} queries, too few for {folds} folds with a test, a "
            "validation and a training side each; log more queries or ask for fewer folds"
        )
    rng = np.random.default_rng(seed)
    fold = _dealt(_by_outcome(queries, rng), folds, rng)
    _spread_classes(fold, queries, rng)
    return [_fold_split(queries, fold == k, validation_fraction, rng) for k in range(folds)]


def check_disjoint(split: Split, rows: Rows) -> None:
    """Raise `SplitRefused` where two sides share a row or a normalised query."""
    owner: dict[str, str] = {}
    normal = [normalise_query(text) for text in rows.query_texts]
    taken = np.zeros(len(rows), dtype=np.int64)
    for name, indices in split.sides():
        if len(indices) and (indices.min() < 0 or indices.max() >= len(rows)):
            raise InvalidInput(f"{name} holds rows outside the {len(rows)} given; split these rows")
        np.add.at(taken, indices, 1)
        for number in np.unique(rows.query[indices]).tolist():
            other = owner.setdefault(normal[number], name)
            if other != name:
                raise SplitRefused(
                    f"query {normal[number]!r} is in {other} and in {name}; split by query"
                )
    if (taken > 1).any():
        raise SplitRefused(f"row {int(taken.argmax())} is held more than once; split by query")


def shared_queries(first: Rows, second: Rows) -> list[str]:
    """The normalised queries that rows of both logs have, sorted."""
    return sorted(_normal_queries(first) & _normal_queries(second))


def _normal_queries(rows: Rows) -> set[str]:
    return {normalise_query(rows.query_texts[number]) for number in np.unique(rows.query).tolist()}


def _check_fractions(validation: float, test: float) -> None:
    if not 0.0 < validation < 1.0:
        raise InvalidInput(f"validation_fraction must be in (0, 1), got {validation}")
    if not 0.0 <= test < 1.0 - validation:
        raise InvalidInput(f"test_fraction must be in [0, {1 - validation:g}), got {test}")


def _queries(rows: Rows) -> _Queries:
    if len(rows) == 0:
        raise SplitRefused("the log has no rows to split; check what was dropped")
    outcome = rows.outcome.astype(np.float64)
    if not np.isfinite(outcome).all():
        raise InvalidInput(f"the outcome of row {int(np.isnan(outcome).argmax())} is not finite")
    # By the text itself, and not by `rows.group`: what is promised is about texts.
    used, of_used = np.unique(rows.query, return_inverse=True)
    normal = [normalise_query(rows.query_texts[number]) for number in used.tolist()]
    texts = sorted(set(normal))
    place = {text: number for number, text in enumerate(texts)}
    of_row = np.asarray([place[text] for text in normal], dtype=np.int64)[of_used]
    if len(texts) < 2:
        raise SplitRefused(f"all {len(rows)} rows have one query ({texts[0]!r}); log more queries")
    low, high = float(outcome.min()), float(outcome.max())
    if low == high:
        raise SplitRefused(
            f"all {len(rows)} rows have one outcome ({low:g}): there is nothing to tell apart; "
            "log runs that failed and runs that succeeded"
        )
    # Sorted within the query, so that the rounding of the sum is that of the set, not of the order.
    order = np.lexsort((outcome, of_row))
    starts = np.flatnonzero(np.diff(of_row[order], prepend=-1))
    mean = np.add.reduceat(outcome[order], starts) / np.bincount(of_row)
    classes = np.zeros((len(texts), 2), dtype=np.bool_)
    classes[of_row, (outcome > (low + high) / 2).astype(np.int64)] = True
    return _Queries(texts, of_row, mean, classes)


def _by_outcome(queries: _Queries, rng: np.random.Generator) -> Ids:
    """The queries by their mean outcome, ties in random order: (Q,)."""
    return np.lexsort((rng.permutation(len(queries)), queries.mean))


def _sizes(count: int, validation: float, test: float) -> tuple[int, int]:
    """(validation, test) queries: rounded, at least one each, and at least one left to train on."""
    sizes = [max(1, round(validation * count)), max(1, round(test * count)) if test > 0 else 0]
    while sum(sizes) >= count:
        sizes[int(np.argmax(sizes))] -= 1
    return sizes[0], sizes[1]


def _one_of_each_stratum(order: Ids, size: int, rng: np.random.Generator) -> Ids:
    """Cut the ordered queries into `size` strata and take one at random of each: (size,)."""
    if size == 0:
        return order[:0]
    edges = np.linspace(0, len(order), size + 1).astype(np.int64)
    return order[rng.integers(edges[:-1], edges[1:])]


def _dealt(order: Ids, hands: int, rng: np.random.Generator) -> Ids:
    """Deal the ordered queries like cards, each round in a random order: (Q,) numbers of hands."""
    hand = np.empty(len(order), dtype=np.int64)
    for start in range(0, len(order), hands):
        taken = order[start : start + hands]
        hand[taken] = rng.permutation(hands)[: len(taken)]
    return hand


def _fold_split(
    queries: _Queries, tested: Bools, validation_fraction: float, rng: np.random.Generator
) -> Split:
    order = _by_outcome(queries, rng)
    rest = order[~tested[order]]
    size, _ = _sizes(len(rest), validation_fraction, 0.0)
    side = np.where(tested, _TEST, _TRAIN)
    side[_one_of_each_stratum(rest, size, rng)] = _VALIDATION
    _spread_classes(side, queries, rng, fixed=_TEST)
    return _split_of(side, queries)


def _spread_classes(
    side: Ids, queries: _Queries, rng: np.random.Generator, fixed: int | None = None
) -> None:
    """Swap queries, one for one and in place, while that gives a side a class which it lacks.

    Only what classes a query has matters to a swap, so one random query of each kind and side is
    enough to try. `fixed` names a side that is left alone.
    """
    kind = queries.classes @ np.array([1, 2])  # (Q,) 1: lower only, 2: upper only, 3: both
    sides = [number for number in np.unique(side).tolist() if number != fixed]
    shuffled = rng.permutation(len(queries))
    while True:
        has = {n: np.bincount(kind[side == n], minlength=4) for n in sides}
        swap = _best_swap(has)
        if swap is None:
            return
        (one, one_kind), (other, other_kind) = swap
        first = shuffled[(side[shuffled] == one) & (kind[shuffled] == one_kind)][0]
        second = shuffled[(side[shuffled] == other) & (kind[shuffled] == other_kind)][0]
        side[first], side[second] = other, one


def _best_swap(
    has: dict[int, NDArray[np.int64]],
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The first swap of a query of one kind for one of another that raises the count of classes."""
    for one, counts in has.items():
        if _classes(counts) == 2:
            continue
        for other, others in has.items():
            before = _classes(counts) + _classes(others)
            for give in np.flatnonzero(counts).tolist():
                for take in np.flatnonzero(others).tolist():
                    if one == other or give == take:
                        continue
                    change = np.zeros(4, dtype=np.int64)
                    change[give], change[take] = -1, 1
                    if _classes(counts + change) + _classes(others - change) > before:
                        return (one, give), (other, take)
    return None


def _classes(counts: NDArray[np.int64]) -> int:
    """How many of the two classes a side has, from its count of queries of each kind: (4,)."""
    return int(counts[1] + counts[3] > 0) + int(counts[2] + counts[3] > 0)


def _split_of(side: Ids, queries: _Queries) -> Split:
    digest = hashlib.sha256()
    for text, number in zip(queries.texts, side.tolist(), strict=True):  # sorted already
        # A normalised query holds no tab and no line break: white space was collapsed.
        digest.update(f"{text}\t{SIDES[number]}\n".encode(errors="surrogatepass"))
    of_row = side[queries.of_row]
    train, validation, test = (np.flatnonzero(of_row == number) for number in range(3))
    return Split(train, validation, test, digest.hexdigest())
