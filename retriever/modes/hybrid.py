"""The mode that does both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retriever.modes.cosine import Cosine
from retriever.modes.exact import Exact
from retriever.modes.lexical import ByWords
from retriever.modes.mode import Asked, Need, Scope
from retriever.ranking.fusion import Fusion, Side
from retriever.ranking.ranked import Doubles, Ranked, merged, nothing
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
        return [
            self._fused(scope, query, lists).best(count, scope.block.ids)
            for query, lists in zip(asked, self._lists(scope, asked, count), strict=True)
        ]

    def whole(self, scope: Scope, asked: Asked, need: Need) -> Ranked:
        """The pool, with the best of each part on either side."""
        (lists,) = self._lists(scope, asked, need.count)
        more = [self._of_part(part, asked, need.count, lists) for part in need.scopes(scope)]
        return self._fused(scope, asked[0], lists, more if need.parts else [])

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """As they are."""
        return found

    def _lists(self, scope: Scope, asked: Asked, count: int) -> list[_Lists]:
        """What either side has for each query."""
        depth = max(count, self._fusion.depth)
        near = self._dense.best(scope, np.stack([vector for vector, _ in asked]), depth)
        matching = self._lexical.best(scope, [query for _, query in asked], depth)
        return [
            # A list of words that is not full holds everything that matches.
            _Lists(dense, lexical, len(lexical.rows) >= depth)
            for dense, lexical in zip(near, matching, strict=True)
        ]

    def _of_part(self, part: Scope, asked: Asked, count: int, known: _Lists) -> _Lists:
        """The `count` best of a part on either side; a side that has them already gives nothing."""
        dense, lexical, cut_off = known
        ((vector, query),) = asked
        near, matching = dense.at(_NONE), lexical.at(_NONE)
        if np.count_nonzero(part.eligible[dense.rows]) < min(count, part.count):
            (near,) = self._dense.best(part, vector[None], count)
        if cut_off and np.count_nonzero(part.eligible[lexical.rows]) < min(count, part.count):
            (matching,) = self._lexical.best(part, [query], count)
        return _Lists(near, matching, cut_off)

    def _fused(
        self, scope: Scope, asked: tuple[Floats, str], lists: _Lists, more: Sequence[_Lists] = ()
    ) -> Ranked:
        if not len(lists.dense.rows):
            return nothing(self._name, "lexical", logits=lists.dense.logits is not None)
        (vector, query), ids = asked, scope.block.ids
        dense = _together([lists.dense, *(part.dense for part in more)], ids)
        lexical = _together([lists.lexical, *(part.lexical for part in more)], ids)
        rows = np.union1d(dense.rows, lexical.rows)
        # Either side has a score for everything, also for what only the other brought in.
        pool = self._dense.of(scope, vector, rows)
        words = np.zeros(len(rows))
        words[np.searchsorted(rows, lexical.rows)] = lexical.scores
        if lists.cut_off:
            others = np.flatnonzero(~np.isin(rows, lexical.rows))
            words[others] = self._lexical.of(scope, query, rows[others])
        fused = self._fusion.fused(
            Side(pool.utilities, _ranks(rows, dense)),
            Side(words, _ranks(rows, lexical)),
            np.isin(rows, lists.dense.rows) | np.isin(rows, lists.lexical.rows),
        )
        return Ranked(rows, fused, fused, pool.logits, {self._name: pool.scores, "lexical": words})


class _Lists(NamedTuple):
    """What either side names for one query, best first, and whether more cases have its words."""

    dense: Ranked
    lexical: Ranked
    cut_off: bool


_NONE = np.empty(0, np.intp)


def _together(lists: Sequence[Ranked], ids: Ids) -> Ranked:
    """One list, best first, of several that may share rows."""
    if len(lists) == 1:
        return lists[0]
    found = merged(lists)
    _, firsts = np.unique(found.rows, return_index=True)
    return found.at(firsts).best(len(firsts), ids)


def _ranks(rows: Ids, side: Ranked) -> Doubles:
    """The rank of each of the rows (ascending) in a side's list, 0 where it is not in it."""
    ranks = np.zeros(len(rows))
    ranks[np.searchsorted(rows, side.rows)] = np.arange(1, len(side.rows) + 1)
    return ranks
