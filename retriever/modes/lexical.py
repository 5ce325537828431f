"""The mode that compares words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retriever.modes.mode import Asked, Need, Scope
from retriever.ranking.ranked import Doubles, Ranked, by_score
from retriever.types import Block, Ids, Lexical


class ByWords:
    """By the words that cases share with the query: the bank's own full-text index.

    It reads the newest state of the bank, which may be newer than the block: a case that is not in
    the block is left out.
    """

    pooled = False

    def __init__(self, index: Lexical) -> None:
        self._index = index

    def check(self, block: Block) -> None:
        """It needs no vectors."""

    def ask(self, queries: Sequence[str]) -> Asked:
        """The words themselves."""
        return queries

    def best(self, scope: Scope, asked: Asked, count: int) -> list[Ranked]:
        """Those that match."""
        return [self._matching(scope, query, count) for query in asked]

    def whole(self, scope: Scope, asked: Asked, need: Need) -> Ranked:
        """Every eligible row that matches."""
        return self._matching(scope, asked[0], max(1, scope.count))

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """As they are."""
        return found

    def of(self, scope: Scope, query: str, rows: Ids) -> Doubles:
        """The scores of some rows: (C,) -> (C,); 0 where no word matches."""
        ids: list[int] = scope.block.ids[rows].tolist()
        scores = self._index.text_scores(query, ids, namespace=scope.block.namespace)
        return np.array([scores.get(id_, 0.0) for id_ in ids], np.float64)

    def _matching(self, scope: Scope, query: str, count: int) -> Ranked:
        block, fetch = scope.block, count
        while True:
            hits = self._index.search_text(
                query, fetch, namespace=block.namespace, where=scope.where
            )
            found = self._known(scope, dict(hits))
            if len(found.rows) >= count or len(hits) < fetch:
                return found.best(count, block.ids)
            fetch = min(4 * fetch, 2**31 - 1)  # the best were of cases that may not be found

    def _known(self, scope: Scope, scores: dict[int, float]) -> Ranked:
        ids = np.fromiter(scores, np.int64, len(scores))
        rows = np.flatnonzero(scope.eligible & np.isin(scope.block.ids, ids))
        found = [scores[int(id_)] for id_ in scope.block.ids[rows]]
        return by_score(rows, np.array(found, np.float64))
