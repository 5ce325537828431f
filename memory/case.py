"""A case as it is given (`NewCase`) and as it is kept (`Case`), and its JSON row.

Both are frozen and check themselves, so a case that exists is valid; what was given comes back as
it was given. Tags are a set that keeps its order: a tag given twice is kept once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, TypeAlias, cast

from memory.checks import checked_json, checked_namespace, checked_text
from memory.errors import InvalidCase, InvalidInput
from memory.times import microseconds, rfc3339

KINDS = ("case", "turn", "fact", "summary", "tombstone", "compound_update", "plan")
#: Free text, JSON text (kept as the same text), a list of steps, or an object: one step, or a plan
#: under its key "plan".
Plan: TypeAlias = str | Mapping[str, Any] | Sequence[Any] | None

_TIMES = ("created_at", "valid_from", "valid_to")
ROW_KEYS = (
    *("id", "query", "plan", "outcome", "kind", "tags", "source"),
    *(*_TIMES, "derived_from", "metadata"),
)


@dataclass(frozen=True)
class NewCase:
    """One experience, not stored yet.

    `outcome` is in [0, 1], None where it is not known. The three times are microseconds since
    1970-01-01 UTC; RFC 3339 text and datetimes with a zone are converted. The case was valid in
    `[valid_from, valid_to)`. `derived_from` names external ids, which need not be stored (yet).
    """

    query: str
    plan: Plan = None
    outcome: float | None = None
    kind: str = "case"
    tags: tuple[str, ...] = ()
    source: str | None = None
    created_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    derived_from: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    external_id: str | None = None

    def __post_init__(self) -> None:
        _set(self, "query", checked_text("query", self.query))
        _set(self, "plan", _checked_plan(self.plan))
        _set(self, "outcome", _checked_outcome(self.outcome))
        if self.kind not in KINDS:
            raise InvalidCase("kind", self.kind, f"one of {', '.join(KINDS)}")
        _set(self, "kind", checked_text("kind", self.kind))
        for name in ("source", "external_id"):
            if getattr(self, name) is not None:
                _set(self, name, checked_text(name, getattr(self, name)))
        for name in ("tags", "derived_from"):
            _set(self, name, _checked_names(name, getattr(self, name)))
        for name in _TIMES:
            _set(self, name, _checked_time(name, getattr(self, name)))
        self._check_relations()
        if not isinstance(self.metadata, Mapping):
            raise InvalidCase("metadata", self.metadata, "must be an object of names and values")
        _set(self, "metadata", checked_json("metadata", self.metadata))

    def _check_relations(self) -> None:
        if None not in (self.valid_from, self.valid_to) and not self._ends_after_start():
            raise InvalidCase("valid_to", self.valid_to, "must be later than valid_from")
        if self.external_id is not None and self.external_id in self.derived_from:
            raise InvalidCase("derived_from", self.external_id, "a case cannot derive from itself")

    def _ends_after_start(self) -> bool:
        return (self.valid_from or 0) < (self.valid_to or 0)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> NewCase:
        """The case of a JSON row as `to_json` makes it; `id` in it is the external id.

        Raises:
            InvalidCase: a key that the format does not have, a missing query, or a bad value.
        """
        for key in row:
            if key not in ROW_KEYS:
                near = difflib.get_close_matches(str(key), ROW_KEYS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ROW_KEYS)}"
                raise InvalidCase(str(key), row[key], f"unknown key; {hint}")
        if "query" not in row:
            raise InvalidCase("query", None, "is missing; a case needs the task as it was asked")
        given = {key: value for key, value in row.items() if value is not None}
        for name in _TIMES:
            # A number could be seconds or milliseconds; inside a file only the spelled form is
            # clear.
            if name in given and not isinstance(given[name], str):
                raise InvalidCase(name, given[name], "write it as RFC 3339 text with a zone")
        given.setdefault("query", row["query"])
        if "id" in given:
            if not isinstance(given["id"], str):
                raise InvalidCase("id", given["id"], "external ids are text; put it in quotes")
            given["external_id"] = given.pop("id")
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The row of the case in a JSONL file; what is absent is left out."""
        row: dict[str, Any] = {} if self.external_id is None else {"id": self.external_id}
        row["query"] = self.query
        for name in ("plan", "outcome"):
            if getattr(self, name) is not None:
                row[name] = getattr(self, name)
        row["kind"] = self.kind
        if self.tags:
            row["tags"] = list(self.tags)
        if self.source is not None:
            row["source"] = self.source
        for name in _TIMES:
            if getattr(self, name) is not None:
                row[name] = rfc3339(getattr(self, name))
        if self.derived_from:
            row["derived_from"] = list(self.derived_from)
        if self.metadata:
            row["metadata"] = self.metadata
        return row


@dataclass(frozen=True, kw_only=True)
class Case(NewCase):
    """A case of a bank: `id` is the database's, never given to another case.

    `version` is 1 and grows with every update. `stored_at` is when the bank was told,
    `invalidated_at` since when it is kept only for history; both in microseconds UTC.
    """

    id: int
    namespace: str
    version: int = 1
    stored_at: int | None = None
    invalidated_at: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_namespace(self.namespace)

    def as_new(self) -> NewCase:
        """The same experience without its place in a bank, to be added to another one."""
        return NewCase(**{item.name: getattr(self, item.name) for item in fields(NewCase)})


def _set(case: NewCase, name: str, value: object) -> None:
    object.__setattr__(case, name, value)  # the way dataclasses itself fills a frozen record


def _checked_plan(plan: object, field: str = "plan") -> Plan:
    """A plan that can be stored, and that whoever makes a model's text of it finds steps in."""
    if plan is None:
        return None
    if isinstance(plan, str):
        text = checked_text(field, plan, empty=True)
        parsed = _parsed(field, text)
        if isinstance(parsed, dict | list):  # any other text is one step in words
            _checked_plan(parsed, field)
        return text
    checked = checked_json(field, plan)
    if not isinstance(checked, dict | list):
        raise InvalidCase(field, plan, "must be text, an object or a list of steps")
    if isinstance(checked, dict) and "plan" in checked:
        _checked_plan(checked["plan"], f"{field}.plan")
    return checked


def _parsed(field: str, text: str) -> Any:
    """What a text is as JSON; None if it is not JSON, and so is only words."""
    try:
        return json.loads(text.strip())
    except ValueError:
        return None
    except RecursionError as error:
        # How deep Python can read depends on who calls: here it might fail and later not.
        raise InvalidCase(
            field, text, "as JSON it is nested too deep to read; flatten it"
        ) from error


def _checked_outcome(outcome: object) -> float | None:
    if outcome is None:
        return None
    if not isinstance(outcome, Real):
        raise InvalidCase("outcome", outcome, "must be a number in [0, 1], or nothing if unknown")
    if not 0.0 <= cast(float, outcome) <= 1.0:  # also false for NaN
        raise InvalidCase("outcome", outcome, "must be in [0, 1]; scale the reward first")
    return float(outcome)


def _checked_names(name: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InvalidCase(name, values, "must be a list of texts")
    return tuple(dict.fromkeys(checked_text(f"{name}[{i}]", v) for i, v in enumerate(values)))


def _checked_time(name: str, moment: Any) -> int | None:
    if moment is None:
        return None
    try:
        return microseconds(moment)
    except InvalidInput as error:
        raise InvalidCase(name, moment, str(error)) from error
