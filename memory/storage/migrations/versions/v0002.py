"""Format 2: words apart from digests, a full-text index, a change sequence, runs and receipts.

Ids of cases and vectors stay, and so do the vectors' values. What is new is filled in: keyed
digests under a new secret, tags and lineage, the full-text index. Every case counts as changed and
as told at the migration, for format 1 did not note either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from alembic import context, op
from sqlalchemy import Connection, MetaData, Row, Table, func, insert, select, text, update

from memory.case import NewCase
from memory.keys import Keys, new_secret
from memory.storage.migrations import format_1, format_2
from memory.storage.rows import all_words, spoken
from memory.text import lexical
from memory.times import now

revision = "0002"
down_revision = "0001"

_PAGE = 500
#: Tables whose form changed, those that refer to others first. `embedders` and `meta` stay.
_CHANGED = ("case_vectors", "vectors", "imports", "cases", "namespaces")
_COUNTED = ("namespaces", "cases", "vectors")


def upgrade() -> None:
    """From format 1."""
    connection = op.get_bind()
    style = str(context.config.attributes["lexical"])
    _set_aside(connection)
    format_2.TABLES.create_all(connection)
    secret = new_secret()
    keys = Keys(secret)
    change = _copy_namespaces(connection, keys, style)
    cases = 0
    for row in connection.execute(select(format_2.namespaces)).all():
        cases += _copy_cases(connection, keys, row.id, row.version, style)
    _copy_vectors(connection, keys)
    _copy_imports(connection, keys)
    for name in _COUNTED:
        _go_on_counting(connection, name, f"v1_{name}")
    _go_on_counting(connection, "texts", "v1_cases")
    for name in _CHANGED:
        op.drop_table(f"v1_{name}")
    connection.execute(insert(format_2.change_sequence), [{"id": 1, "value": change}])
    facts = {"secret": secret.hex(), "lexical": style}
    if cases:
        facts["erase_owed"] = str(change)  # the words of the tables that were dropped
    meta = format_2.meta
    connection.execute(insert(meta), [{"key": k, "value": v} for k, v in facts.items()])
    connection.execute(update(meta).where(meta.c.key == "version").values(value="2"))


def _set_aside(connection: Connection) -> None:
    op.drop_index("cases_of_namespace", "cases")
    for name in _CHANGED:
        op.rename_table(name, f"v1_{name}")
    if connection.dialect.name != "postgresql":
        return
    # There, the names of constraints, of their indexes and of sequences are a schema's: the new
    # tables would get others than in a new bank.
    for name in _CHANGED:
        constraints = connection.execute(
            text("SELECT conname FROM pg_constraint WHERE conrelid = CAST(:name AS regclass)"),
            {"name": f"v1_{name}"},
        ).scalars()
        for constraint in constraints.all():
            op.execute(
                f'ALTER TABLE v1_{name} RENAME CONSTRAINT "{constraint}" TO "v1_{constraint}"'
            )
    for name in _COUNTED:
        op.execute(f"ALTER SEQUENCE {name}_id_seq RENAME TO v1_{name}_id_seq")


def _old(table: Table) -> Table:
    """A table of format 1 under the name it was set aside with."""
    return table.to_metadata(MetaData(), name=f"v1_{table.name}")


def _pages(connection: Connection, table: Table, *where: Any) -> Iterator[list[Row[Any]]]:
    """All rows by id, a page at a time."""
    after = 0
    while True:
        query = select(table).where(*where, table.c.id > after).order_by(table.c.id).limit(_PAGE)
        rows = list(connection.execute(query))
        if not rows:
            return
        yield rows
        after = rows[-1].id


def _copy_namespaces(connection: Connection, keys: Keys, style: str) -> int:
    """The last number of the change sequence; every namespace gets one of its own."""
    old = _old(format_1.namespaces)
    # Larger than any version before: whoever remembers one must not take the bank for an older one.
    change = int(connection.execute(select(func.coalesce(func.max(old.c.version), 0))).scalar_one())
    for row in connection.execute(select(old).order_by(old.c.id)).all():
        change += 1
        made = {
            "id": row.id,
            "name": row.name,
            "name_key": keys.of("namespace", 0, row.name),
            "version": change,
            "created_seq": change,
        }
        connection.execute(insert(format_2.namespaces), [made])
        lexical.create(connection, row.id, style)
    return change


def _copy_cases(
    connection: Connection, keys: Keys, namespace_id: int, change: int, style: str
) -> int:
    old = _old(format_1.cases)
    moment = now()
    count = 0
    for rows in _pages(connection, old, old.c.namespace_id == namespace_id):
        pairs = [(row, _case(row)) for row in rows]
        new = [_case_row(row, case, keys, change, moment) for row, case in pairs]
        connection.execute(insert(format_2.cases), new)
        connection.execute(insert(format_2.texts), [_text_row(row) for row in rows])
        entries = [_entry(row.id, case) for row, case in pairs]
        lexical.add(connection, namespace_id, entries, style)
        for table, column, kind, owner, words in (
            (format_2.case_tags, "tag_key", "tag", "case_id", "tags"),
            (format_2.lineage, "parent_key", "external", "child_id", "derived_from"),
        ):
            links = [
                {"namespace_id": namespace_id, column: key, owner: row.id}
                for row, case in pairs
                for key in dict.fromkeys(keys.many(kind, namespace_id, getattr(case, words)))
            ]
            if links:
                connection.execute(insert(table), links)
        count += len(rows)
    return count


def _case(row: Row[Any]) -> NewCase:
    return NewCase(
        row.query,
        plan=json.loads(row.plan) if row.plan_is_json else row.plan,
        tags=tuple(json.loads(row.tags)),
        source=row.source,
        derived_from=tuple(json.loads(row.derived_from)),
        metadata=json.loads(row.metadata),
        external_id=row.external_id,
    )


def _entry(id_: int, case: NewCase) -> lexical.Entry:
    """What the index holds: query and plan, and apart from them the other words."""
    _, *rest = all_words(replace(case, plan=None))
    return lexical.Entry(id_, spoken(case), "\n".join(rest))


def _case_row(row: Row[Any], case: NewCase, keys: Keys, change: int, moment: int) -> dict[str, Any]:
    def key(kind: str, words: str | None) -> bytes | None:
        return None if words is None else keys.of(kind, row.namespace_id, words)

    same = ("id", "namespace_id", "kind", "outcome", "created_at", "valid_from", "valid_to")
    return {
        **{name: getattr(row, name) for name in same},
        "seq": change,
        "version": 1,
        "external_key": key("external", row.external_id),
        "content_key": keys.content(row.namespace_id, row.query, row.plan),
        "source_key": key("source", row.source),
        "stored_at": moment,
    }


def _text_row(row: Row[Any]) -> dict[str, Any]:
    same = ("external_id", "query", "plan", "plan_is_json", "tags", "source", "derived_from")
    values = {name: getattr(row, name) for name in (*same, "metadata")}
    return {"id": row.id, "case_id": row.id, **values}


def _copy_vectors(connection: Connection, keys: Keys) -> None:
    for rows in _pages(connection, _old(format_1.vectors)):
        new = [
            {
                "id": row.id,
                "namespace_id": row.namespace_id,
                "embedder_id": row.embedder_id,
                "text_key": keys.of("text", row.namespace_id, bytes(row.text_sha256).hex()),
                "vector": row.vector,
            }
            for row in rows
        ]
        connection.execute(insert(format_2.vectors), new)
    links = _old(format_1.case_vectors)
    names = ("embedder_id", "case_id", "vector_id")
    copied = insert(format_2.case_vectors).from_select(names, select(*(links.c[n] for n in names)))
    connection.execute(copied)


def _copy_imports(connection: Connection, keys: Keys) -> None:
    new = [
        {
            "namespace_id": row.namespace_id,
            "file_key": keys.of("file", row.namespace_id, bytes(row.sha256).hex()),
            "lines": row.lines,
            "finished": row.finished,
        }
        for row in connection.execute(select(_old(format_1.imports)))
    ]
    if new:
        connection.execute(insert(format_2.imports), new)


def _go_on_counting(connection: Connection, table: str, old: str) -> None:
    """No id is given out twice, not even one whose row is gone."""
    if connection.dialect.name == "postgresql":
        last, used = connection.execute(
            text(f"SELECT last_value, is_called FROM {old}_id_seq")
        ).one()
        sequence = {"name": f"{table}_id_seq", "last": last, "used": used}
        connection.execute(text("SELECT setval(CAST(:name AS regclass), :last, :used)"), sequence)
        return
    last = connection.execute(
        text("SELECT seq FROM sqlite_sequence WHERE name = :old"), {"old": old}
    ).scalar()
    if last is not None:
        row = {"name": table, "last": last}
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), row)
        connection.execute(text("INSERT INTO sqlite_sequence VALUES (:name, :last)"), row)
