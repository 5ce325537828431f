"""A bank's database: opening, identity, migrations and transactions.

Promises, whichever engine is below: a write that returned is on disk; a reader sees one snapshot
and never waits for a writer; writers of several threads and processes take turns, each reading only
what stays true until it commits. A process that forks must open its own store.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, insert, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from memory.config import BankConfig
from memory.errors import BankClosed, BankUnavailable, ForeignBank
from memory.keys import Keys, new_secret
from memory.schema import (
    REVISION,
    SCHEMA_VERSION,
    TABLES,
    alembic_version,
    change_sequence,
    meta,
)
from memory.storage.database.base import Database
from memory.storage.database.postgres import PostgresDatabase
from memory.storage.database.sqlite import SqliteDatabase

_FORMAT = "precedent-bank"


class Store:
    """One open database; safe to share between threads.

    Attributes:
        uid: the bank's UUID, made with its database.
        keys: the bank's keyed digests.
        lexical: how words are cut: `words` or `trigrams`; fixed when the bank was made.
    """

    def __init__(self, database: Database, config: BankConfig) -> None:
        self.database = database
        self.config = config
        self._engine: Engine | None = database.engine
        self._process = os.getpid()
        # Threads queue here at no cost; the engines themselves would make them poll.
        self._writing = threading.Lock()
        try:
            with database.translated():
                facts = self._prepare()
        except BaseException:
            self.close()
            raise
        self.uid = facts["uid"]
        #: Names the bank's present past: another one after a backup was restored over it, so that
        #: arrays and files that followed the former one are not believed.
        self.life = f"{self.uid}:{facts['life']}" if "life" in facts else self.uid
        self.keys = Keys(bytes.fromhex(facts["secret"]))
        self.lexical = facts["lexical"]

    @classmethod
    def open(cls, location: str | Path, config: BankConfig) -> Store:
        """Open the database at a path or URL; make it, and a file's folder, if need be.

        Raises:
            ForeignBank: what is there is not a bank that this version reads.
            BankUnavailable: it cannot be made or opened.
            InvalidInput: not a location.
        """
        if is_postgres(location):
            return cls(PostgresDatabase.at(str(location), config.busy_timeout_s), config)
        return cls(SqliteDatabase.at(location, config.busy_timeout_s), config)

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._engine is None or self._process != os.getpid()

    @property
    def path(self) -> Path | None:
        """The database file; None where it is a server's."""
        return self.database.path

    @property
    def shown(self) -> str:
        """Where the bank is, for messages."""
        return self.database.shown

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one snapshot."""
        engine = self._usable()
        with self.database.translated(), engine.connect() as connection, connection.begin():
            yield connection

    def first_row(self, statement: str, values: Mapping[str, Any]) -> Sequence[Any] | None:
        """The first row of one statement, read as `read` would, at a tenth of what that takes."""
        self._usable()
        with self.database.translated():
            return self.database.first_row(statement, values)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; it is on disk when the block ends without an error."""
        engine = self._usable().execution_options(precedent_writes=True)
        with (
            self._writing,
            self.database.translated(),
            engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn among the writers of this process, without a transaction."""
        with self._writing:
            yield

    def close(self) -> None:
        """Give every connection back; closing twice is fine."""
        engine, self._engine = self._engine, None
        if engine is not None and self._process == os.getpid():
            engine.dispose()

    def _usable(self) -> Engine:
        if self._engine is None:
            raise BankClosed(f"the bank {self.shown} was closed; open it again")
        if self._process != os.getpid():
            # Neither SQLite's locks nor a server's connections survive a fork
            # (sqlite.org/howtocorrupt.html).
            raise BankClosed(
                f"the bank {self.shown} was opened before this process was forked; open it again"
            )
        return self._engine

    def _prepare(self) -> dict[str, str]:
        """Check, make or bring forward the tables; what `meta` says."""
        found = self._identity()
        # Only once we know that the database is ours: settling changes it.
        self.database.settle()
        if found is None:
            self._make_tables()
        elif int(found["version"]) < SCHEMA_VERSION:
            self._migrate()
        found = self._identity()
        assert found is not None, "tables do not vanish"
        return found

    def _make_tables(self) -> None:
        with self.write() as connection:
            if self.database.table_names(connection):
                return  # another process was faster
            TABLES.create_all(connection)
            self.database.guard(connection)
            values = {
                "format": _FORMAT,
                "version": str(SCHEMA_VERSION),
                "uid": str(uuid.uuid4()),
                "secret": new_secret().hex(),
                "lexical": self.config.lexical,
            }
            connection.execute(insert(meta), [{"key": k, "value": v} for k, v in values.items()])
            connection.execute(insert(alembic_version), [{"version_num": REVISION}])
            connection.execute(insert(change_sequence), [{"id": 1, "value": 0}])

    def _migrate(self) -> None:
        from memory.storage.migrations import upgrade  # Alembic is slow to import and seldom needed

        with self.write() as connection:
            upgrade(connection, self.config.lexical)
            self.database.guard(connection)

    def _identity(self) -> dict[str, str] | None:
        """What `meta` holds, or None where the database is still empty."""
        with self.read() as connection:
            names = self.database.table_names(connection)
            if not names:
                return None
            if not {"key", "value"} <= self.database.column_names(connection, "meta"):
                raise self._foreign(names)
            values = {row.key: row.value for row in connection.execute(select(meta))}
        if values.get("format") != _FORMAT or not values.get("uid"):
            raise self._foreign(names)
        version = str(values.get("version"))
        if not version.isdecimal() or int(version) > SCHEMA_VERSION:
            raise ForeignBank(
                f"{self.shown} is a bank of format {version}; this version reads up to "
                f"{SCHEMA_VERSION}: upgrade precedent-memory"
            )
        if int(version) == SCHEMA_VERSION and not {"secret", "lexical"} <= set(values):
            raise BankUnavailable(
                f"{self.shown} has lost a row of its table meta; restore a backup"
            )
        return values

    def _foreign(self, names: set[str]) -> ForeignBank:
        listed = ", ".join(sorted(names)[:5])
        return ForeignBank(
            f"{self.shown} is a database of something else (tables: {listed}); it was left as it "
            "is: name another one for the bank"
        )


def is_postgres(location: object) -> bool:
    """Whether a location is the URL of a PostgreSQL server."""
    return isinstance(location, str) and location.startswith(("postgresql", "postgres:"))


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those rows whose keys are not there yet."""
    if rows:
        on = postgres_insert if connection.dialect.name == "postgresql" else sqlite_insert
        connection.execute(on(table).on_conflict_do_nothing(), list(rows))
