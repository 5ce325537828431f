"""Which cases of a namespace are meant: the filter that listing, counting and searching share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, or_, select

from memory.case import KINDS
from memory.checks import checked_text
from memory.errors import InvalidInput, shown
from memory.keys import Keys
from memory.schema import case_tags, cases
from memory.times import microseconds


@dataclass(frozen=True, slots=True)
class CaseFilter:
    """Every condition that is given must hold; nothing given means every live case.

    Times are microseconds UTC (RFC 3339 text and datetimes with a zone are converted), spans
    `[from, to)`. A case without the value that a condition asks for does not match it.

    Attributes:
        kinds: one of these kinds.
        tags: all of these tags.
        source: this source.
        min_outcome: outcome known and at least this.
        max_outcome: outcome known and at most this.
        has_outcome: outcome known (True) or not known (False).
        created_from: `created_at` at or after.
        created_to: `created_at` before.
        valid_at: valid at this time; a missing end of its span is open.
        invalidated: also cases kept only for history.
    """

    kinds: Sequence[str] = ()
    tags: Sequence[str] = ()
    source: str | None = None
    min_outcome: float | None = None
    max_outcome: float | None = None
    has_outcome: bool | None = None
    created_from: int | None = None
    created_to: int | None = None
    valid_at: int | None = None
    invalidated: bool = False

    def __post_init__(self) -> None:
        for name in ("kinds", "tags"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise InvalidInput(f"{name} = {shown(given)}: must be a list of texts")
            object.__setattr__(self, name, tuple(checked_text(name, item) for item in given))
        for kind in self.kinds:
            if kind not in KINDS:
                raise InvalidInput(f"kinds holds {shown(kind)}: one of {', '.join(KINDS)}")
        if self.source is not None:
            checked_text("source", self.source)
        for name in ("created_from", "created_to", "valid_at"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, microseconds(getattr(self, name)))
        for name in ("min_outcome", "max_outcome"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise InvalidInput(f"{name} = {shown(value)}: outcomes are in [0, 1]")
        self._check_spans()

    def _check_spans(self) -> None:
        for low, high in (("min_outcome", "max_outcome"), ("created_from", "created_to")):
            first, last = getattr(self, low), getattr(self, high)
            if first is not None and last is not None and first > last:
                raise InvalidInput(f"{low} = {first} is above {high} = {last}; nothing could match")

    def condition(self, keys: Keys, namespace_id: int) -> ColumnElement[bool]:
        """As SQL over the table `cases`, the namespace included."""
        c = cases.c
        parts: list[ColumnElement[bool]] = [c.namespace_id == namespace_id]
        if not self.invalidated:
            parts.append(c.invalidated_at.is_(None))
        if self.kinds:
            parts.append(c.kind.in_(self.kinds))
        if self.source is not None:
            parts.append(c.source_key == keys.of("source", namespace_id, self.source))
        if self.min_outcome is not None:
            parts.append(c.outcome >= self.min_outcome)
        if self.max_outcome is not None:
            parts.append(c.outcome <= self.max_outcome)
        if self.has_outcome is not None:
            parts.append(c.outcome.is_not(None) if self.has_outcome else c.outcome.is_(None))
        if self.created_from is not None:
            parts.append(c.created_at >= self.created_from)
        if self.created_to is not None:
            parts.append(c.created_at < self.created_to)
        if self.valid_at is not None:
            parts.append(or_(c.valid_from.is_(None), c.valid_from <= self.valid_at))
            parts.append(or_(c.valid_to.is_(None), c.valid_to > self.valid_at))
        for tag in self.tags:
            tagged = select(case_tags.c.case_id).where(
                case_tags.c.namespace_id == namespace_id,
                case_tags.c.tag_key == keys.of("tag", namespace_id, tag),
                case_tags.c.case_id == c.id,
            )
            parts.append(exists(tagged))
        return and_(*parts)
