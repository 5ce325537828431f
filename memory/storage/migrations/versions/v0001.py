"""Format 1: cases, vectors and imports, on SQLite only."""

from __future__ import annotations

import uuid

from alembic import op

from memory.storage.migrations.format_1 import TABLES, meta

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From nothing."""
    connection = op.get_bind()
    TABLES.create_all(connection)
    values = {"format": "precedent-bank", "version": "1", "uid": str(uuid.uuid4())}
    connection.execute(meta.insert(), [{"key": k, "value": v} for k, v in values.items()])
