"""Cases as rows: functions over an open transaction, none of which begins or ends one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, func, insert, select, update

from memory.case import Case, NewCase
from memory.errors import AlreadyStored
from memory.schema import cases, namespaces

#: Values in one IN (...): below the 999 of every SQLite ever built (sqlite.org/limits.html).
IN_LIST = 900

T = TypeVar("T")


class NamespaceState(NamedTuple):
    """A namespace as a transaction sees it."""

    id: int
    version: int


def chunks(items: Sequence[T], size: int = IN_LIST) -> Iterator[Sequence[T]]:
    """Consecutive parts of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def namespace_state(connection: Connection, name: str) -> NamespaceState | None:
    """Id and version of a namespace, or None where nothing was ever stored in it."""
    row = connection.execute(
        select(namespaces.c.id, namespaces.c.version).where(namespaces.c.name == name)
    ).one_or_none()
    return None if row is None else NamespaceState(row.id, row.version)


def changed_namespace(connection: Connection, name: str) -> int:
    """Make the namespace if need be, raise its version, and give its id."""
    state = namespace_state(connection, name)
    if state is None:
        made = connection.execute(
            insert(namespaces).returning(namespaces.c.id), [{"name": name, "version": 1}]
        )
        return int(made.scalar_one())
    connection.execute(
        update(namespaces)
        .where(namespaces.c.id == state.id)
        .values(version=namespaces.c.version + 1)
    )
    return state.id


def insert_cases(connection: Connection, namespace_id: int, new: Sequence[NewCase]) -> list[int]:
    """Store cases; their ids in the order given, ascending.

    Raises:
        AlreadyStored: an external id that the namespace has.
    """
    if not new:
        return []
    given = [case.external_id for case in new if case.external_id is not None]
    taken = existing_external_ids(connection, namespace_id, given)
    if taken:
        raise already_stored(min(taken), len(taken))
    stored = connection.execute(
        insert(cases).returning(cases.c.id, sort_by_parameter_order=True),
        [_to_row(case, namespace_id) for case in new],
    )
    return [int(id_) for id_ in stored.scalars()]


def existing_external_ids(
    connection: Connection, namespace_id: int, external_ids: Sequence[str]
) -> set[str]:
    """Those of the external ids that the namespace has."""
    found: set[str] = set()
    for part in chunks(external_ids):
        rows = connection.execute(
            select(cases.c.external_id).where(
                cases.c.namespace_id == namespace_id, cases.c.external_id.in_(part)
            )
        )
        found.update(rows.scalars())
    return found


def already_stored(external_id: str, count: int = 1) -> AlreadyStored:
    """The error for external ids that are taken."""
    more = f" (and {count - 1} more)" if count > 1 else ""
    return AlreadyStored(
        f"external id {external_id!r}{more} is in the namespace already; nothing was stored: give "
        "the case another id, or leave it out"
    )


def cases_by_id(
    connection: Connection, namespace_id: int, namespace: str, ids: Sequence[int]
) -> dict[int, Case]:
    """Those of the ids that the namespace has."""
    found = {}
    for part in chunks(ids):
        rows = connection.execute(
            select(cases).where(cases.c.namespace_id == namespace_id, cases.c.id.in_(part))
        )
        for row in rows:
            found[row.id] = _from_row(row, namespace)
    return found


def cases_after(
    connection: Connection, namespace_id: int, namespace: str, after: int, limit: int
) -> list[Case]:
    """At most `limit` cases with larger ids than `after`, by id."""
    rows = connection.execute(
        select(cases)
        .where(cases.c.namespace_id == namespace_id, cases.c.id > after)
        .order_by(cases.c.id)
        .limit(limit)
    )
    return [_from_row(row, namespace) for row in rows]


def count_cases(connection: Connection, namespace_id: int) -> int:
    """How many cases a namespace has."""
    query = select(func.count()).select_from(cases).where(cases.c.namespace_id == namespace_id)
    return int(connection.execute(query).scalar_one())


def _to_row(case: NewCase, namespace_id: int) -> dict[str, Any]:
    as_json = case.plan is not None and not isinstance(case.plan, str)
    return {
        "namespace_id": namespace_id,
        "external_id": case.external_id,
        "query": case.query,
        "plan": _json(case.plan) if as_json else case.plan,
        "plan_is_json": int(as_json),
        "outcome": case.outcome,
        "kind": case.kind,
        "tags": _json(case.tags),
        "source": case.source,
        "created_at": case.created_at,
        "valid_from": case.valid_from,
        "valid_to": case.valid_to,
        "derived_from": _json(case.derived_from),
        "metadata": _json(case.metadata),
    }


def _from_row(row: Row[Any], namespace: str) -> Case:
    return Case(
        id=row.id,
        namespace=namespace,
        query=row.query,
        plan=json.loads(row.plan) if row.plan_is_json else row.plan,
        outcome=row.outcome,
        kind=row.kind,
        tags=tuple(json.loads(row.tags)),
        source=row.source,
        created_at=row.created_at,
        valid_from=row.valid_from,
        valid_to=row.valid_to,
        derived_from=tuple(json.loads(row.derived_from)),
        metadata=json.loads(row.metadata),
        external_id=row.external_id,
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
