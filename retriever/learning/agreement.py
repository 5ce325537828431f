"""How far a cheaper form of a model ranks as the model itself: the figures a gate decides by.

What a search returns is an order, so that is what is compared first: the best k of every query, and
the order of all. A narrower encoder can pass on a cosine of .99 and still change half of the best
eight, for the cases of a bank are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput
from retriever.head import Head
from retriever.learning.bootstrap import bootstrap_by_query, paired_difference, statistics_of
from retriever.learning.metrics import auc
from retriever.ordering import top_k
from retriever.scan import logits
from retriever.types import Floats, Ids

TOP = 8
#: Of fp16 and bf16 against fp32.
HALF_OVERLAP, HALF_ERROR = 0.99, 2e-2
#: Of int8 against fp32.
INT8_OVERLAP, INT8_AUC_CHANGE = 0.95, 0.005
#: On fewer the figures of int8 show nothing: of eight cases the best eight always overlap.
INT8_QUERIES, INT8_CASES = 30, 50
RESAMPLES = 2000


class Projects(Protocol):
    """The part of a scorer that is compared."""

    @property
    def head(self) -> Head:
        """The head."""
        ...

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D)."""
        ...

    def project_texts(self, texts: Sequence[str]) -> Floats:
        """N rendered case texts -> (N, D)."""
        ...


@dataclass(frozen=True, slots=True)
class Labelled:
    """P logged pairs of those compared: rows of queries and of cases, and outcomes, (P,) each."""

    query: Ids
    case: Ids
    outcome: Floats


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two matrices of scores (Q, N) compared.

    Attributes:
        overlap: share of the reference's best `TOP` that are among the other's, mean over queries.
        overlap_low, overlap_high: its 95 % interval, from drawing whole queries with replacement;
            NaN for one query.
        kendall: tau-b of the order of all cases, mean over queries; NaN where all scores are equal.
        largest: the largest absolute difference of two scores.
        shift: the mean difference, other minus reference: what a calibration would not know of.
        spread: standard deviation of the reference's scores, to hold the differences against.
        auc: of the reference over the labelled pairs; NaN without pairs of both classes.
        auc_change: the other's AUC minus the reference's; NaN likewise.
        auc_low, auc_high: the 95 % interval of the change, likewise by query.
        queries, cases, pairs: how many were compared.
    """

    overlap: float
    overlap_low: float
    overlap_high: float
    kendall: float
    largest: float
    shift: float
    spread: float
    auc: float
    auc_change: float
    auc_low: float
    auc_high: float
    queries: int
    cases: int
    pairs: int

    def int8_refusals(self) -> list[str]:
        """Why an int8 encoder may not be used; empty where it may.

        The overlap is decided by the lower end of its interval, the change of AUC by its estimate:
        outcomes of one run are too noisy for an interval as narrow as the bound.
        """
        found = []
        if self.queries < INT8_QUERIES or self.cases < INT8_CASES:
            found.append(
                f"{self.queries} queries and {self.cases} cases are too few to tell, at least "
                f"{INT8_QUERIES} and {INT8_CASES} are needed"
            )
        if not self.overlap_low >= INT8_OVERLAP:
            found.append(
                f"top-{TOP} overlap {self.overlap:.3f} (95 % interval {self.overlap_low:.3f} to "
                f"{self.overlap_high:.3f}) is not shown to reach {INT8_OVERLAP}"
            )
        if abs(self.auc_change) > INT8_AUC_CHANGE:  # NaN: no labels, nothing to hold against it
            found.append(f"the AUC changes by {self.auc_change:+.4f}, more than {INT8_AUC_CHANGE}")
        return found

    def half_refusals(self) -> list[str]:
        """Why an encoder in fp16 or bf16 may not be used; empty where it may."""
        found = []
        if not self.overlap >= HALF_OVERLAP:
            found.append(f"top-{TOP} overlap {self.overlap:.3f} is below {HALF_OVERLAP}")
        if not self.largest <= HALF_ERROR:
            found.append(f"a score differs by {self.largest:.3g}, more than {HALF_ERROR}")
        return found


def agreement(
    reference: Floats,
    other: Floats,
    labelled: Labelled | None = None,
    *,
    excluded: NDArray[np.bool_] | None = None,
) -> Agreement:
    """Compare two forms' scores of the same cases for the same queries: (Q, N) and (Q, N).

    Args:
        reference: the scores of the form to be kept to.
        other: those of the cheaper one.
        labelled: the pairs whose outcomes are known.
        excluded: (Q, N) pairs that are no candidates (a query and itself).

    Raises:
        InvalidInput: other shapes, no query or fewer than two cases, a score that is not finite.
    """
    if reference.shape != other.shape or reference.ndim != 2:
        raise InvalidInput(
            f"scores {reference.shape} and {other.shape} must both be (Q, N) of the same pairs"
        )
    queries, cases = reference.shape
    if queries < 1 or cases < 2:
        raise InvalidInput(f"{queries} queries and {cases} cases: at least 1 and 2 are needed")
    if not (np.isfinite(reference).all() and np.isfinite(other).all()):
        raise InvalidInput("scores hold NaN or infinity; such a form cannot be used at all")
    allowed = np.ones(reference.shape, np.bool_) if excluded is None else ~excluded
    first, second = reference.astype(np.float64), other.astype(np.float64)
    differences = (second - first)[allowed]
    taus = [kendall(a[row], b[row]) for a, b, row in zip(first, second, allowed, strict=True)]
    before = after = low = high = float("nan")
    if labelled is not None and len(labelled.outcome):
        pairs = labelled.query, labelled.case
        before = auc(labelled.outcome, first[pairs])
        after = auc(labelled.outcome, second[pairs])
        low, high = _auc_interval(labelled, first[pairs], second[pairs])
    overlap = _overlaps(reference, other, allowed)
    overlap_low, overlap_high = _mean_interval(overlap)
    return Agreement(
        overlap=float(overlap.mean()) if len(overlap) else float("nan"),
        overlap_low=overlap_low,
        overlap_high=overlap_high,
        kendall=float(np.nanmean(taus)) if not np.isnan(taus).all() else float("nan"),
        largest=float(np.abs(differences).max()),
        shift=float(differences.mean()),
        spread=float(first[allowed].std()),
        auc=before,
        auc_change=after - before,
        auc_low=low,
        auc_high=high,
        queries=queries,
        cases=cases,
        pairs=0 if labelled is None else len(labelled.outcome),
    )


def scorers_agree(
    reference: Projects,
    other: Projects,
    queries: Sequence[str],
    cases: Sequence[str],
    labelled: Labelled | None = None,
) -> Agreement:
    """Compare two forms of one retriever on Q queries and N rendered case texts."""
    return agreement(
        logits(
            reference.head, reference.project_texts(cases), reference.query_projections(queries)
        ),
        logits(other.head, other.project_texts(cases), other.query_projections(queries)),
        labelled,
    )


def kendall(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Kendall's tau-b of two rows of scores (N,): 1 the same order, -1 the reverse, ties left out.

    NaN where one of them is all ties. Every pair is looked at: N^2 bytes, twice.
    """
    a = np.sign(first[:, None] - first[None, :]).astype(np.int8)
    b = np.sign(second[:, None] - second[None, :]).astype(np.int8)
    untied = float(np.count_nonzero(a)) * float(np.count_nonzero(b))
    if not untied:
        return float("nan")
    agreeing = float(np.count_nonzero(a * b > 0)) - float(np.count_nonzero(a * b < 0))
    return agreeing / float(np.sqrt(untied))


def _overlaps(reference: Floats, other: Floats, allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share of each query that has a candidate."""
    ids = np.arange(reference.shape[1], dtype=np.int64)
    shares = []
    for number, row in enumerate(allowed):
        one = slice(number, number + 1)
        (kept,) = top_k(reference[one], ids, row, TOP)
        (found,) = top_k(other[one], ids, row, TOP)
        if len(kept):
            shares.append(len(np.intersect1d(kept, found)) / len(kept))
    return np.array(shares, dtype=np.float64)


def _mean_interval(shares: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of (Q,) under draws of Q with replacement."""
    count = len(shares)
    if count < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)  # (B, Q)
    low, high = np.quantile(drawn @ shares / count, (0.025, 0.975))
    return float(low), float(high)


def _auc_interval(
    labelled: Labelled, first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[float, float]:
    """The 95 % interval of the change of AUC, whole queries drawn; NaN where there is none."""
    changes = {
        name: statistics_of(labelled.outcome, _ranked(scores), labelled.query)["auc"]
        for name, scores in (("first", first), ("second", second))
    }
    found = bootstrap_by_query(
        labelled.query, changes, resamples=RESAMPLES, rng=np.random.default_rng(0)
    )
    interval = paired_difference(found, "second", "first")
    return interval.low, interval.high


def _ranked(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores (P,) -> numbers in [0, 1] of the same order and ties, as AUC knows no other."""
    distinct, place = np.unique(scores, return_inverse=True)
    return np.asarray(place / max(1, len(distinct) - 1), dtype=np.float64)
