"""The mode that does both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retriever.modes.cosine import Cosine
from retriever.modes.exact import Exact
from retriever.modes.lexical import ByWords
from retriever.modes.mode import Asked, Scope
from retriever.ranking.fusion import Fusion, Side
from retriever.ranking.ranked import Doubles, Ranked, nothing
from retriever.types import Block, Floats, Ids


class Hybrid:
    """The words' ranking fused with a model's; see `ranking.fusion`.

    Args:
        dense: the model's.
        name: what it is called among a hit's parts.
        lexical: the words'.
        fusion: how.
    """

    pooled = True

    def __init__(self, dense: Exact | Cosine, name: str, lexical: ByWords, fusion: Fusion) -> None:
        self._dense, self._name, self._lexical, self._fusion = dense, name, lexical, fusion

    def check(self, block: Block) -> None:
        """It needs what the model needs."""
        self._dense.check(block)

    def ask(self, queries: Sequence[str]) -> Asked:
        """Vectors and words."""
        return list(zip(self._dense.ask(queries), queries, strict=True))

    def best(self, scope: Scope, asked: Asked, count: int) -> list[Ranked]:
        """The best of each query's pool."""
        pools = self._pools(scope, asked, max(count, self._fusion.depth))
        return [pool.best(count, scope.block.ids) for pool in pools]

    def whole(self, scope: Scope, asked: Asked, at_least: int) -> Ranked:
        """The pool."""
        return self._pools(scope, asked, max(at_least, self._fusion.depth))[0]

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """As they are."""
        return found

    def _pools(self, scope: Scope, asked: Asked, depth: int) -> list[Ranked]:
        vectors = np.stack([vector for vector, _ in asked])
        near = self._dense.best(scope, vectors, depth)
        matching = self._lexical.best(scope, [query for _, query in asked], depth)
        return [
            self._fused(scope, vector, dense, lexical)
            for vector, dense, lexical in zip(vectors, near, matching, strict=True)
        ]

    def _fused(self, scope: Scope, vector: Floats, dense: Ranked, lexical: Ranked) -> Ranked:
        if not len(dense.rows):
            return nothing(self._name, "lexical", logits=dense.logits is not None)
        rows = np.union1d(dense.rows, lexical.rows)
        # The model has a score for everything, also for what only the words brought in.
        pool = self._dense.of(scope, vector, rows)
        words = np.zeros(len(rows))
        words[np.searchsorted(rows, lexical.rows)] = lexical.scores
        fused = self._fusion.fused(
            Side(pool.utilities, _ranks(rows, dense)), Side(words, _ranks(rows, lexical))
        )
        return Ranked(rows, fused, fused, pool.logits, {self._name: pool.scores, "lexical": words})


def _ranks(rows: Ids, side: Ranked) -> Doubles:
    """The rank of each of the rows (ascending) in a side's list, 0 where it is not in it."""
    ranks = np.zeros(len(rows))
    ranks[np.searchsorted(rows, side.rows)] = np.arange(1, len(side.rows) + 1)
    return ranks
