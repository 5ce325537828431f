"""From candidates to an answer: exact logits of the bank's own vectors, and what they prove.

A kernel may round as it likes, and read vectors in fewer bits; it only has to say how far it can be
off. `bound` gives that for any order of summation, so that one rule serves every machine: rows left
out cannot be among the k best if the k-th best exact logit is above the highest that any of them
could have.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.errors import NonFiniteScore
from retriever.head import Head
from retriever.kernels import reference
from retriever.types import Floats, Ids
from retriever.vectors import BLOCK_FLOATS, Vectors, taken

Doubles: TypeAlias = NDArray[np.float64]

_HALF_ULP = 2.0**-24  # of float32, relative
#: Of float32: what a value or a product near zero may lose where the processor takes it for zero.
UNDERFLOW = 2.0**-126
#: Beyond it a logit is refused.
LARGEST = float(np.finfo(np.float32).max)


class Best(NamedTuple):
    """The best rows of a block for one query, best first, with their logits: (<=k,) both."""

    rows: Ids
    logits: Doubles


class Bound(NamedTuple):
    """How far a float32 logit of (case c, query q) may be from the exact one; (Q,) float64 each.

        |logit - exact| <= slope[q] * ‖v_c‖ + fixed[q] + reach[q] * ‖v_c - stored_c‖

    with v_c the case's whole vector and stored_c what the kernel read in its place.
    """

    reach: Doubles
    slope: Doubles
    fixed: Doubles


def bound(head: Head, queries: Floats) -> Bound:
    """The bound of every float32 kernel of the head: (Q, D + R) -> three (Q,).

    A sum of n rounded products is within n u / (1 - n u) of the exact one, times the sum of the
    products' magnitudes, in whatever order it is taken (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd edition, section 3.1; u = 2^-24). It holds for weight · relu(P + a) and for
    weight · max(P, -a) + weight · a, by Σ|w||P| <= ‖w‖ ‖P‖; 24 of the n are for the constants, the
    norm of the case and the comparison itself being float32, too. The ReLU is 1-Lipschitz: a vector
    that is off by e moves the logit by at most reach ‖e‖.
    """
    weight = np.abs(head.weight, dtype=np.float64)
    asked = np.abs(queries, dtype=np.float64)
    shifts, factors = asked[:, : head.hidden], asked[:, head.hidden :]
    with np.errstate(over="ignore", invalid="ignore"):
        linear = np.full(len(asked), float(head.bias))
        if head.rank:
            linear += np.einsum("qr,qr->q", factors, factors)
        reach = np.sqrt(weight @ weight + linear)
        slope = gamma(head) * reach
        # The last term: squares of values below 1e-19 vanish from a float32 norm.
        fixed = gamma(head) * (2 * shifts @ weight + abs(head.offset) + 1e-17 * reach)
        fixed += lost(head) * (1 + reach)
    return Bound(reach, slope, fixed)


def gamma(head: Head) -> float:
    """How far, relatively, a float32 sum of a logit's terms may be off; see `bound`."""
    error = (head.case_width + 24) * _HALF_ULP
    return error / (1 - error)


def lost(head: Head) -> float:
    """What underflow may take from a float32 sum of a logit's terms, and from the values in it."""
    return (head.case_width + 24) * UNDERFLOW


def rescored(
    head: Head,
    vectors: Vectors,
    query: Floats,
    rows: NDArray[np.integer],
    ids: Ids,
    k: int,
    rising: bool = True,
    *,
    number: int = 0,
) -> Best:
    """The k best of some rows by their exact logits: (N, W), (D + R,), (C,), (N,) -> (<=k,) both.

    Args:
        head: the head.
        vectors: the bank's own, in chunks.
        query: the query's vector.
        rows: the candidates, each once.
        ids: of every row; ties go to the lower.
        k: how many, at most.
        rising: False takes the lowest logits first.
        number: what an error calls the query.

    Raises:
        NonFiniteScore: a candidate's logit is NaN, or beyond what float32 holds.
    """
    own: Ids = np.asarray(rows, dtype=np.int64)
    return ranked(exact_logits(head, vectors, query, own), own, ids, k, rising, number=number)


def ranked(
    logits: Doubles, rows: Ids, ids: Ids, k: int, rising: bool = True, *, number: int = 0
) -> Best:
    """The k best of some rows whose exact logits are given: (C,), (C,), (N,) -> (<=k,) both.

    Raises:
        NonFiniteScore: a logit is NaN, or beyond what float32 holds.
    """
    if not (np.abs(logits) <= LARGEST).all():
        broken = ~(np.abs(logits) <= LARGEST)
        culprit = np.flatnonzero(broken)[np.argmin(ids[rows[broken]])]
        raise NonFiniteScore(
            f"query {number} and case {ids[rows[culprit]]} score {logits[culprit]}: the model or "
            "a stored vector of this case is broken; embed the bank again, or load another artifact"
        )
    keys = -logits if rising else logits
    if k < len(keys):
        # Every logit that ties with the k-th stays in, for the ids to decide.
        near = keys <= np.partition(keys, k - 1)[k - 1]
        rows, logits, keys = rows[near], logits[near], keys[near]
    order = np.lexsort((ids[rows], keys))[:k]
    return Best(rows[order], logits[order])


def exact_logits(head: Head, vectors: Vectors, query: Floats, rows: Ids) -> Doubles:
    """The exact logits of some rows: (N, W), (D + R,), (C,) -> (C,) float64."""
    found = np.empty(len(rows))
    size = max(1, BLOCK_FLOATS // head.case_width)
    for first in range(0, len(rows), size):
        cases = taken(vectors, rows[first : first + size])
        found[first : first + size] = reference.exact(head, cases, query[None])
    return found
