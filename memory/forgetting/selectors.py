"""What a request to forget names: eight ways to point at cases, none of which does anything.

All of them point inside one namespace. `memory.forgetting.forgetting` turns them into ids and
closes over lineage and copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from memory.case import NewCase
from memory.checks import checked_text
from memory.errors import InvalidInput, shown
from memory.times import microseconds

#: The cosine from which on a case is taken to say what a text says. A default, not a law: it
#: depends on the encoder; look at a dry run first.
SEMANTIC = 0.8
#: The share of the text's words that a case must hold.
LEXICAL = 0.8


def _check_ids(ids: object) -> None:
    if not isinstance(ids, tuple) or any(
        isinstance(i, bool) or not isinstance(i, int) for i in ids
    ):
        raise InvalidInput(f"ids = {shown(ids)}: must be a tuple of integers, such as (17,)")


@dataclass(frozen=True, slots=True)
class ByIds:
    """These cases."""

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_ids(self.ids)


@dataclass(frozen=True, slots=True)
class BySource:
    """Every case with this `source`."""

    source: str

    def __post_init__(self) -> None:
        checked_text("source", self.source)


@dataclass(frozen=True, slots=True)
class ByTag:
    """Every case with this tag."""

    tag: str

    def __post_init__(self) -> None:
        checked_text("tag", self.tag)


@dataclass(frozen=True, slots=True)
class BySpan:
    """Every case of a time in `[start, end)`, microseconds UTC; None leaves that end open.

    A case's time is its valid time where it has one (the spans must overlap), else the time it was
    told (`created_at`), else the time it was stored. The receipt says how many matched by which.
    """

    start: int | None
    end: int | None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, microseconds(moment))
        if self.start is None and self.end is None:
            raise InvalidInput("a time span needs a start or an end; forget a namespace otherwise")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise InvalidInput(f"the span [{self.start}, {self.end}) is empty; end after its start")


@dataclass(frozen=True, slots=True)
class ByText:
    """Every case that says what `text` says.

    Either its embedding's cosine with the text's is at least `semantic`, or it holds at least the
    share `lexical` of the text's words (stemmed, without stop words).
    """

    text: str
    semantic: float = SEMANTIC
    lexical: float = LEXICAL

    def __post_init__(self) -> None:
        checked_text("text", self.text)
        for name in ("semantic", "lexical"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InvalidInput(f"{name} = {value!r}: a threshold in (0, 1]")


@dataclass(frozen=True, slots=True)
class ByStrings:
    """Every case whose text holds one of these strings (after NFKC and case folding, whole words).

    White space and the punctuation inside of numbers may differ: `415 555 0186` is `415-555-0186`.
    """

    strings: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.strings, tuple):
            raise InvalidInput(f"strings = {shown(self.strings)}: must be a tuple of texts")
        if not self.strings:
            raise InvalidInput("strings is empty; give at least one")
        for string in self.strings:
            checked_text("string", string)


@dataclass(frozen=True, slots=True)
class ByDerivedFact:
    """A conclusion: the stored cases that state it, and enough sources to break its derivations.

    With `keep_sources` only the conclusion goes; the receipt says that it may be inferred again.
    """

    text: str | None = None
    ids: tuple[int, ...] = ()
    keep_sources: bool = False

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        if self.text is None and not self.ids:
            raise InvalidInput("a derived fact is named by its text or by ids; give one of them")
        if self.text is not None:
            checked_text("text", self.text)


@dataclass(frozen=True, slots=True)
class Replacement:
    """An old value that goes, and what is stored in its place (None: nothing)."""

    old: str | None = None
    new: NewCase | None = None
    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        if self.old is None and not self.ids:
            raise InvalidInput("a replacement names the old value, or ids; give one of them")
        if self.old is not None:
            checked_text("old", self.old)
        if self.new is not None and not isinstance(self.new, NewCase):
            raise InvalidInput(f"new = {shown(self.new)}: must be a NewCase")


Selector: TypeAlias = (
    ByIds | BySource | ByTag | BySpan | ByText | ByStrings | ByDerivedFact | Replacement
)

#: What each selector is called in JSON and in receipts.
NAMES: dict[type, str] = {
    ByIds: "ids",
    BySource: "source",
    ByTag: "tag",
    BySpan: "span",
    ByText: "text",
    ByStrings: "strings",
    ByDerivedFact: "derived_fact",
    Replacement: "replacement",
}
_TYPES = {name: kind for kind, name in NAMES.items()}
_TUPLES = ("ids", "strings")


def selector_to_json(selector: Selector) -> dict[str, Any]:
    """A selector as a JSON object; `by` names its kind."""
    row: dict[str, Any] = {"by": NAMES[type(selector)]}
    for item in fields(selector):
        value = getattr(selector, item.name)
        if isinstance(value, NewCase):
            value = value.to_json()
        row[item.name] = list(value) if isinstance(value, tuple) else value
    return row


def selector_from_json(row: Mapping[str, Any]) -> Selector:
    """The selector of a JSON object as `selector_to_json` makes it; times may be RFC 3339.

    Raises:
        InvalidInput: an unknown kind or field, or a value that makes no sense.
    """
    given = dict(row)
    name = given.pop("by", None)
    if name not in _TYPES:
        raise InvalidInput(f"by = {shown(name)}: one of {', '.join(_TYPES)}")
    kind = _TYPES[name]
    known = {item.name for item in fields(kind)}
    for key in given:
        if key not in known:
            raise InvalidInput(f"{shown(key)} is no field of by={name}: {', '.join(sorted(known))}")
    for key in _TUPLES:
        if isinstance(given.get(key), list):
            given[key] = tuple(given[key])
    if isinstance(given.get("new"), Mapping):
        given["new"] = NewCase.from_json(given["new"])
    try:
        made: Selector = kind(**given)
    except TypeError as error:
        raise InvalidInput(f"by={name} lacks a field: {error}") from error
    return made
