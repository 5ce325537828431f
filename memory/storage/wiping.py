"""Taking words out of a table so that no copy of them is left in the database file.

SQLite zeroes a row that is deleted, but when deletions leave a page mostly empty it moves the rows
of its neighbours together, and the places they stood at keep their bytes, out of reach of any later
deletion. So in SQLite a row of words is never deleted one by one: it is overwritten where it
stands, by as many bytes of filler, and marked as nobody's. Such rows cost their room until `sweep`
deletes them all, right before the whole file is written anew. PostgreSQL deletes; its dead rows are
the business of `database/postgres_erase.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    Table,
    Text,
    case,
    cast,
    delete,
    func,
    update,
)

from memory.schema import run_texts, scheduled, texts

#: The tables of words, each with the column that says whose a row is, or when it is due. It is
#: above 0; what is overwritten has 0 or less.
OWNERS: dict[str, Column[int]] = {
    "texts": texts.c.case_id,
    "run_texts": run_texts.c.run_id,
    "scheduled": scheduled.c.due_at,
}


def wipe(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    """Take the rows that meet a condition away; how many there were."""
    owner = OWNERS[table.name]
    if connection.dialect.name != "sqlite":
        return connection.execute(delete(table).where(condition)).rowcount
    values = {c.name: _filler(c) for c in table.c if isinstance(c.type, Text)}
    # As many bytes as before, or the row would move: an integer and its complement have equal size,
    # but for 1, which like 0 has none at all.
    values[owner.name] = case((owner == 1, 0), else_=-1 - owner)
    return connection.execute(update(table).where(condition, owner > 0).values(values)).rowcount


def sweep(connection: Connection) -> int:
    """Delete what is overwritten, before the file is written anew; how many rows there were."""
    gone = 0
    for owner in OWNERS.values():
        gone += connection.execute(delete(owner.table).where(owner <= 0)).rowcount
    return gone


def wiped(table: Table) -> Sequence[ColumnElement[bool]]:
    """The condition that keeps overwritten rows out, where the table has any."""
    return [OWNERS[table.name] > 0] if table.name in OWNERS else []


def _filler(column: Column[str]) -> ColumnElement[str]:
    """As many bytes as the column holds; NULL stays NULL."""
    size = func.length(cast(column, LargeBinary))
    return func.substr(func.hex(func.zeroblob(size / 2 + 1, type_=Integer)), 1, size)
