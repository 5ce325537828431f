"""Run by Alembic around every migration, on the connection that `upgrade` was given."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
# The transaction is the caller's: Alembic sees that and begins none.
with context.begin_transaction():
    context.run_migrations()
