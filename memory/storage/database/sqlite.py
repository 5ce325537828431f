"""SQLite: write-ahead log, synced commits, deleted content overwritten.

Nothing here opens the file but SQLite itself: closing any other handle of it would drop the locks
that this process holds.

Deleted words must be gone from the full-text index as well, which SQLite can do since 3.42
(`secure-delete` of FTS5). Debian 12 ships 3.40, so the driver of `pysqlite3-binary` is taken where
Python's own is older.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from memory.errors import BankBusy, BankUnavailable, ForeignBank, InvalidInput

#: FTS5 learnt to overwrite deleted terms in this one (sqlite.org/fts5.html, "secure-delete").
OLDEST = (3, 42, 0)


def driver() -> Any:
    """The DB-API module to use: Python's own if it is new enough, else pysqlite3's.

    Raises:
        BankUnavailable: neither is new enough.
    """
    if sqlite3.sqlite_version_info >= OLDEST:
        return sqlite3
    try:
        found = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        found = None
    if found is None or found.sqlite_version_info < OLDEST:
        raise BankUnavailable(
            f"SQLite {sqlite3.sqlite_version} cannot erase deleted words from its full-text index; "
            f"{'.'.join(map(str, OLDEST))} can: pip install pysqlite3-binary, or use a newer Python"
        )
    return found


class SqliteDatabase:
    """One file of SQLite's."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self.shown = str(path)
        self.busy_timeout_s = busy_timeout_s
        self._driver = driver()
        self.engine = self._engine()

    @classmethod
    def at(cls, location: str | Path, busy_timeout_s: float) -> SqliteDatabase:
        """The database at a path or `sqlite:///` URL; its folder is made if need be.

        Raises:
            ForeignBank: it is a folder.
            BankUnavailable: it cannot be made or opened.
            InvalidInput: not a location.
        """
        path = file_of(location)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise ForeignBank(f"{path} is a folder; name a file in it, such as {path}/bank.db")
        except OSError as error:
            raise BankUnavailable(
                f"{path} cannot be opened: {error.strerror or error}; check the path and its "
                "permissions"
            ) from error
        return cls(path, busy_timeout_s)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the driver's errors into ours, with the remedy."""
        try:
            yield
        except (DBAPIError, sqlite3.Error, self._driver.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            name = _error_name(cause)
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise BankBusy(
                    f"{self.path} was locked by another writer for longer than "
                    f"{self.busy_timeout_s:g} s; nothing was written: try again, or raise "
                    "bank.busy_timeout_s"
                ) from error
            if name.startswith("SQLITE_NOTADB"):
                raise ForeignBank(
                    f"{self.path} is not a SQLite database, or its head is damaged; it was left as "
                    "it is: name another file for the bank, or restore a backup"
                ) from error
            if name.startswith("SQLITE_CORRUPT"):
                raise ForeignBank(
                    f"{self.path} is damaged ({cause}); restore a backup, or import an export "
                    "elsewhere"
                ) from error
            if name.startswith(
                ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")
            ):
                raise BankUnavailable(
                    f"{self.path} cannot be used: {cause}; nothing was written: check space and "
                    "permissions"
                ) from error
            raise

    def first_row(self, statement: str, values: Mapping[str, Any]) -> Sequence[Any] | None:
        """See `Database`; a statement alone is a transaction of its own."""
        raw = self.engine.raw_connection()
        try:
            connection: Any = raw.driver_connection
            # All rows, for a statement that is not read to its end keeps its snapshot open.
            rows: list[Sequence[Any]] = connection.execute(statement, values).fetchall()
        finally:
            raw.close()
        return rows[0] if rows else None

    def table_names(self, connection: Connection) -> set[str]:
        """The tables that are there, the parts of full-text indexes left out."""
        rows = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in rows if not name.startswith(("sqlite_", "lexical_"))}

    def column_names(self, connection: Connection, table: str) -> set[str]:
        """The columns of a table; none where there is no such table."""
        return {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")}

    def settle(self) -> None:
        """Switch the file to WAL; the switch does not wait by itself while others have it open."""
        deadline = time.monotonic() + self.busy_timeout_s
        while True:
            raw = self.engine.raw_connection()
            try:
                connection: Any = raw.driver_connection
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except self._driver.OperationalError as error:
                if not _error_name(error).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
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

    def guard(self, connection: Connection) -> None:
        """SQLite gathers statistics only when it is told to."""

    def erase(self, timeout_s: float) -> bool:
        """Empty the write-ahead log, which still holds what was deleted from the file.

        False: others read an older state, or wrote, for the whole time. While it waits for readers
        no writer gets its turn, so let it wait in small pieces.
        """
        raw = self.engine.raw_connection()
        connection: Any = raw.driver_connection
        try:
            connection.execute(f"PRAGMA busy_timeout = {round(1000 * timeout_s)}")
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(1000 * self.busy_timeout_s)}")
            raw.close()
        return not busy

    def rewrite(self) -> None:
        """Write the whole file anew: the last resort against bytes in the gaps of its pages."""
        raw = self.engine.raw_connection()
        try:
            connection: Any = raw.driver_connection
            connection.execute("VACUUM")
        finally:
            raw.close()

    def _engine(self) -> Engine:
        engine = create_engine(
            URL.create("sqlite", database=str(self.path)),
            module=self._driver,
            connect_args={"timeout": self.busy_timeout_s},
            hide_parameters=True,  # the texts of cases stay out of error messages
            max_overflow=-1,  # a thread that reads never waits for another's connection
        )

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _: object) -> None:
            # Without this, the driver decides when transactions begin; see "begin" below.
            connection.isolation_level = None
            pragmas = (
                "foreign_keys = ON",
                "secure_delete = ON",
                "synchronous = FULL",
                "temp_store = MEMORY",  # words of a sort or a VACUUM go to no file of their own
            )
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # IMMEDIATE: a writer waits for its turn before it reads: what it read stays true.
            writes = connection.get_execution_options().get("precedent_writes", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine


def file_of(location: str | Path) -> Path:
    """The file that a path or a `sqlite:///` URL names.

    Raises:
        InvalidInput: not a location, or one that is not a file.
    """
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
                f"bank location: {url.get_backend_name()} is not supported; use a file, sqlite:/// "
                "or postgresql://"
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


def _error_name(error: BaseException | None) -> str:
    return str(getattr(error, "sqlite_errorname", ""))
