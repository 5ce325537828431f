"""The database under a bank: opening, transactions, and everything that is SQLite's own.

Promises: a write that returned is on disk (write-ahead log, synced at every commit); deleted
content is overwritten (`secure_delete`); a reader sees one snapshot and never waits for a writer;
writers of several threads and processes take turns. A process that forks must open its own store.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    insert,
    make_url,
    select,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import ArgumentError, DBAPIError

from memory.config import BankConfig
from memory.errors import BankBusy, BankClosed, BankUnavailable, ForeignBank, InvalidInput
from memory.schema import SCHEMA_VERSION, TABLES, meta

_FORMAT = "precedent-bank"
_SQLITE_MAGIC = b"SQLite format 3\x00"


class Store:
    """One open database; safe to share between threads."""

    def __init__(self, path: Path, config: BankConfig) -> None:
        self.path = path
        self.config = config
        self._engine: Engine | None = _engine(path, config)
        self._process = os.getpid()
        # Threads queue here at no cost; SQLite itself would make them poll.
        self._writing = threading.Lock()
        try:
            with translated(path, config):
                self.uid = self._prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, location: str | Path, config: BankConfig) -> Store:
        """Open the database at a path or `sqlite:///` URL; make it, and its folder, if need be.

        Raises:
            ForeignBank: what is there is not a bank that this version reads.
            BankUnavailable: it cannot be made or opened.
            InvalidInput: not a location.
        """
        path = _path(location)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise ForeignBank(f"{path} is a folder; name a file in it, such as {path}/bank.db")
            head = _head(path)
        except OSError as error:
            raise BankUnavailable(
                f"{path} cannot be opened: {error.strerror or error}; check the path and its "
                "permissions"
            ) from error
        if head and head != _SQLITE_MAGIC:
            raise ForeignBank(f"{path} is not a SQLite database; name another file for the bank")
        return cls(path, config)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one snapshot."""
        engine = self._usable()
        with translated(self.path, self.config), engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; it is on disk when the block ends without an error."""
        engine = self._usable().execution_options(precedent_writes=True)
        with (
            self._writing,
            translated(self.path, self.config),
            engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    def close(self) -> None:
        """Give every connection back; closing twice is fine."""
        engine, self._engine = self._engine, None
        if engine is not None and self._process == os.getpid():
            engine.dispose()

    def _usable(self) -> Engine:
        if self._engine is None:
            raise BankClosed(f"the bank {self.path} was closed; open it again")
        if self._process != os.getpid():
            # SQLite connections and their locks do not survive a fork
            # (sqlite.org/howtocorrupt.html).
            raise BankClosed(
                f"the bank {self.path} was opened before this process was forked; open it again"
            )
        return self._engine

    def _prepare(self) -> str:
        """Check or make the tables; the bank's identity."""
        found = self._identity()
        # Only once we know that the file is ours: switching the log changes the file.
        self._use_write_ahead_log()
        if found is None:
            self._make_tables()
            found = self._identity()
        assert found is not None, "tables do not vanish"
        return found

    def _make_tables(self) -> None:
        with self.write() as connection:
            if _table_names(connection):
                return  # another process was faster
            TABLES.create_all(connection)
            values = {"format": _FORMAT, "version": str(SCHEMA_VERSION), "uid": str(uuid.uuid4())}
            connection.execute(insert(meta), [{"key": k, "value": v} for k, v in values.items()])

    def _identity(self) -> str | None:
        """The bank's UUID, or None where the database is still empty."""
        with self.read() as connection:
            names = _table_names(connection)
            if not names:
                return None
            if not {"key", "value"} <= _column_names(connection, "meta"):
                raise self._foreign(names)
            values = {row.key: row.value for row in connection.execute(select(meta))}
        if values.get("format") != _FORMAT or not values.get("uid"):
            raise self._foreign(names)
        version = str(values.get("version"))
        if not version.isdecimal() or int(version) > SCHEMA_VERSION:
            raise ForeignBank(
                f"{self.path} is a bank of format {version}; this version reads up to "
                f"{SCHEMA_VERSION}: upgrade precedent-memory"
            )
        return str(values["uid"])

    def _foreign(self, names: set[str]) -> ForeignBank:
        listed = ", ".join(sorted(names)[:5])
        return ForeignBank(
            f"{self.path} is a database of something else (tables: {listed}); it was left as it "
            "is: name another file for the bank"
        )

    def _use_write_ahead_log(self) -> None:
        """Switch the file to WAL; the switch does not wait by itself while others have it open."""
        deadline = time.monotonic() + self.config.busy_timeout_s
        while True:
            raw = self._usable().raw_connection()
            try:
                connection: Any = raw.driver_connection
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            finally:
                raw.close()
            if mode != "wal":
                raise BankUnavailable(
                    f"{self.path} lies on a file system without shared memory (journal mode "
                    f"{mode!r}); put the bank on a local disk"
                )
            return


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those rows whose keys are not there yet."""
    if rows:
        connection.execute(sqlite_insert(table).on_conflict_do_nothing(), list(rows))


@contextmanager
def translated(path: Path, config: BankConfig) -> Iterator[None]:
    """Turn the driver's errors into ours, with the remedy."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        name = str(getattr(cause, "sqlite_errorname", ""))
        if isinstance(cause, sqlite3.Error) and _is_busy(cause):
            raise BankBusy(
                f"{path} was locked by another writer for longer than {config.busy_timeout_s:g} s; "
                "nothing was written: try again, or raise bank.busy_timeout_s"
            ) from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise ForeignBank(
                f"{path} is damaged ({cause}); restore a backup, or import an export elsewhere"
            ) from error
        if name.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")):
            raise BankUnavailable(
                f"{path} cannot be used: {cause}; nothing was written: check space and permissions"
            ) from error
        raise


def _engine(path: Path, config: BankConfig) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": config.busy_timeout_s},
        hide_parameters=True,  # the texts of cases stay out of error messages
        max_overflow=-1,  # a thread that reads never waits for another's connection
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _: object) -> None:
        # Without this, the driver decides when transactions begin; see "begin" below.
        connection.isolation_level = None
        for pragma in ("foreign_keys = ON", "secure_delete = ON", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE: a writer waits for its turn before it reads, so that what it read stays true.
        writes = connection.get_execution_options().get("precedent_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _path(location: str | Path) -> Path:
    text = os.fspath(location)
    if not isinstance(text, str) or not text.strip() or "\x00" in text:
        raise InvalidInput(f"bank location = {location!r}: give a file or a sqlite:/// URL")
    if "://" in text:
        try:
            url = make_url(text)
        except ArgumentError as error:
            raise InvalidInput(f"bank location = {text!r}: not a URL ({error})") from error
        if url.get_backend_name() != "sqlite":
            raise InvalidInput(
                f"bank location: {url.get_backend_name()} is not supported; use a file or sqlite:///"
            )
        if url.query:
            raise InvalidInput(
                f"bank location = {text!r}: options in the URL are not read; use BankConfig"
            )
        text = url.database or ":memory:"
    if text == ":memory:" or text.startswith("file:"):
        raise InvalidInput(
            f"bank location = {os.fspath(location)!r}: a bank lives in a file; use one in a "
            "temporary folder"
        )
    return Path(text).expanduser().absolute()


def _head(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC))


def _is_busy(error: sqlite3.Error) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _table_names(connection: Connection) -> set[str]:
    rows = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows if not name.startswith("sqlite_")}


def _column_names(connection: Connection, table: str) -> set[str]:
    return {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")}
