"""Records and protocols shared by the light side of `retriever`.

`retriever` never imports `memory`: what it needs of a bank is declared here, and a bank that has these
attributes fits.
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
    `probability` are set only where the trained head was used. `rank` starts at 1.
    """

    id: int
    score: float
    rank: int
    logit: float | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """`score = sigmoid(a * logit + b)`, fitted on held-out queries; (1, 0) changes nothing."""

    a: float = 1.0
    b: float = 0.0


class CaseLike(Protocol):
    """What the text of a case is made of."""

    @property
    def query(self) -> str: ...
    @property
    def plan(self) -> Any: ...
    @property
    def kind(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def created_at(self) -> int | None:
        """Microseconds since 1970-01-01 UTC, or None."""
        ...


class Block(Protocol):
    """An immutable picture of one namespace of a bank, row i of every array being one case.

    `ids` (N,) ascending; `live` (N,) False for cases that no search may return; `embeddings`
    (N, E) of the stored query texts by the untrained cosine encoder; `projections` (N, D) of the
    case texts; either is None where the bank was opened without that embedder.
    """

    @property
    def bank(self) -> str:
        """The bank's own identity, a UUID made when the database was made."""
        ...

    @property
    def namespace(self) -> str: ...
    @property
    def version(self) -> int:
        """Grows with every change of the namespace."""
        ...

    @property
    def ids(self) -> Ids: ...
    @property
    def live(self) -> Bools: ...
    @property
    def embeddings(self) -> Floats | None: ...
    @property
    def projections(self) -> Floats | None: ...
    @property
    def embeddings_key(self) -> str | None: ...
    @property
    def projections_key(self) -> str | None: ...


class CaseSource(Protocol):
    """Where cases come from: `memory.CaseBank` is one."""

    def block(self, namespace: str) -> Block:
        """The newest acknowledged state of `namespace`; cheap when nothing changed."""
        ...
