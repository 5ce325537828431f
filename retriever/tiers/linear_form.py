"""The head as an inner product: what FAISS can search for rows that the exact score then orders.

Of one hidden unit, with the bank's values P of mean μ and deviation σ, and z = (μ + a) / σ:

    relu(P + a)  ≈  const(a)  +  Φ(z) · (P − μ)  +  φ(z) / (2σ) · ((P − μ)² − σ²)

This is the expansion in Hermite polynomials of P up to the second, the best quadratic in mean
square where P is normal: by Stein's lemma, E[f(P)(P − μ)] = σ² E[f'(P)] and E[f''(P)] = φ(z)/σ for
a relu (C. Stein, Estimation of the mean of a multivariate normal distribution, Ann. Statist. 9,
1981). For jointly normal units the first two terms are also the best *linear* form of the whole
head, whatever the correlations. Summed with the head's weights it is g(q) · F(c) with

    F(c) = [w (P − μ) | w ((P − μ)² − σ²) / 2σ | b − b̄]       g(q) = [Φ(z) | φ(z) | 1]

and the product ⟨r, s⟩ beside it, exactly. F has 2D values; gates g differ little between queries,
so F is reduced to the directions that matter: with C = E[g gᵀ] ≈ ḡḡᵀ + v I, those of the largest
eigenvalues of C^½ Cov(F) C^½, the reduction of least error in the score (as reduced rank
regression; A. J. Izenman, J. Multivariate Anal. 5, 1975). ḡ is taken at a = 0 and v is a
gate's variance between queries; none of them has to be known. Without ḡ, a plain principal
component analysis, an untrained head's best rows are lost: its order is mostly that of w · P / 2.

Lists and graphs are made for nearness, not for large products. One more value, √(ρ² − |x|²), puts
every vector x on a sphere of radius ρ, and a 0 beside the query leaves its products as they are; so
large products are near neighbours (Y. Bachrach et al., RecSys 2014; B. Neyshabur, N. Srebro, ICML
2015). Without it FAISS's lists came out so uneven that most searches found too few rows.

What it is not: exact. Every row it proposes is scored again, and what it misses is measured
(`benchmarks/tiers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from retriever.head import Head
from retriever.types import Floats

Doubles: TypeAlias = NDArray[np.float64]

#: v above, between the variances of Φ(z), .06 to .10, and of φ(z), .016, over Memento's queries;
#: from .01 to .1 recall is the same.
GATE_VARIANCE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class LinearForm:
    """Turns a case's vector and a query's into two whose inner product orders as the head does.

    Attributes:
        weight: (D,) of the head.
        bias: whether the head has one.
        mean: (D + bias,) of the bank's values.
        deviation: (D,) of the bank's values.
        cases: (2D + bias, r) from features to directions.
        queries: (2D + bias, r) from gates to the same.
        radius: ρ, the length that all but the longest vectors of a thousand stay below.
    """

    weight: Floats
    bias: bool
    mean: Floats
    deviation: Floats
    cases: Floats
    queries: Floats
    radius: float

    @classmethod
    def fit(cls, head: Head, sample: Floats, width: int) -> LinearForm:
        """From a sample of a bank's vectors: (n, W).

        Args:
            head: whose score it is.
            sample: vectors [P | b | r] of some cases, at least one.
            width: values of a vector that is indexed; a product of the head comes on top.
        """
        hidden, known = head.hidden, head.hidden + int(head.bias)
        units = sample[:, :known]
        mean = units.mean(axis=0, dtype=np.float64)
        deviation = units[:, :hidden].std(axis=0, dtype=np.float64)
        deviation[deviation == 0] = 1.0  # a unit that never differs has no features
        mean32, deviation32 = mean.astype(np.float32), deviation.astype(np.float32)
        features = _features(units, head.weight, mean32, deviation32)  # (n, F)
        covariance = (features.T @ features).astype(np.float64) / len(features)
        gates = _gates(np.zeros((1, hidden), np.float32), mean32, deviation32, head.bias)
        root, inverse = _roots(gates[0].astype(np.float64))
        _, directions = np.linalg.eigh(root @ covariance @ root)  # eigenvalues rise
        kept = directions[:, ::-1][:, : max(1, width - 1)]
        cases = np.ascontiguousarray(root @ kept, np.float32)
        reduced = np.hstack([features @ cases, sample[:, known:]])
        lengths = np.linalg.norm(reduced, axis=1)
        radius = float(np.quantile(lengths, 0.999)) or 1.0
        queries = np.ascontiguousarray(inverse @ kept, np.float32)
        return cls(head.weight, head.bias, mean32, deviation32, cases, queries, radius)

    @property
    def width(self) -> int:
        """Values of a vector, without a product of the head."""
        return int(self.cases.shape[1]) + 1

    def case_vectors(self, vectors: Floats) -> Floats:
        """What the index holds of cases: (C, W) -> (C, r + R + 1), of length one."""
        known = len(self.mean)
        features = _features(vectors[:, :known], self.weight, self.mean, self.deviation)
        out = np.empty((len(vectors), self.width + vectors.shape[1] - known), np.float32)
        out[:, :-1] = np.hstack([features @ self.cases, vectors[:, known:]])
        out[:, :-1] /= self.radius
        squares = np.einsum("cr,cr->c", out[:, :-1], out[:, :-1])
        out[:, -1] = np.sqrt(np.maximum(0.0, 1.0 - squares))
        return out

    def query_vectors(self, queries: Floats) -> Floats:
        """What the index is asked: (Q, D + R) -> (Q, r + R + 1)."""
        hidden = len(self.weight)
        gates = _gates(queries[:, :hidden], self.mean, self.deviation, self.bias)
        nothing = np.zeros((len(queries), 1), np.float32)
        return np.hstack([gates @ self.queries, queries[:, hidden:], nothing])


def _features(units: Floats, weight: Floats, mean: Floats, deviation: Floats) -> Floats:
    """F(c): (C, D + bias) -> (C, 2D + bias)."""
    hidden = len(weight)
    away = units - mean
    first = away[:, :hidden]
    second = first * first
    second -= deviation * deviation
    second *= weight / (2 * deviation)
    return np.hstack([first * weight, second, away[:, hidden:]])


def _gates(queries: Floats, mean: Floats, deviation: Floats, bias: bool) -> Floats:
    """g(q): (Q, D) -> (Q, 2D + bias)."""
    # Past ±12 a gate is 0 or 1 in float32; further out its cube would overflow.
    z = np.clip((mean[: queries.shape[1]] + queries) / deviation, -12, 12)
    # Φ to 3e-4 without a special function (D. Hendrycks, K. Gimpel, arXiv 1606.08415, 2016).
    first = 0.5 * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    second = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    parts = [first, second]
    if bias:
        parts.append(np.ones((len(queries), 1)))
    return np.hstack(parts).astype(np.float32)


def _roots(gate: Doubles) -> tuple[Doubles, Doubles]:
    """C^½ and C^-½ of C = ḡḡᵀ + v I, which is I·√v but for the one direction ḡ: (F, F) both."""
    length = float(np.linalg.norm(gate))
    outer = np.outer(gate, gate) / length**2  # a gate of the bank's mean is never all zeros
    low, high = np.sqrt(GATE_VARIANCE), np.sqrt(GATE_VARIANCE + length**2)
    identity = np.eye(len(gate))
    return (
        low * identity + (high - low) * outer,
        identity / low + (1 / high - 1 / low) * outer,
    )
