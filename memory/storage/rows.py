"""Cases as rows: functions over an open transaction, none of which begins or ends one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    delete,
    func,
    insert,
    select,
    update,
)

from memory.case import Case, NewCase
from memory.errors import AlreadyStored
from memory.keys import Keys
from memory.schema import case_tags, cases, lineage, texts
from memory.storage.store import Store, insert_new
from memory.storage.wiping import wipe
from memory.text import lexical
from memory.times import now

#: Values in one IN (...): below the 999 of every SQLite ever built (sqlite.org/limits.html).
IN_LIST = 900

T = TypeVar("T")


class Place(NamedTuple):
    """Where a write happens: namespace, number of the change, and what turns words to keys."""

    namespace_id: int
    seq: int
    keys: Keys
    style: str

    @classmethod
    def of(cls, store: Store, namespace_id: int, seq: int) -> Place:
        """In this store."""
        return cls(namespace_id, seq, store.keys, store.lexical)


def chunks(items: Sequence[T], size: int = IN_LIST) -> Iterator[Sequence[T]]:
    """Consecutive parts of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def insert_cases(connection: Connection, place: Place, new: Sequence[NewCase]) -> list[int]:
    """Store cases; their ids in the order given, ascending.

    Raises:
        AlreadyStored: an external id that the namespace has.
    """
    if not new:
        return []
    given = [case.external_id for case in new if case.external_id is not None]
    taken = ids_by_external_id(connection, place.keys, place.namespace_id, given)
    if taken:
        raise already_stored(min(taken), len(taken))
    moment = now()
    stored = connection.execute(
        insert(cases).returning(cases.c.id, sort_by_parameter_order=True),
        [_case_row(case, place, moment) for case in new],
    )
    ids = [int(id_) for id_ in stored.scalars()]
    insert_words(connection, place, dict(zip(ids, new, strict=True)))
    return ids


def insert_words(connection: Connection, place: Place, new: dict[int, NewCase]) -> None:
    """Store the words of cases that have none: text rows, tags, lineage, full text."""
    made = connection.execute(
        insert(texts).returning(texts.c.id, sort_by_parameter_order=True),
        [_text_row(case, id_) for id_, case in new.items()],
    )
    entries = [
        lexical.Entry(int(text_id), spoken(case), _rest(case))
        for text_id, case in zip(made.scalars(), new.values(), strict=True)
    ]
    lexical.add(connection, place.namespace_id, entries, place.style)
    tags, links = [], []
    for id_, case in new.items():
        for key in place.keys.many("tag", place.namespace_id, case.tags):
            tags.append({"namespace_id": place.namespace_id, "tag_key": key, "case_id": id_})
        for key in place.keys.many("external", place.namespace_id, case.derived_from):
            links.append({"namespace_id": place.namespace_id, "parent_key": key, "child_id": id_})
    insert_new(connection, case_tags, tags)
    insert_new(connection, lineage, links)


def lexical_entries(
    connection: Connection, namespace_id: int, namespace: str, size: int = 1000
) -> Iterator[list[lexical.Entry]]:
    """What the full-text index of a namespace holds, made anew from the words, in parts."""
    after = 0
    while True:
        page = cases_where(connection, cases.c.namespace_id == namespace_id, namespace, after, size)
        if not page:
            return
        after = page[-1].id
        ids = dict(
            connection.execute(
                select(texts.c.case_id, texts.c.id)
                .join(cases, cases.c.id == texts.c.case_id)
                .where(
                    cases.c.namespace_id == namespace_id,
                    texts.c.case_id >= page[0].id,
                    texts.c.case_id <= after,
                )
            ).all()
        )
        yield [lexical.Entry(ids[case.id], spoken(case), _rest(case)) for case in page]


def remove_words(connection: Connection, namespace_id: int, ids: Sequence[int]) -> dict[str, int]:
    """Take the words of cases away, overwriting them; how many rows of each kind there were."""
    gone = {"texts": 0, "lexical": 0, "tags": 0, "lineage": 0}
    for part in chunks(ids):
        text_ids = connection.execute(select(texts.c.id).where(texts.c.case_id.in_(part))).scalars()
        gone["lexical"] += lexical.remove(connection, namespace_id, list(text_ids))
        gone["texts"] += wipe(connection, texts, texts.c.case_id.in_(part))
        for name, table, owner in (
            ("tags", case_tags, case_tags.c.case_id),
            ("lineage", lineage, lineage.c.child_id),
        ):
            gone[name] += connection.execute(delete(table).where(owner.in_(part))).rowcount
    return gone


def rewrite_case(connection: Connection, place: Place, id_: int, case: NewCase) -> None:
    """Put other content in a case's place; the old words are overwritten, not kept."""
    remove_words(connection, place.namespace_id, [id_])
    row = _case_row(case, place, 0)
    for name in ("version", "stored_at"):
        del row[name]
    connection.execute(
        update(cases).where(cases.c.id == id_).values(**row, version=cases.c.version + 1)
    )
    insert_words(connection, place, {id_: case})


def ids_by_external_id(
    connection: Connection, keys: Keys, namespace_id: int, external_ids: Sequence[str]
) -> dict[str, int]:
    """Those of the external ids that the namespace has, with the cases' ids."""
    by_key = {keys.of("external", namespace_id, name): name for name in external_ids}
    found: dict[str, int] = {}
    for part in chunks(list(by_key)):
        rows = connection.execute(
            select(cases.c.external_key, cases.c.id).where(
                cases.c.namespace_id == namespace_id, cases.c.external_key.in_(part)
            )
        )
        found.update({by_key[bytes(row.external_key)]: row.id for row in rows})
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
    """Those of the ids that the namespace has, invalidated ones too."""
    found = {}
    for part in chunks(ids):
        wanted = _whole().where(cases.c.namespace_id == namespace_id, cases.c.id.in_(part))
        for row in connection.execute(wanted):
            found[row.id] = _from_row(row, namespace)
    return found


def cases_where(
    connection: Connection,
    condition: ColumnElement[bool],
    namespace: str,
    after: int,
    limit: int,
) -> list[Case]:
    """At most `limit` cases with larger ids than `after`, by id."""
    wanted = _whole().where(condition, cases.c.id > after).order_by(cases.c.id).limit(limit)
    return [_from_row(row, namespace) for row in connection.execute(wanted)]


def newest_where(
    connection: Connection, condition: ColumnElement[bool], namespace: str, count: int
) -> list[Case]:
    """The `count` cases with the largest ids, the largest last."""
    wanted = _whole().where(condition).order_by(cases.c.id.desc()).limit(count)
    return [_from_row(row, namespace) for row in connection.execute(wanted)][::-1]


def count_where(connection: Connection, condition: ColumnElement[bool]) -> int:
    """How many cases meet a condition."""
    query = select(func.count()).select_from(cases).where(condition)
    return int(connection.execute(query).scalar_one())


def spoken(case: NewCase) -> str:
    """What a case says, as one text: the query, and the words of the plan, each on a line."""
    return "\n".join([case.query, *_plan_words(case.plan)])


def content_key(keys: Keys, namespace_id: int, case: NewCase) -> bytes:
    """The key that near-verbatim copies of a case share."""
    return keys.content(namespace_id, case.query, _plan_text(case))


def all_words(case: NewCase) -> Iterator[str]:
    """Every text that a case holds, wherever it stands; JSON as the texts in it."""
    yield case.query
    yield from _plan_words(case.plan)
    yield from _other_words(case)


def _other_words(case: NewCase) -> Iterator[str]:
    yield from case.tags
    yield from case.derived_from
    for word in (case.source, case.external_id):
        if word is not None:
            yield word
    yield from _strings(case.metadata)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif value is not None and not isinstance(value, bool):
        yield json.dumps(value)  # a number may be somebody's


def _rest(case: NewCase) -> str:
    return "\n".join(_other_words(case))


def _plan_words(plan: Any) -> list[str]:
    """The texts in a plan: inside JSON a line break is a backslash and a letter, glueing words."""
    if plan is None:
        return []
    if isinstance(plan, str):
        try:
            parsed = json.loads(plan)
        except (ValueError, RecursionError):
            return [plan]
        if not isinstance(parsed, dict | list):
            return [plan]
        plan = parsed
    return list(_strings(plan))


def _plan_text(case: NewCase) -> str | None:
    if case.plan is None or isinstance(case.plan, str):
        return case.plan
    return _json(case.plan)


def _case_row(case: NewCase, place: Place, moment: int) -> dict[str, Any]:
    def key(kind: str, words: str | None) -> bytes | None:
        return None if words is None else place.keys.of(kind, place.namespace_id, words)

    return {
        "namespace_id": place.namespace_id,
        "seq": place.seq,
        "version": 1,
        "external_key": key("external", case.external_id),
        "content_key": content_key(place.keys, place.namespace_id, case),
        "source_key": key("source", case.source),
        "kind": case.kind,
        "outcome": case.outcome,
        "created_at": case.created_at,
        "valid_from": case.valid_from,
        "valid_to": case.valid_to,
        "stored_at": moment,
    }


def _text_row(case: NewCase, case_id: int) -> dict[str, Any]:
    return {
        "case_id": case_id,
        "external_id": case.external_id,
        "query": case.query,
        "plan": _plan_text(case),
        "plan_is_json": int(case.plan is not None and not isinstance(case.plan, str)),
        "tags": _json(case.tags),
        "source": case.source,
        "derived_from": _json(case.derived_from),
        "metadata": _json(case.metadata),
    }


def _whole() -> Select[Any]:
    return select(
        cases.c.id,
        cases.c.version,
        cases.c.kind,
        cases.c.outcome,
        cases.c.created_at,
        cases.c.valid_from,
        cases.c.valid_to,
        cases.c.stored_at,
        cases.c.invalidated_at,
        *(column for column in texts.c if column.name not in ("id", "case_id")),
    ).join_from(cases, texts, texts.c.case_id == cases.c.id)


def _from_row(row: Row[Any], namespace: str) -> Case:
    return Case(
        id=row.id,
        namespace=namespace,
        version=row.version,
        stored_at=row.stored_at,
        invalidated_at=row.invalidated_at,
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


def id_list(rows: Iterable[Any]) -> list[int]:
    """Ids from scalar rows, ascending, each once."""
    return sorted({int(id_) for id_ in rows})
