"""Adding and changing cases: what one call does in one transaction.

Vectors are computed before the transaction begins, so that a slow model keeps no other writer
waiting; what has changed meanwhile is noticed inside of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from memory.case import Case, NewCase
from memory.checks import checked_text
from memory.errors import (
    DuplicateCase,
    IdempotencyConflict,
    InvalidCase,
    InvalidInput,
    NotFound,
    VersionConflict,
    shown,
)
from memory.schema import cases, idempotency, lineage
from memory.storage.erasing import owe
from memory.storage.namespaces import changed_namespace, namespace_state
from memory.storage.rows import (
    Place,
    already_stored,
    cases_by_id,
    cases_where,
    content_key,
    ids_by_external_id,
    insert_cases,
    rewrite_case,
)
from memory.storage.store import Store
from memory.storage.vectors import Prepared, Shelf, detach
from memory.times import now

ON_DUPLICATE = ("keep", "merge", "reject")
FIELDS = tuple(item.name for item in fields(NewCase))

_HOUR = 3_600_000_000  # microseconds
_ATTEMPTS = 50  # at a patch that others keep overtaking


@dataclass(frozen=True, slots=True)
class AddOptions:
    """How `add` treats what is there already; see `CaseBank.add`."""

    wait: bool = True
    upsert: bool = False
    on_duplicate: str = "keep"
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        if self.on_duplicate not in ON_DUPLICATE:
            raise InvalidInput(
                f"on_duplicate = {self.on_duplicate!r}: one of {', '.join(ON_DUPLICATE)}"
            )
        key = self.idempotency_key
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= 256):
            raise InvalidInput(f"idempotency_key = {shown(key)}: a text of 1 to 256 characters")
        if key is not None:
            checked_text("idempotency_key", key)


def add_cases(
    store: Store, shelf: Shelf, namespace: str, given: Sequence[NewCase], options: AddOptions
) -> list[int]:
    """Store cases in one transaction; see `CaseBank.add`."""
    prepared = shelf.prepare(namespace, given) if options.wait else None
    with store.write() as connection:
        known = _answered(connection, store, namespace, given, options.idempotency_key)
        if known is not None:
            return known
        state = changed_namespace(connection, store.keys, namespace, store.lexical)
        place = Place.of(store, state.id, state.version)
        ids = place_cases(connection, shelf, place, namespace, given, prepared, options)
        if options.idempotency_key is not None:
            _remember(connection, store, place, given, options.idempotency_key, ids)
    return ids


def place_cases(
    connection: Connection,
    shelf: Shelf,
    place: Place,
    namespace: str,
    given: Sequence[NewCase],
    prepared: Sequence[Prepared] | None,
    options: AddOptions,
) -> list[int]:
    """Insert, overwrite or merge cases in the caller's transaction; ids in the order given."""
    names = [case.external_id for case in given if case.external_id is not None]
    taken = ids_by_external_id(connection, place.keys, place.namespace_id, names)
    if taken and not options.upsert:
        raise already_stored(min(taken), len(taken))
    if options.on_duplicate == "keep":
        stored = _stored(connection, place, namespace, list(taken.values()))
        ids: dict[int, int] = {}
        fresh = [i for i, case in enumerate(given) if case.external_id not in taken]
        new = insert_cases(connection, place, [given[i] for i in fresh])
        ids.update(zip(fresh, new, strict=True))
        for i, case in enumerate(given):
            if i not in ids:
                id_ = taken[str(case.external_id)]
                _overwrite(connection, place, stored[id_], case)
                ids[i] = id_
        found = [ids[i] for i in range(len(given))]
        if prepared is not None:
            shelf.attach(connection, place.namespace_id, found, prepared)
        return found
    return [
        _place_one(connection, shelf, place, namespace, i, case, taken, prepared, options)
        for i, case in enumerate(given)
    ]


def _place_one(
    connection: Connection,
    shelf: Shelf,
    place: Place,
    namespace: str,
    position: int,
    case: NewCase,
    taken: Mapping[str, int],
    prepared: Sequence[Prepared] | None,
    options: AddOptions,
) -> int:
    """Store one case after a look for its duplicates."""
    if case.external_id in taken:
        id_ = taken[str(case.external_id)]
        _overwrite(connection, place, _stored(connection, place, namespace, [id_])[id_], case)
        final = case
    else:
        same = duplicate_of(connection, place, namespace, case)
        if same is not None and options.on_duplicate == "reject":
            raise DuplicateCase(
                f"case {same.id} of namespace {namespace!r} holds the same query, plan and kind; "
                "nothing was stored: leave it out, or add with on_duplicate='keep' or 'merge'"
            )
        if same is None:
            (id_,) = insert_cases(connection, place, [case])
            final = case
        else:
            id_, final = same.id, _merged(same, case)
            _overwrite(connection, place, same, final)
    if prepared is not None:
        # What a merge made is another text only where it changed what the model reads.
        ready = (
            [one.only([position]) for one in prepared]
            if final is case
            else shelf.prepare(namespace, [final])
        )
        shelf.attach(connection, place.namespace_id, [id_], ready)
    return id_


def patch_case(
    store: Store,
    shelf: Shelf,
    namespace: str,
    id_: int,
    changes: Mapping[str, Any],
    *,
    if_version: int | None,
    wait: bool,
) -> Case:
    """Change fields of a case; see `CaseBank.update`."""
    unknown = [name for name in changes if name not in FIELDS]
    if unknown:
        raise InvalidInput(f"{shown(unknown[0])} is no field of a case: {', '.join(FIELDS)}")
    for _ in range(_ATTEMPTS):
        with store.read() as connection:
            state = namespace_state(connection, store.keys, namespace)
            old = _one(connection, state and state.id, namespace, id_)
        _check_version(old, if_version)
        new = replace(old.as_new(), **changes)
        prepared = shelf.prepare(namespace, [new]) if wait else None
        with store.write() as connection:
            state = namespace_state(connection, store.keys, namespace)
            still = _one(connection, state and state.id, namespace, id_)
            if still.version != old.version:
                continue  # somebody was faster: the patch is for what they left
            if new == old.as_new():
                return old
            raised = changed_namespace(connection, store.keys, namespace, store.lexical)
            place = Place.of(store, raised.id, raised.version)
            if old.external_id not in (None, new.external_id):
                _check_childless(connection, raised.id, old)
            if new.external_id is not None and new.external_id != old.external_id:
                taken = ids_by_external_id(connection, store.keys, raised.id, [new.external_id])
                if taken:
                    raise already_stored(new.external_id)
            _overwrite(connection, place, old, new, anew=False)
            if prepared is not None:
                shelf.attach(connection, raised.id, [id_], prepared)
            return _one(connection, raised.id, namespace, id_)
    raise VersionConflict(
        f"case {id_} was changed by others {_ATTEMPTS} times while this change was made; try again"
    )


def _check_childless(connection: Connection, namespace_id: int, case: Case) -> None:
    """Others name their source by its external id; without it a purge would not reach them."""
    found = connection.execute(
        select(lineage.c.child_id)
        .join(cases, cases.c.external_key == lineage.c.parent_key)
        .where(lineage.c.namespace_id == namespace_id, cases.c.id == case.id)
        .limit(1)
    ).scalar()
    if found is not None:
        raise InvalidCase(
            "external_id",
            case.external_id,
            f"case {found} is derived from it by this id; it cannot be changed while it is",
        )


def _overwrite(
    connection: Connection, place: Place, old: Case, new: NewCase, *, anew: bool = True
) -> None:
    """Put other content in a case's place; stated anew, a case of history is live again."""
    revived = anew and old.invalidated_at is not None
    if new == old.as_new() and not revived:
        return
    detach(connection, [old.id])
    rewrite_case(connection, place, old.id, new)
    if revived:
        connection.execute(update(cases).where(cases.c.id == old.id).values(invalidated_at=None))
    owe(connection)


def duplicate_of(
    connection: Connection, place: Place, namespace: str, case: NewCase
) -> Case | None:
    """The first live case that is the same experience: nothing of it contradicts the new one."""
    alike = (
        (cases.c.namespace_id == place.namespace_id)
        & (cases.c.content_key == content_key(place.keys, place.namespace_id, case))
        & (cases.c.kind == case.kind)
        & cases.c.invalidated_at.is_(None)
    )
    for other in cases_where(connection, alike, namespace, 0, 1000):
        exact = (other.query, other.plan) == (case.query, case.plan)
        agrees = all(
            None in (mine, theirs) or mine == theirs
            for mine, theirs in (
                (case.outcome, other.outcome),
                (case.external_id, other.external_id),
            )
        )
        if exact and agrees:
            return other
    return None


def _merged(old: Case, new: NewCase) -> NewCase:
    """What both know together; where both know, the stored one stays."""
    merged: dict[str, Any] = {}
    for name in FIELDS:
        mine, theirs = getattr(old, name), getattr(new, name)
        if name in ("tags", "derived_from"):
            merged[name] = tuple(dict.fromkeys((*mine, *theirs)))
        elif name == "metadata":
            merged[name] = {**theirs, **mine}
        else:
            merged[name] = theirs if mine is None else mine
    return NewCase(**merged)


def _stored(
    connection: Connection, place: Place, namespace: str, ids: Sequence[int]
) -> dict[int, Case]:
    return cases_by_id(connection, place.namespace_id, namespace, ids)


def _one(connection: Connection, namespace_id: int | None, namespace: str, id_: int) -> Case:
    found = {} if namespace_id is None else cases_by_id(connection, namespace_id, namespace, [id_])
    if id_ not in found:
        raise NotFound(f"namespace {namespace!r} has no case with id {id_}")
    return found[id_]


def _check_version(case: Case, if_version: int | None) -> None:
    if if_version is not None and case.version != if_version:
        raise VersionConflict(
            f"case {case.id} is at version {case.version}, the change was for version "
            f"{if_version}; read it again and decide anew"
        )


def _content(store: Store, namespace_id: int, given: Sequence[NewCase]) -> bytes:
    words = json.dumps([case.to_json() for case in given], ensure_ascii=False)
    return store.keys.of("request", namespace_id, hashlib.sha256(words.encode()).hexdigest())


def _answered(
    connection: Connection,
    store: Store,
    namespace: str,
    given: Sequence[NewCase],
    key: str | None,
) -> list[int] | None:
    state = None if key is None else namespace_state(connection, store.keys, namespace)
    if state is None:
        return None
    oldest = now() - round(store.config.idempotency_hours * _HOUR)
    row = connection.execute(
        select(idempotency).where(
            idempotency.c.namespace_id == state.id,
            idempotency.c.request_key == store.keys.of("idempotency", state.id, str(key)),
            idempotency.c.created_at >= oldest,
        )
    ).one_or_none()
    if row is None:
        return None
    if bytes(row.content_key) != _content(store, state.id, given):
        raise IdempotencyConflict(
            f"idempotency key {shown(key)} was used for other cases; nothing was stored: a new "
            "request needs a new key"
        )
    return [int(id_) for id_ in json.loads(row.answer)]


def _remember(
    connection: Connection,
    store: Store,
    place: Place,
    given: Sequence[NewCase],
    key: str,
    ids: Sequence[int],
) -> None:
    moment = now()
    oldest = moment - round(store.config.idempotency_hours * _HOUR)
    request_key = store.keys.of("idempotency", place.namespace_id, key)
    stale = (idempotency.c.created_at < oldest) | (
        (idempotency.c.namespace_id == place.namespace_id)
        & (idempotency.c.request_key == request_key)
    )
    connection.execute(delete(idempotency).where(stale))
    row = {
        "namespace_id": place.namespace_id,
        "request_key": request_key,
        "content_key": _content(store, place.namespace_id, given),
        "answer": json.dumps(list(ids)),
        "created_at": moment,
    }
    connection.execute(insert(idempotency), [row])
