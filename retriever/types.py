"""Records and protocols shared by the light side of `retriever`.

`retriever` never imports `memory`: what it needs of a bank is declared here, and a bank that has
these attributes fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
#: Vectors as a bank holds them: float32 or float16.
Array: TypeAlias = NDArray[np.floating[Any]]

#: Stands for a time that is not known in `Columns`; earlier than every time a case may have.
UNKNOWN_TIME = int(np.iinfo(np.int64).min)

#: A plan as logs hold it: JSON text, free text, `{"plan": [...]}`, a list of steps, or nothing.
Plan: TypeAlias = str | Mapping[str, Any] | Sequence[Any] | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and the case that was, or might be, shown for it."""

    query: str
    case: str
    plan: Plan = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One case found by a search.

    `score` is the mode's own (exact: the calibrated probability; cosine: the cosine). `logit` and
    `probability` are set only where the trained head was used. `rank` starts at 1. `propensity` is
    the chance with which the policy shows this case at this rank, given those above it: 1 where
    nothing is left to chance. `parts` are the scores that a fused one is made of, by mode.
    """

    id: int
    score: float
    rank: int
    logit: float | None = None
    probability: float | None = None
    propensity: float | None = None
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """`score = sigmoid(a * logit + b)`, fitted on held-out queries; (1, 0) changes nothing."""

    a: float = 1.0
    b: float = 0.0


class CaseLike(Protocol):
    """What the text of a case is made of."""

    @property
    def query(self) -> str:
        """The task as it was asked."""
        ...

    @property
    def plan(self) -> Any:
        """What was tried; any form that `text.plan_steps` reads."""
        ...

    @property
    def kind(self) -> str:
        """`case`, `turn`, `fact`, ..."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Free values; a turn's `speaker` is one."""
        ...

    @property
    def created_at(self) -> int | None:
        """Microseconds since 1970-01-01 UTC, or None."""
        ...


class Columns(Protocol):
    """What a search reads of each case beside its vectors; times in microseconds UTC."""

    @property
    def outcome(self) -> Array:
        """(N,) how the stored case once ended, in [0, 1]; NaN where it is not known."""
        ...

    @property
    def valid_from(self) -> Ids:
        """(N,) `UNKNOWN_TIME` where the start is open."""
        ...

    @property
    def valid_to(self) -> Ids:
        """(N,) `UNKNOWN_TIME` where the end is open."""
        ...


class Block(Protocol):
    """An immutable picture of one namespace of a bank, row i of every array being one case.

    Rows are in no order, and what stands in one that is not `live` means nothing. Vectors come in
    chunks of consecutive rows: `embeddings` (n_i, E) of the stored query texts by the untrained
    cosine encoder, `projections` (n_i, D) of the case texts; either is None where the bank was
    opened without that embedder. It stays as it is while the block is held.
    """

    @property
    def bank(self) -> str:
        """The bank's own identity, a UUID made when the database was made."""
        ...

    @property
    def namespace(self) -> str:
        """The tenant."""
        ...

    @property
    def version(self) -> int:
        """Grows with every change of the namespace."""
        ...

    @property
    def ids(self) -> Ids:
        """(N,) unique among live rows."""
        ...

    @property
    def stamps(self) -> Ids:
        """(N,) the change in which a row got its content; (id, stamp) names a content for ever."""
        ...

    @property
    def live(self) -> Bools:
        """(N,) whether a search may return the row."""
        ...

    @property
    def embeddings(self) -> Sequence[Array] | None:
        """(n_i, E) each, N rows together, or None."""
        ...

    @property
    def projections(self) -> Sequence[Array] | None:
        """(n_i, D) each, N rows together, or None."""
        ...

    @property
    def embeddings_key(self) -> str | None:
        """The embedder's key, or None."""
        ...

    @property
    def projections_key(self) -> str | None:
        """The embedder's key, or None."""
        ...

    @property
    def columns(self) -> Columns:
        """What a search may filter by."""
        ...


class CaseSource(Protocol):
    """Where cases come from: `memory.CaseBank` is one."""

    def block(self, namespace: str) -> Block:
        """The newest acknowledged state of `namespace`; cheap when nothing changed."""
        ...

    def eligible(self, block: Block, where: Any) -> Bools | None:
        """Which rows of the block a filter of the source's own lets through: (N,).

        None where the namespace changed since the block was read and the filter needs more than the
        block holds (tags, source): take the newest block and ask again.
        """
        ...


class Lexical(Protocol):
    """A full-text index over the same cases: `memory.CaseBank` is one."""

    def search_text(
        self, query: str, k: int, *, namespace: str, where: Any = None
    ) -> Sequence[tuple[int, float]]:
        """The k best cases by their words, as (id, score), best first; only those that match."""
        ...

    def text_scores(self, query: str, ids: Sequence[int], *, namespace: str) -> Mapping[int, float]:
        """The score that `search_text` has for each of some cases, by id; only those that match."""
        ...
