"""How a bank of an older format is brought forward, losing nothing: Alembic's migrations.

One revision a format, in `versions`; each works on tables frozen beside it, so that it still does
the same when `memory.schema` has moved on. All of it happens in the caller's transaction: a
crash leaves the old format as it was.
"""

from __future__ import annotations

import threading

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, select

from memory.errors import ForeignBank
from memory.storage.migrations import format_1, format_2

# Alembic keeps the migration that is running in globals of its modules.
_RUNNING = threading.Lock()


def upgrade(connection: Connection, lexical: str) -> None:
    """Bring the tables forward to the newest format, or make them; nothing where they are new.

    Args:
        connection: in a transaction that may write.
        lexical: how the full-text index of an older bank will cut words: `words` or `trigrams`.

    Raises:
        ForeignBank: a format that no release ever wrote.
    """
    names = set(inspect(connection).get_table_names())
    if format_2.alembic_version.name not in names:
        _adopt(connection, format_1.meta.name in names)
    config = Config()
    config.set_main_option("script_location", "memory.storage:migrations")
    config.attributes.update(connection=connection, lexical=lexical)
    with _RUNNING:
        command.upgrade(config, "head")


def _adopt(connection: Connection, has_tables: bool) -> None:
    """Note the revision of a bank that was made before it kept one."""
    format_2.alembic_version.create(connection)
    if not has_tables:
        return
    version = connection.execute(
        select(format_1.meta.c.value).where(format_1.meta.c.key == "version")
    ).scalar_one_or_none()
    if version != "1":
        raise ForeignBank(
            f"a bank of format {version} that names no migration; restore a backup, or import an "
            "export into a new bank"
        )
    connection.execute(format_2.alembic_version.insert(), [{"version_num": "0001"}])
