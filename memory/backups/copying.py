"""A whole bank from one database into another: every row as it is, every id counter, words indexed.

Functions over open transactions. What only describes one database's files stays behind: which bytes
are still to be erased, and how far that job is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, text

from memory.schema import TABLES, cases, meta, namespaces
from memory.storage.erasing import JOB, OWED
from memory.storage.rows import lexical_entries
from memory.storage.wiping import wiped
from memory.text import lexical

#: Called with how many of how many rows are copied.
Progress: TypeAlias = Callable[[int, int], None]

_BATCH = 2000


def copy_bank(
    source: Connection, target: Connection, style: str, progress: Progress | None = None
) -> int:
    """Put every row of a bank in the place of whatever another one holds; how many cases there are.

    Args:
        source: a snapshot of the bank.
        target: a transaction that writes.
        style: how the bank's full-text index cuts words.
        progress: called with how many of how many rows are copied.
    """
    _empty(target)
    tables = TABLES.sorted_tables  # a row comes after the rows it refers to
    counts = {
        table: int(
            source.execute(
                select(func.count()).select_from(table).where(*wiped(table))
            ).scalar_one()
        )
        for table in tables
    }
    total, done = sum(counts.values()), 0
    for table in tables:
        # A server sends a part at a time instead of everything at once.
        streamed = {"yield_per": _BATCH}
        there = select(table).where(*wiped(table))
        with source.execute(there, execution_options=streamed) as result:
            for part in result.mappings().partitions():
                target.execute(insert(table), [dict(row) for row in part])
                done += len(part)
                if progress is not None:
                    progress(done, total)
    target.execute(delete(meta).where(meta.c.key.in_((OWED, JOB))))
    raise_counters(target, id_counters(source))
    for row in target.execute(select(namespaces.c.id, namespaces.c.name)).all():
        lexical.create(target, row.id, style)
        for entries in lexical_entries(target, row.id, row.name):
            lexical.add(target, row.id, entries, style)
    return counts[cases]


def numbered_tables() -> list[str]:
    """The tables whose ids the database gives out."""
    every = TABLES.sorted_tables
    return [table.name for table in every if table.dialect_options["sqlite"]["autoincrement"]]


def id_counters(connection: Connection) -> dict[str, int]:
    """The last id given out in each table, also where its row is gone: ids are never reused."""
    if connection.dialect.name == "postgresql":
        found = {}
        for table in numbered_tables():
            name = connection.execute(
                text("SELECT pg_get_serial_sequence(:table, 'id')"), {"table": table}
            ).scalar_one()
            row = connection.execute(text(f"SELECT last_value, is_called FROM {name}")).one()
            found[table] = int(row.last_value) if row.is_called else 0
        return found
    rows = connection.execute(text("SELECT name, seq FROM sqlite_sequence"))
    return {name: int(seq) for name, seq in rows if name in TABLES.tables}


def raise_counters(connection: Connection, counters: Mapping[str, int]) -> None:
    """Let no id up to these be given out again."""
    present = id_counters(connection)
    for name, value in counters.items():
        if value <= present.get(name, 0):
            continue
        if connection.dialect.name == "postgresql":
            statement = "SELECT setval(pg_get_serial_sequence(:name, 'id'), :value)"
        elif name in present:
            statement = "UPDATE sqlite_sequence SET seq = :value WHERE name = :name"
        else:
            statement = "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :value)"
        connection.execute(text(statement), {"name": name, "value": value})


def _empty(connection: Connection) -> None:
    for id_ in list(connection.execute(select(namespaces.c.id)).scalars()):
        lexical.drop(connection, int(id_))
    for table in reversed(TABLES.sorted_tables):
        connection.execute(delete(table))
