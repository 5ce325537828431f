"""Modes by the trained head: every case, or the candidates of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from retriever.embedders import projection_key
from retriever.errors import IndexUnavailable, NonFiniteScore
from retriever.head import Head
from retriever.kernels.rescoring import rescored
from retriever.modes.mode import Asked, Scope
from retriever.ranking.ranked import Doubles, Ranked
from retriever.scan import Scanner
from retriever.scorer import probabilities
from retriever.tiers.narrowing import narrowed
from retriever.types import Array, Block, Bools, Calibration, Floats, Ids


class QueryScorer(Protocol):
    """The part of a scorer that a search needs."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector could."""
        ...

    @property
    def head(self) -> Head:
        """From the vectors of case and query to a logit."""
        ...

    @property
    def calibration(self) -> Calibration:
        """From logits to probabilities."""
        ...

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D + R), as the head reads them."""
        ...


class Exact:
    """By the trained head: every case is scored."""

    pooled = False

    def __init__(self, scorer: QueryScorer, scanner: Scanner) -> None:
        self._scorer, self._scanner = scorer, scanner
        # By logit, for saturated sigmoids tie where logits do not; a calibration that falls with
        # the logit turns the order round with it.
        self.rising = scorer.calibration.a >= 0

    def check(self, block: Block) -> None:
        """It needs projections of this scorer."""
        self.vectors(block)

    def ask(self, queries: Sequence[str]) -> Asked:
        """(Q, D + R)."""
        return self._scorer.query_projections(queries)

    def best(self, scope: Scope, asked: Asked, count: int) -> list[Ranked]:
        """By the scan."""
        found = self._scanner.top_k(
            scope.block,
            self._scorer.head,
            np.asarray(asked),
            scope.eligible,
            count,
            rising=self.rising,
        )
        return [self.ranked(rows, logits) for rows, logits in found]

    def whole(self, scope: Scope, asked: Asked, at_least: int) -> Ranked:
        """Every eligible row, by the scan's own rounding."""
        rows = np.flatnonzero(scope.eligible)
        logits = self._scanner.logits(scope.block, self._scorer.head, np.asarray(asked))[0, rows]
        broken = ~np.isfinite(logits)
        if broken.any():
            case = scope.block.ids[rows[broken]].min()
            raise NonFiniteScore(
                f"case {case} has no finite score: the model or a stored vector of this case is "
                "broken; embed the bank again, or load another artifact"
            )
        return self.ranked(rows, logits.astype(np.float64))

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """By float64 logits of the rows."""
        return self.of(scope, asked[0], found.rows)

    def of(self, scope: Scope, asked: Floats, rows: Ids) -> Ranked:
        """Some rows for one query (D + R,), in their order."""
        vectors = self.vectors(scope.block)
        best = rescored(self._scorer.head, vectors, asked, rows, scope.block.ids, max(1, len(rows)))
        return _in_order(self.ranked(best.rows, best.logits), rows)

    def ranked(self, rows: Ids, logits: Doubles) -> Ranked:
        """With probabilities for scores."""
        chances = probabilities(logits, self._scorer.calibration).astype(np.float64)
        return Ranked(rows, logits if self.rising else -logits, chances, logits)

    def vectors(self, block: Block) -> Sequence[Array]:
        """The projections, if they are this scorer's.

        Raises:
            IndexUnavailable: they are not, or there are none.
        """
        expected = projection_key(self._scorer.fingerprint)
        if block.projections is None or block.projections_key != expected:
            raise IndexUnavailable(
                f"namespace {block.namespace!r} has projections of {block.projections_key!r}, this "
                f"scorer needs {expected!r}; open the bank with CaseProjector(scorer) of the "
                "scorer that searches"
            )
        return block.projections


class Propose(Protocol):
    """What finds candidates for the head: an index over a block's projections."""

    def __call__(
        self, block: Block, queries: Floats, count: int, eligible: Bools
    ) -> Sequence[Ids | None]:
        """(Q, D + R) -> for each query rows of the block, or None: look at all of them."""
        ...


class Ann(Exact):
    """By the trained head among candidates of an index; by the whole scan where it gives none.

    Args:
        scorer: the trained retriever.
        scanner: for the queries that the index leaves.
        propose: the index.
        candidates: how many rows are scored for a query, at least.
    """

    def __init__(
        self, scorer: QueryScorer, scanner: Scanner, propose: Propose, candidates: int
    ) -> None:
        super().__init__(scorer, scanner)
        self._propose, self._candidates = propose, candidates

    def best(self, scope: Scope, asked: Asked, count: int) -> list[Ranked]:
        """Exact scores of the candidates."""
        if not self.rising:  # the index proposes the highest logits
            return super().best(scope, asked, count)
        vectors, block = self.vectors(scope.block), scope.block
        queries = np.asarray(asked)
        needed = min(count, scope.count)
        proposed = self._propose(block, queries, max(count, self._candidates), scope.eligible)
        found: list[Ranked] = []
        for number, rows in enumerate(proposed):
            rows = None if rows is None else rows[scope.eligible[rows]]
            if rows is None or len(rows) < needed:
                found += super().best(scope, asked[number : number + 1], count)
                continue
            rows = narrowed(self._scorer.head, vectors, queries[number], rows, count)
            best = rescored(
                self._scorer.head, vectors, queries[number], rows, block.ids, count, number=number
            )
            found.append(self.ranked(best.rows, best.logits))
        return found

    def whole(self, scope: Scope, asked: Asked, at_least: int) -> Ranked:
        """The candidates."""
        return self.best(scope, asked, max(at_least, self._candidates))[0]


def _in_order(found: Ranked, rows: Ids) -> Ranked:
    """What was found, in the order of `rows`; both hold the same."""
    order = np.argsort(found.rows)
    return found.at(order[np.searchsorted(found.rows, rows, sorter=order)])
