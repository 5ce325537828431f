"""Checks of single values: what a text, a JSON value and the name of a namespace may be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memory.errors import InvalidCase, InvalidInput, shown

DEFAULT_NAMESPACE = "default"
_NAMESPACE_LENGTH = 128
_JSON_DEPTH = 100  # well below what Python's own JSON reader can take
# NUL ends a text in PostgreSQL and many C libraries; a lone surrogate has no UTF-8 form.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def checked_text(field: str, value: object, *, empty: bool = False) -> str:
    """A text that every store and file can hold, unchanged.

    Raises:
        InvalidCase: not a text, blank (unless `empty`), or with NUL or half a surrogate pair.
    """
    if not isinstance(value, str):
        raise InvalidCase(field, value, f"must be text, not {type(value).__name__}")
    if not empty and not value.strip():
        raise InvalidCase(field, value, "must not be blank; leave the field out if there is none")
    bad = _UNSTORABLE.search(value)
    if bad is not None:
        raise InvalidCase(
            field,
            value[max(0, bad.start() - 20) : bad.start() + 20],
            f"holds {bad[0]!r} at character {bad.start()}, which cannot be stored; remove it",
        )
    return str.__str__(value)  # a plain str also of an enumeration's member


def checked_query(value: object) -> str:
    """The words of a search: any text that a stored one could hold, blank ones too.

    Raises:
        InvalidInput: not a text, or with NUL or half a surrogate pair.
    """
    bad = _UNSTORABLE.search(value) if isinstance(value, str) else None
    if bad is not None:
        raise InvalidInput(
            f"the query holds {bad[0]!r} at character {bad.start()}, which no stored text has; "
            "take it out"
        )
    return checked_text("query", value, empty=True)


def checked_json(field: str, value: object, depth: int = 0) -> Any:
    """A copy of a JSON value in plain types: tuples become lists, every number is finite.

    Raises:
        InvalidCase: a type JSON does not have, a key that is not text, NaN or infinity, an integer
            beyond 64 bits, a text that cannot be stored, or more than 100 levels.
    """
    if depth > _JSON_DEPTH:
        raise InvalidCase(field, value, f"nested deeper than {_JSON_DEPTH} levels; flatten it")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return checked_text(field, value, empty=True)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidCase(field, value, "integers beyond 64 bits are refused; write it as text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidCase(field, value, "JSON has no NaN or infinity; use null")
        return float(value)
    if isinstance(value, Mapping):
        copied = {}
        for key, item in value.items():
            name = checked_text(f"key of {field}", key, empty=True)
            copied[name] = checked_json(f"{field}.{name}", item, depth + 1)
        return copied
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [checked_json(f"{field}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    raise InvalidCase(field, value, f"{type(value).__name__} has no JSON form; convert it first")


def checked_namespace(name: object) -> str:
    """The name of a namespace: 1 to 128 printable characters, no white space at either end.

    Raises:
        InvalidInput: anything else.
    """
    if (
        isinstance(name, str)
        and 0 < len(name) <= _NAMESPACE_LENGTH
        and name.isprintable()
        and name == name.strip()
    ):
        return name
    raise InvalidInput(
        f"namespace = {shown(name)}: give 1 to {_NAMESPACE_LENGTH} printable characters without "
        "white space at either end"
    )
