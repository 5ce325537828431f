"""Modes by the trained head: every case, or the candidates of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.embedders import projection_key
from retriever.errors import IndexUnavailable, NonFiniteScore
from retriever.head import Head
from retriever.kernels.rescoring import bound, rescored
from retriever.modes.mode import Asked, Need, Scope
from retriever.ranking.ranked import Doubles, Ranked, merged
from retriever.scan import Scanner
from retriever.scorer import probabilities
from retriever.tiers.narrowing import narrowed
from retriever.types import Array, Block, Bools, Calibration, Floats, Ids
from retriever.vectors import BLOCK_FLOATS, taken

#: So many more of the best have exact utilities: at the last rank a policy weighs those below, too.
_MARGIN = 64


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

    def whole(self, scope: Scope, asked: Asked, need: Need) -> Ranked:
        """Every eligible row: those needed exactly, the others by the scan's own rounding."""
        rows = np.flatnonzero(scope.eligible)
        logits = self._scanner.logits(scope.block, self._scorer.head, np.asarray(asked))[0, rows]
        broken = ~np.isfinite(logits)
        if broken.any():
            case = scope.block.ids[rows[broken]].min()
            raise NonFiniteScore(
                f"case {case} has no finite score: the model or a stored vector of this case is "
                "broken; embed the bank again, or load another artifact"
            )
        logits = logits.astype(np.float64)
        if need.min_score is not None:
            near = self._near(scope, asked[0], rows, logits, need.min_score)
            logits[near] = self._logits(scope, asked[0], rows[near])
        found = self.ranked(rows, logits)
        for part in need.scopes(scope):
            self._set_right(found, self.best(part, asked, need.count + _MARGIN)[0], part.eligible)
        return found

    def _near(
        self, scope: Scope, asked: Floats, rows: Ids, logits: Doubles, score: float
    ) -> NDArray[np.intp]:
        """The places whose rounding may have carried them over a score: (C,), (C,) -> (B,)."""
        vectors, allowed = self.vectors(scope.block), bound(self._scorer.head, asked[None])
        error = np.empty(len(rows))
        size = max(1, BLOCK_FLOATS // self._scorer.head.case_width)
        for first in range(0, len(rows), size):
            cases = taken(vectors, rows[first : first + size])
            lengths = np.sqrt(np.einsum("cw,cw->c", cases, cases, dtype=np.float64))
            error[first : first + size] = allowed.slope[0] * lengths + allowed.fixed[0]
        calibration = self._scorer.calibration
        low, high = (probabilities(logits + off, calibration) for off in (-error, error))
        return np.flatnonzero((low >= score) != (high >= score))

    def _set_right(self, found: Ranked, best: Ranked, part: Bools) -> None:
        """Write exact values over rounded ones: the best of a part into everything that was found.

        What is not among them is moved below them, which rounding alone may have kept it from.
        """
        if not len(best.rows):
            return
        places = np.searchsorted(found.rows, best.rows)
        others = part[found.rows]
        others[places] = False
        top = np.nextafter(best.utilities.min(), -np.inf)
        found.utilities[others] = np.minimum(found.utilities[others], top)
        found.utilities[places], found.scores[places] = best.utilities, best.scores
        if found.logits is not None and best.logits is not None:
            found.logits[places] = best.logits

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """By float64 logits of the rows."""
        return self.of(scope, asked[0], found.rows)

    def of(self, scope: Scope, asked: Floats, rows: Ids) -> Ranked:
        """Some rows for one query (D + R,), in their order."""
        return self.ranked(rows, self._logits(scope, asked, rows))

    def _logits(self, scope: Scope, asked: Floats, rows: Ids) -> Doubles:
        vectors = self.vectors(scope.block)
        best = rescored(self._scorer.head, vectors, asked, rows, scope.block.ids, max(1, len(rows)))
        order = np.argsort(best.rows)
        return best.logits[order[np.searchsorted(best.rows, rows, sorter=order)]]

    def ranked(self, rows: Ids, logits: Doubles) -> Ranked:
        """With probabilities for scores."""
        chances = probabilities(logits, self._scorer.calibration).astype(np.float64)
        # Copies: utilities may be moved, logits not.
        return Ranked(rows, logits.copy() if self.rising else -logits, chances, logits)

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
        self, block: Block, queries: Floats, count: int, eligible: Bools, *, rising: bool
    ) -> Sequence[Ids | None]:
        """(Q, D + R) -> for each query rows of the block, or None: look at all of them.

        Those that are likely to have the highest logits, or with `rising=False` the lowest.
        """
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
        vectors, block = self.vectors(scope.block), scope.block
        queries = np.asarray(asked)
        # A filter may leave fewer candidates than usual, but not so few that the best are missed.
        needed = min(max(count, min(4 * count, self._candidates)), scope.count)
        proposed = self._propose(
            block, queries, max(count, self._candidates), scope.eligible, rising=self.rising
        )
        found: list[Ranked] = []
        for number, rows in enumerate(proposed):
            rows = None if rows is None else rows[scope.eligible[rows]]
            if rows is None or len(rows) < needed:
                found += super().best(scope, asked[number : number + 1], count)
                continue
            head, query = self._scorer.head, queries[number]
            rows = narrowed(head, vectors, query, rows, count, rising=self.rising)
            best = rescored(
                head, vectors, query, rows, block.ids, count, self.rising, number=number
            )
            found.append(self.ranked(best.rows, best.logits))
        return found

    def whole(self, scope: Scope, asked: Asked, need: Need) -> Ranked:
        """The candidates, of each part."""
        count = max(need.count, self._candidates)
        return merged([self.best(part, asked, count)[0] for part in need.scopes(scope)])
