"""What an index holds of a block: unit vectors of query texts, or a head's candidate vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.errors import IndexUnavailable
from retriever.head import Head
from retriever.tiers.linear_form import LinearForm
from retriever.tiers.plan import Mode
from retriever.types import Array, Block, Bools, Floats, Ids
from retriever.units import sound_units, width
from retriever.vectors import shape, taken


class Space(Protocol):
    """From rows of a block to the vectors that are indexed."""

    mode: Mode
    role: Literal["embeddings", "projections"]

    @property
    def name(self) -> str:
        """Differs where equal rows would give other vectors; part of a saved index."""
        ...

    def check(self, block: Block) -> None:
        """Raise `IndexUnavailable` or `InvalidInput` where a block lacks what is needed."""
        ...

    def fit(self, block: Block, sample: Ids) -> None:
        """Learn from some live rows, one sound one at least, how the others are best turned."""
        ...

    def width(self, block: Block) -> int:
        """E, the values of a vector; after `fit`."""
        ...

    def vectors(self, block: Block, rows: Ids) -> tuple[Floats, Bools]:
        """Of some live rows: (C,) -> (C, E), (C,).

        The second says which rows can be indexed; the bank's vector of another holds NaN or
        infinity, and what stands for it here means nothing.
        """
        ...

    def sound(self, block: Block, rows: Ids) -> Bools:
        """Which of some live rows are numbers: (C,) -> (C,); before `fit`, too."""
        ...

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """What `fit` learnt."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take it back. Raises KeyError or ValueError where it does not fit."""
        ...


class UnitSpace:
    """Query texts' embeddings at length one; the inner product is the cosine. Nothing to learn."""

    mode: Mode = "cosine"
    role: Literal["embeddings", "projections"] = "embeddings"
    name = "units"

    def check(self, block: Block) -> None:
        """See `Space.check`."""
        width(block)

    def fit(self, block: Block, sample: Ids) -> None:
        """See `Space.fit`."""

    def width(self, block: Block) -> int:
        """See `Space.width`."""
        return width(block)

    def vectors(self, block: Block, rows: Ids) -> tuple[Floats, Bools]:
        """See `Space.vectors`."""
        return sound_units(block, rows)

    def sound(self, block: Block, rows: Ids) -> Bools:
        """See `Space.sound`."""
        return sound_units(block, rows)[1]

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """See `Space.arrays`."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Space.restore`."""


class HeadSpace:
    """Cases as the head's linear form sees them.

    Args:
        head: whose score it is.
        width: values of a vector; a product of the head comes on top.
    """

    mode: Mode = "ann"
    role: Literal["embeddings", "projections"] = "projections"

    def __init__(self, head: Head, width: int) -> None:
        self.form: LinearForm | None = None
        self._head, self._width = head, width
        digest = hashlib.sha256(head.weight.tobytes()).hexdigest()[:16]
        self.name = f"head-{digest}-{int(head.bias)}-{head.rank}-{width}"

    def check(self, block: Block) -> None:
        """See `Space.check`."""
        found = shape(_projections(block))[1]
        if found != self._head.case_width:
            raise IndexUnavailable(
                f"namespace {block.namespace!r} has projections of {found} values, this head reads "
                f"{self._head.case_width}; open the bank with CaseProjector(scorer) of the scorer "
                "that searches"
            )

    def fit(self, block: Block, sample: Ids) -> None:
        """See `Space.fit`."""
        vectors, sound = _sound(block, sample)
        self.form = LinearForm.fit(self._head, vectors[sound], self._width)

    def width(self, block: Block) -> int:
        """See `Space.width`."""
        assert self.form is not None, "fitted before it is used"
        return self.form.width + self._head.rank

    def vectors(self, block: Block, rows: Ids) -> tuple[Floats, Bools]:
        """See `Space.vectors`."""
        assert self.form is not None, "fitted before it is used"
        vectors, sound = _sound(block, rows)
        return self.form.case_vectors(vectors), sound

    def sound(self, block: Block, rows: Ids) -> Bools:
        """See `Space.sound`."""
        return _sound(block, rows)[1]

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """See `Space.arrays`."""
        form = self.form
        if form is None:
            return {}
        return {
            "mean": form.mean,
            "deviation": form.deviation,
            "cases": form.cases,
            "queries": form.queries,
            "radius": np.array(form.radius),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Space.restore`."""
        head = self._head
        known, features = head.hidden + int(head.bias), 2 * head.hidden + int(head.bias)
        form = LinearForm(
            head.weight,
            head.bias,
            arrays["mean"],
            arrays["deviation"],
            arrays["cases"],
            arrays["queries"],
            float(arrays["radius"]),
        )
        if not 0 < form.radius < np.inf:
            raise ValueError(f"its radius is {form.radius}")
        if form.mean.shape != (known,) or form.deviation.shape != (head.hidden,):
            raise ValueError("its means are not those of this head's units")
        if form.cases.shape != (features, form.width - 1) or form.queries.shape != form.cases.shape:
            raise ValueError("its directions are not those of this head's features")
        self.form = form


def _sound(block: Block, rows: Ids) -> tuple[Floats, Bools]:
    """Projections, with zeros for what is no number, and which are none of that: (C, W), (C,)."""
    vectors = taken(_projections(block), rows)
    # One broken value, and only that, breaks the sum: it is taken in float64.
    with np.errstate(invalid="ignore"):
        sound = np.isfinite(vectors.sum(axis=1, dtype=np.float64))
    vectors[~sound] = 0
    return vectors, sound


def _projections(block: Block) -> tuple[Array, ...]:
    if block.projections is None:
        raise IndexUnavailable(
            f"namespace {block.namespace!r} has no projections; open the bank with "
            "CaseProjector(scorer)"
        )
    return tuple(block.projections)
