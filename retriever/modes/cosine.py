"""The mode that compares a query with the stored queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from retriever.embedders import QueryEncoder, query_key
from retriever.errors import IndexUnavailable
from retriever.modes.mode import Asked, Need, Scope
from retriever.ranking.ranked import Ranked, by_score
from retriever.types import Block, Bools, Floats, Ids
from retriever.units import normalised, scanned, units


class Nearest(Protocol):
    """What finds the nearest query texts: an index over a block's embeddings."""

    def __call__(
        self, block: Block, queries: Floats, k: int, eligible: Bools
    ) -> Sequence[tuple[Ids, Floats]]:
        """(Q, E) -> Q pairs of (<=k,) rows and cosines, best first."""
        ...


class Cosine:
    """By how like the stored query texts are, under an untrained encoder."""

    pooled = False

    def __init__(self, encoder: QueryEncoder, nearest: Nearest) -> None:
        self._encoder, self._nearest = encoder, nearest

    def check(self, block: Block) -> None:
        """It needs embeddings of this encoder."""
        expected = query_key(self._encoder.fingerprint)
        known = (expected, query_key(self._encoder.fingerprint, whole_turns=True))
        if block.embeddings is None or block.embeddings_key not in known:
            raise IndexUnavailable(
                f"namespace {block.namespace!r} has query embeddings of {block.embeddings_key!r}, "
                f"cosine mode needs {expected!r}; open the bank with QueryEmbedder(encoder) of the "
                "encoder that searches"
            )

    def ask(self, queries: Sequence[str]) -> Asked:
        """(Q, E)."""
        return self._encoder.embed(queries)

    def best(self, scope: Scope, asked: Asked, count: int) -> list[Ranked]:
        """By the index."""
        found = self._nearest(scope.block, np.asarray(asked), count, scope.eligible)
        return [by_score(rows, cosines) for rows, cosines in found]

    def whole(self, scope: Scope, asked: Asked, need: Need) -> Ranked:
        """Every eligible row."""
        rows = np.flatnonzero(scope.eligible)
        query = normalised(np.asarray(asked), None)
        return by_score(rows, scanned(scope.block, query, scope.eligible)[0, rows])

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """As they are: a scan gives the cosines that the index gives."""
        return found

    def of(self, scope: Scope, asked: Floats, rows: Ids) -> Ranked:
        """Some rows for one query (E,), in their order."""
        query = normalised(asked[None], None)[0]
        return by_score(rows, np.einsum("ce,e->c", units(scope.block, rows), query))
