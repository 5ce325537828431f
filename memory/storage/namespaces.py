"""Namespaces and the change sequence, inside an open transaction."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from memory.keys import Keys
from memory.schema import change_sequence, namespaces
from memory.storage.store import Store
from memory.text import lexical

_STATE = select(namespaces.c.id, namespaces.c.version, namespaces.c.created_seq).where(
    namespaces.c.name_key == bindparam("key")
)


class NamespaceState(NamedTuple):
    """A namespace as a transaction sees it."""

    id: int
    version: int
    created_seq: int = 0


def namespace_key(keys: Keys, name: str) -> bytes:
    """What a namespace is looked up by."""
    return keys.of("namespace", 0, name)


def namespace_state(connection: Connection, keys: Keys, name: str) -> NamespaceState | None:
    """Id and version of a namespace, or None where there is none of that name."""
    row = connection.execute(_STATE, {"key": namespace_key(keys, name)}).one_or_none()
    return None if row is None else NamespaceState(row.id, row.version, row.created_seq)


def newest_version(store: Store, name: str) -> int | None:
    """The version of a namespace, outside any transaction; None where there is none of that name.

    Every search asks for it.
    """
    row = store.first_row(
        "SELECT version FROM namespaces WHERE name_key = :key",
        {"key": namespace_key(store.keys, name)},
    )
    return None if row is None else int(row[0])


def namespace_names(connection: Connection) -> list[str]:
    """The names of all namespaces, sorted."""
    return sorted(connection.execute(select(namespaces.c.name)).scalars())


def next_change(connection: Connection) -> int:
    """The next number of the change sequence, the writer's alone until it commits.

    Numbers follow the order of commits, for writers hold the bank's lock from their first read on.
    """
    raised = update(change_sequence).values(value=change_sequence.c.value + 1)
    return int(connection.execute(raised.returning(change_sequence.c.value)).scalar_one())


def last_change(connection: Connection) -> int:
    """The last number given out."""
    return int(connection.execute(select(func.max(change_sequence.c.value))).scalar_one())


def changed_namespace(connection: Connection, keys: Keys, name: str, style: str) -> NamespaceState:
    """Make the namespace if need be and give it the next change as its version.

    `style` says how a new namespace's full-text index cuts words.
    """
    seq = next_change(connection)
    state = namespace_state(connection, keys, name)
    if state is None:
        made = connection.execute(
            insert(namespaces).returning(namespaces.c.id),
            [
                {
                    "name": name,
                    "name_key": namespace_key(keys, name),
                    "created_seq": seq,
                    "version": seq,
                }
            ],
        )
        id_ = int(made.scalar_one())
        lexical.create(connection, id_, style)
        return NamespaceState(id_, seq, seq)
    connection.execute(update(namespaces).where(namespaces.c.id == state.id).values(version=seq))
    return NamespaceState(state.id, seq, state.created_seq)


def remove_namespace(connection: Connection, namespace_id: int) -> None:
    """Take the name itself away; nothing may hang on it any more."""
    lexical.drop(connection, namespace_id)
    connection.execute(delete(namespaces).where(namespaces.c.id == namespace_id))
