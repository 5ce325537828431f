"""Backup: a whole bank as one SQLite file, whichever engine it lives in; and its receipts alone.

A backup is one snapshot of every table, ids, secret and receipts included, so that it can be
restored into SQLite or PostgreSQL alike (`memory.backups.restoring`). It holds what was not
forgotten when it was made, and no later purge reaches it: keep backups no longer than what is
forgotten may live.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, select

from memory.backups.copying import Progress, copy_bank
from memory.drafts import draft_of, sync_folder
from memory.errors import BankUnavailable, DataError, InvalidInput
from memory.exchange.exporting import refuse_database
from memory.forgetting.receipts import Receipt, load_receipts, receipt_from_json
from memory.schema import cases, meta, receipts
from memory.storage.database.sqlite import SqliteDatabase
from memory.storage.erasing import JOB, OWED
from memory.storage.store import Store


class Told(NamedTuple):
    """A receipt outside of its bank: the bank's uid, and the namespace's id there, None if gone."""

    bank: str
    namespace_id: int | None
    receipt: Receipt


def backup(store: Store, path: Path, *, progress: Progress | None = None) -> int:
    """Write the whole bank to a new file; how many cases it holds.

    Raises:
        InvalidInput: there is something at `path` already.
        BankUnavailable: it cannot be written.
    """
    path = path.absolute()
    if path.exists() or path.is_symlink():
        raise InvalidInput(f"{path} exists already; a backup never overwrites: name another file")
    try:
        with draft_of(path) as part:
            try:
                count = _written(store, part, progress)
                part.replace(path)
            finally:
                for left in beside(part):
                    left.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be written: {error.strerror or error}; check space and permissions"
        ) from error
    return count


def write_receipts(store: Store, path: Path) -> int:
    """Write every receipt as a line of JSON, for `restore`; how many there are. No words in it.

    Raises:
        BankUnavailable: it cannot be written.
    """
    path = refuse_database(path.absolute())
    with store.read() as connection:
        found = receipts_of(store, connection)
    try:
        with draft_of(path) as part:
            with part.open("x", encoding="utf-8") as file:
                for bank, namespace_id, receipt in found:
                    row = {"bank": bank, "namespace_id": namespace_id, **receipt.to_json()}
                    file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be written: {error.strerror or error}; check space and permissions"
        ) from error
    return len(found)


def read_receipts(path: Path) -> list[Told]:
    """The receipts of a file that `write_receipts` made.

    Raises:
        DataError: a line that is no receipt, or no such file.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}; name a file of exported receipts"
        raise DataError(path, 0, reason) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_told(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"is no receipt ({type(error).__name__}); export the receipts again"
            raise DataError(path, number, reason) from error
    return found


def receipts_of(store: Store, connection: Connection) -> list[Told]:
    """Every receipt of a bank, the oldest first."""
    rows = connection.execute(select(receipts.c.id, receipts.c.namespace_id))
    owners = {row.id: row.namespace_id for row in rows}
    loaded = load_receipts(connection, store.keys, None, limit=2**31)
    return [Told(store.uid, owners[number], receipt) for number, receipt in loaded]


def beside(path: Path) -> list[Path]:
    """What SQLite may keep beside a database file."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]


def only_file(path: Path) -> None:
    """Make a closed database one durable file: its log is empty and can go."""
    for left in beside(path):
        if left.exists() and left.stat().st_size and not left.name.endswith("-shm"):
            raise BankUnavailable(f"{path} was not checkpointed; its log {left.name} is not empty")
        left.unlink(missing_ok=True)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _written(store: Store, part: Path, progress: Progress | None) -> int:
    part.touch(mode=0o600, exist_ok=False)  # it will hold every word and the bank's secret
    if isinstance(store.database, SqliteDatabase):
        _vacuumed(store, store.database, part)
    target = Store(SqliteDatabase.at(part, store.config.busy_timeout_s), store.config)
    try:
        if store.path is None:
            with store.read() as source, target.write() as connection:
                copy_bank(source, connection, store.lexical, progress)
        with target.write() as connection:
            # About the bank's own bytes; there are none of anything deleted in a new file.
            connection.execute(delete(meta).where(meta.c.key.in_((OWED, JOB))))
            count = int(connection.execute(select(func.count()).select_from(cases)).scalar_one())
        target.database.erase(store.config.busy_timeout_s)
    finally:
        target.close()
    only_file(part)
    if store.path is not None:
        shutil.copymode(store.path, part)
        if progress is not None:
            progress(count, count)
    return count


def _vacuumed(store: Store, database: SqliteDatabase, part: Path) -> None:
    """One snapshot of the file, without its free pages: at the speed of the disk."""
    with store.read():
        pass  # a bank that was closed says so
    with database.translated():
        raw = database.engine.raw_connection()
        try:
            connection: Any = raw.driver_connection
            connection.execute("VACUUM INTO ?", (str(part),))
        finally:
            raw.close()


def _told(row: dict[str, Any]) -> Told:
    given = dict(row)
    bank, namespace_id = given.pop("bank"), given.pop("namespace_id")
    receipt = receipt_from_json(given)
    whole = [*receipt.ids, *([] if namespace_id is None else [namespace_id])]
    if not isinstance(bank, str) or any(type(number) is not int for number in whole):
        raise TypeError("ids are integers")
    for digest in receipt.digests:
        bytes.fromhex(digest)
    return Told(bank, namespace_id, receipt)
