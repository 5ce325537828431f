"""The rows of requests that wait, as a purge sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, and_, insert, select

from memory.schema import scheduled
from memory.sinks import Gone
from memory.storage.wiping import wipe

#: Where a waiting request's selectors hold words, by their fields.
_WORDS = ("text", "old", "source", "tag")


def forget_waiting(connection: Connection, namespace_id: int, gone: Gone) -> int:
    """Take what is forgotten now out of the requests that wait; how many of them changed.

    A waiting request must not be what keeps a text. A selector that names it has nothing left to
    do, and goes; a request without selectors goes whole. Its spoken words go if they hold it.
    """
    changed = 0
    mine = and_(scheduled.c.namespace_id == namespace_id, scheduled.c.due_at > 0)
    for row in connection.execute(select(scheduled).where(mine)).all():
        body = json.loads(row.request)
        kept = _without(body, gone)
        if kept == body:
            continue
        changed += 1
        wipe(connection, scheduled, scheduled.c.id == row.id)
        if kept["selectors"]:
            again = {name: value for name, value in row._mapping.items() if name != "id"}
            again["request"] = json.dumps(kept, ensure_ascii=False)
            connection.execute(insert(scheduled), [again])
    return changed


def _without(body: dict[str, Any], gone: Gone) -> dict[str, Any]:
    selectors = [left for left in (_left(s, gone) for s in body["selectors"]) if left is not None]
    words = body.get("words")
    return {
        **body,
        "selectors": selectors,
        "words": None if words is not None and gone.holds(words) else words,
    }


def _left(selector: dict[str, Any], gone: Gone) -> dict[str, Any] | None:
    """A selector without what is forgotten; None where nothing is left of it."""
    if selector["by"] == "strings":
        strings = [string for string in selector["strings"] if not gone.holds(string)]
        return {**selector, "strings": strings} if strings else None
    held = any(
        isinstance(selector.get(name), str) and gone.holds(selector[name]) for name in _WORDS
    )
    # What was to be stored in its place must not bring it back.
    return None if held or any(map(gone.holds, _texts(selector.get("new")))) else selector


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
