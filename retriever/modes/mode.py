"""What a mode is, and where it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from retriever.ranking.ranked import Ranked
from retriever.types import Block, Bools

#: Q queries as a mode reads them: an array of Q rows, or a list of Q.
Asked: TypeAlias = Any


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """Where a search looks.

    Attributes:
        block: the picture of the namespace.
        eligible: (N,) the rows that may be found, a part of the live ones.
        where: the source's own filter, which is in `eligible` already.
    """

    block: Block
    eligible: Bools
    where: Any = None

    def narrowed(self, mask: Bools) -> Scope:
        """To the rows where the mask is True: (N,)."""
        return replace(self, eligible=self.eligible & mask)

    @property
    def count(self) -> int:
        """How many rows may be found."""
        return int(np.count_nonzero(self.eligible))


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What must be in a pool.

    Attributes:
        count: at least so many of the best rows, with exact utilities, if there are so many.
        parts: (N,) masks, apart from each other: the rows that may be found are theirs alone, and
            `count` is of each. None where there is but one part.
        min_score: every row with this score or more, by its exact score, has it here too.
    """

    count: int
    parts: Sequence[Bools] = ()
    min_score: float | None = None

    def scopes(self, scope: Scope) -> list[Scope]:
        """Where each part lies."""
        return [scope.narrowed(part) for part in self.parts] if self.parts else [scope]


class Mode(Protocol):
    """One way to rank. `asked` is what `ask` made of queries, or a slice of it."""

    @property
    def pooled(self) -> bool:
        """Whether scores depend on what else may be found, so that a search must not be split."""
        ...

    def check(self, block: Block) -> None:
        """Refuse a block without the vectors this needs, whether or not it holds cases.

        Raises:
            IndexUnavailable: they are missing, or of another model.
        """
        ...

    def ask(self, queries: Sequence[str]) -> Asked:
        """Encode queries, once, whatever is then done with them."""
        ...

    def best(self, scope: Scope, asked: Asked, count: int) -> list[Ranked]:
        """The `count` best rows for each query, best first."""
        ...

    def whole(self, scope: Scope, asked: Asked, need: Need) -> Ranked:
        """For one query, every row that can be named, in any order; no fewer than is needed.

        Scores of rows that are not needed may be rounded: `exactly` sets them right. A rounded
        utility is below the exact ones that the mode ranks above it.
        """
        ...

    def exactly(self, scope: Scope, asked: Asked, found: Ranked) -> Ranked:
        """Rows of `whole`, in their order, with exact scores."""
        ...
