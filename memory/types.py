"""What `memory` needs of others, declared here: `retriever` fulfils it and is never imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
#: Vectors as they are held: float32 or float16.
Array: TypeAlias = NDArray[np.floating[Any]]
Outcomes: TypeAlias = NDArray[np.float64]
Kinds: TypeAlias = NDArray[np.uint8]
Times: TypeAlias = NDArray[np.int64]


class CaseLike(Protocol):
    """What the text of a case is made of."""

    @property
    def query(self) -> str:
        """The task as asked, or the words of a turn."""
        ...

    @property
    def plan(self) -> Any:
        """Text, an object, a list of steps, or None."""
        ...

    @property
    def kind(self) -> str:
        """One of `memory.KINDS`."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON values by name."""
        ...

    @property
    def created_at(self) -> int | None:
        """Microseconds since 1970-01-01 UTC, or None."""
        ...


class Embedder(Protocol):
    """Turns cases into vectors. The bank may call it from several threads at once."""

    @property
    def key(self) -> str:
        """Names everything that changes a vector: encoder, text format, what is embedded."""
        ...

    @property
    def dim(self) -> int:
        """How many values a vector has."""
        ...

    def text(self, case: CaseLike) -> str:
        """The model's text of a case; depends on nothing but the case and what `key` names."""
        ...

    def embed(self, texts: Sequence[str]) -> Floats:
        """Embed model texts: N texts -> (N, dim) float32, every value finite."""
        ...
