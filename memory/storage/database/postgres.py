"""PostgreSQL: one schema of one database is one bank, shared by many processes and machines.

It behaves as SQLite does here. A writer takes an advisory lock before it reads anything, so writers
of one bank take turns, what they read stays true, and both ids and the change sequence follow the
order of commits (a PostgreSQL sequence alone does not). A reader sees one snapshot (REPEATABLE
READ) and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from memory.errors import BankBusy, BankUnavailable, InvalidInput

#: First half of the advisory lock's key, "PREC" in ASCII; the second is the schema.
LOCK_CLASS = 0x50524543

#: Columns that hold words (the full-text index holds digests). ANALYZE would copy values of them
#: into the catalog, where no purge reaches; no query of ours needs their statistics.
WORD_COLUMNS = [
    *(f"texts.{name}" for name in ("external_id", "query", "plan", "tags", "source")),
    *(f"texts.{name}" for name in ("derived_from", "metadata")),
    *(f"run_texts.{name}" for name in ("name", "query", "policy", "metadata")),
    "scheduled.request",
    "exports.path",
    "namespaces.name",
]

# Codes of PostgreSQL's errors (appendix A of its manual).
_BUSY = ("55P03", "57014", "40P01")  # lock_not_available, query_canceled, deadlock_detected
_UNUSABLE = ("53", "57P", "58", "08", "25006", "42501", "3D000", "28", "3F000")


class PostgresDatabase:
    """A schema of a PostgreSQL database."""

    path: Path | None = None

    def __init__(self, url: URL, busy_timeout_s: float) -> None:
        self.busy_timeout_s = busy_timeout_s
        self.shown = url.render_as_string(hide_password=True)
        self.engine = self._engine(url)

    @classmethod
    def at(cls, location: str, busy_timeout_s: float) -> PostgresDatabase:
        """The database of a `postgresql://` URL; its tables live in the first of `search_path`.

        Raises:
            InvalidInput: not a URL.
            BankUnavailable: the driver is not installed.
        """
        try:
            url = make_url(location)
        except ArgumentError as error:
            raise InvalidInput(f"bank location: not a URL ({error})") from error
        if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise InvalidInput(
                f"bank location: driver {url.drivername!r} is not used; write postgresql://"
            )
        try:
            return cls(url.set(drivername="postgresql+psycopg"), busy_timeout_s)
        except ImportError as error:
            raise BankUnavailable(
                "a PostgreSQL bank needs psycopg: pip install 'precedent-memory[postgres]'"
            ) from error

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the driver's errors into ours, with the remedy."""
        try:
            yield
        except DBAPIError as error:
            code = str(getattr(error.orig, "sqlstate", None) or "")
            if code in _BUSY:
                raise BankBusy(
                    f"{self.shown} was locked by another writer for longer than "
                    f"{self.busy_timeout_s:g} s; nothing was written: try again, or raise "
                    "bank.busy_timeout_s"
                ) from error
            lost = error.connection_invalidated or (
                not code and isinstance(error, OperationalError)
            )
            if lost or code.startswith(_UNUSABLE):
                reason = str(error.orig).strip().splitlines()
                raise BankUnavailable(
                    f"{self.shown} cannot be used: {reason[0] if reason else code}; what was "
                    "acknowledged is stored, this is not: check the server, its space and rights"
                ) from error
            raise

    def first_row(self, statement: str, values: Mapping[str, Any]) -> Sequence[Any] | None:
        """See `Database`; one statement sees one snapshot at every level of isolation."""
        engine = self.engine.execution_options(precedent_raw=True)
        with engine.connect() as connection:
            return connection.execute(text(statement), values).first()

    def table_names(self, connection: Connection) -> set[str]:
        """The tables of the schema, full-text indexes left out."""
        rows = connection.execute(
            text("SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema()")
        )
        return {name for name in rows.scalars() if not name.startswith("lexical_")}

    def column_names(self, connection: Connection, table: str) -> set[str]:
        """The columns of a table; none where there is no such table."""
        rows = connection.execute(
            text(
                "SELECT column_name FROM information_schema.columns "
                "WHERE table_schema = current_schema() AND table_name = :table"
            ),
            {"table": table},
        )
        return set(rows.scalars())

    def settle(self) -> None:
        """Nothing to switch."""

    def guard(self, connection: Connection) -> None:
        """Have the server gather no statistics of words."""
        names = self.table_names(connection)
        for table, column in (name.split(".") for name in WORD_COLUMNS):
            if table in names:
                connection.exec_driver_sql(
                    f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0"
                )

    def erase(self, timeout_s: float) -> bool:
        """False: dead rows and the log are erased by a job of its own, see `postgres_erase.py`."""
        return False

    def _engine(self, url: URL) -> Engine:
        engine = create_engine(
            url,
            hide_parameters=True,  # the texts of cases stay out of error messages
            pool_size=5,
            max_overflow=20,
            pool_timeout=self.busy_timeout_s,
            pool_pre_ping=True,  # a server that was restarted is met with a fresh connection
        )
        timeout_ms = max(1, round(1000 * self.busy_timeout_s))

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _: object) -> None:
            cursor = connection.cursor()
            try:
                cursor.execute("SET TIME ZONE 'UTC'")
                cursor.execute(f"SET lock_timeout = {timeout_ms}")
            finally:
                cursor.close()
            connection.commit()

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            if connection.get_execution_options().get("precedent_writes", False):
                connection.exec_driver_sql(
                    "SELECT pg_advisory_xact_lock(%s, hashtext(current_schema()))", (LOCK_CLASS,)
                )
            elif not connection.get_execution_options().get("precedent_raw", False):
                connection.exec_driver_sql(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                )

        return engine
