"""Restore: a backup in a bank's place, and everything forgotten since forgotten again.

A backup holds what was not forgotten when it was made. The receipts that the bank in its place
still has, or a file of receipts that was exported, name what to delete by id and by keyed digest.
The bank in place tells more: which runs are gone, which words were overwritten, which exports
exist, which requests wait. Nothing that was given out since is given out again, neither an id nor
the number of a change; where the bank is lost, nobody knows them, and a wide gap is left.

The work is done on a copy, the old bank locked meanwhile, and takes its place at once: by a rename,
or in one transaction of a server. A crash before that leaves the old bank.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select, update

from memory.arrays.snapshot import Snapshots
from memory.backups.backup import Told, beside, only_file, read_receipts
from memory.backups.copying import Progress, copy_bank
from memory.backups.since import Since, forget_since, since_backup
from memory.config import BankConfig
from memory.drafts import sync_folder
from memory.errors import BankBusy, BankUnavailable, ForeignBank, InvalidInput
from memory.schema import cases, namespaces, receipts
from memory.storage.database.sqlite import file_of
from memory.storage.erasing import erase, owe
from memory.storage.store import Store, is_postgres

_MAGIC = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did.

    `cases` are in the bank now; `forgotten` were in the backup and were forgotten again, under
    `receipts` receipts that are newer than the backup. `updates` have the words that an update
    gave them since, for what those replaced may have been forgotten.
    """

    cases: int
    forgotten: int
    receipts: int
    updates: int = 0


def restore(
    path: Path,
    location: str | Path,
    *,
    config: BankConfig,
    receipts_file: Path | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Put a backup in a bank's place and forget again what was forgotten since it was made.

    Args:
        path: the backup.
        location: where the bank is, or is to be. One that is there must be the same bank (a backup
            of it), must be open nowhere, and is replaced.
        config: times and sizes.
        receipts_file: receipts that were exported, for where the bank itself is lost.
        progress: called with how many of how many rows are copied to a server.

    Raises:
        ForeignBank: the backup is no bank or is damaged; another bank, or one that cannot be read,
            is at the location.
        BankBusy: the bank is open elsewhere.
    """
    path = path.absolute()
    _check_backup(path)
    told = [] if receipts_file is None else read_receipts(receipts_file)
    try:
        if is_postgres(location):
            return _onto_server(path, str(location), config, told, progress)
        return _onto_file(path, file_of(location), config, told)
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be restored: {error.strerror or error}; the bank is as it was: check "
            "space and permissions"
        ) from error


def _onto_file(path: Path, target: Path, config: BankConfig, told: Sequence[Told]) -> RestoreReport:
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{target.name}.restore-*"):
        left.unlink()  # of a restore that was killed: it holds what may be forgotten by now
    # Beside the file, so that a rename replaces it, under a name that `verify` looks into.
    work = target.with_name(f"{target.name}.restore-{uuid.uuid4().hex}")
    try:
        with _copy(path, work, config) as source:
            if target.exists() and target.stat().st_size:
                with _present(target, config) as present, present.write() as connection:
                    report = _settled(source, since_backup(present, connection, source), told)
                    names = _names(connection)
                _check_closed(target)
            else:
                report, names = _settled(source, None, told), set()
            with source.read() as connection:
                names |= _names(connection)
            snapshots = _snapshots(target, config, source)
        only_file(work)
        shutil.copymode(target if target.exists() else path, work)
        for left in beside(target):
            left.unlink(missing_ok=True)
        work.replace(target)
        sync_folder(target.parent)
    finally:
        for left in (work, *beside(work)):
            left.unlink(missing_ok=True)
    _drop_snapshots(snapshots, names)
    return report


def _onto_server(
    path: Path,
    location: str,
    config: BankConfig,
    told: Sequence[Told],
    progress: Progress | None,
) -> RestoreReport:
    with (
        tempfile.TemporaryDirectory(prefix="precedent-restore-") as folder,
        _copy(path, Path(folder) / "bank.db", config) as source,
        _present(location, config) as target,
    ):
        with target.write() as connection:  # nobody forgets anything between here and the end
            since = since_backup(target, connection, source)
            names = _names(connection)
            report = _settled(source, since, told)
            waits = receipts.c.erased == "pending"
            waiting = list(connection.execute(select(receipts.c.uid).where(waits)).scalars())
            with source.read() as origin:
                names |= _names(origin)
                copy_bank(origin, connection, source.lexical, progress)
            # The server still holds the bytes of what it deleted, now of the whole old bank.
            for uid in waiting:
                again = update(receipts).where(receipts.c.uid == uid)
                connection.execute(again.values(erased="pending"))
            owe(connection)
        _drop_snapshots(_snapshots(None, config, source), names)
    return report


def _settled(source: Store, since: Since | None, told: Sequence[Told]) -> RestoreReport:
    """Bring the copy of a backup forward to what may be told today."""
    with source.write() as connection:
        done = forget_since(source, connection, since, told)
        count = int(connection.execute(select(func.count()).select_from(cases)).scalar_one())
        owe(connection)
    # Deep where rows of words were deleted one by one: see `memory.storage.wiping`.
    if not erase(source, source.config.erase_timeout_s, deep=done.forgotten > 0).done:
        raise BankUnavailable("what was forgotten since could not be erased from the copy")
    return RestoreReport(count, done.forgotten, done.receipts, done.updates)


def _check_backup(path: Path) -> None:
    if not path.is_file():
        raise InvalidInput(f"{path} is no file; name a backup")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be read: {error.strerror or error}; check its permissions"
        ) from error
    if head != _MAGIC:
        raise ForeignBank(f"{path} is no backup of a bank; name a file that `backup` wrote")
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise InvalidInput(
            f"{path} is a bank in use ({log.name} belongs to it), not a backup; make one with "
            "`backup`"
        )


@contextmanager
def _copy(path: Path, work: Path, config: BankConfig) -> Iterator[Store]:
    """A copy, opened: opening a bank changes its file, an older one even more."""
    work.touch(mode=0o600, exist_ok=False)  # it holds every word and the bank's secret
    shutil.copyfile(path, work)
    try:
        source = Store.open(work, config)
        try:
            with source.database.translated():
                _check_sound(source)
        except BaseException:
            source.close()
            raise
    except BankUnavailable as error:
        raise type(error)(str(error).replace(str(work), str(path))) from error
    try:
        yield source
    finally:
        source.close()


def _check_sound(source: Store) -> None:
    with source.read() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if found != "ok" or dangling is not None:
        raise ForeignBank(f"{source.path} is damaged; restore an older backup")


@contextmanager
def _present(location: str | Path, config: BankConfig) -> Iterator[Store]:
    """The bank that is to be replaced."""
    try:
        present = Store.open(location, config)
    except ForeignBank as error:
        raise ForeignBank(
            f"{error}; what it forgot since the backup cannot be read either: move it away, and "
            "restore with a file of its receipts if there is one"
        ) from error
    try:
        yield present
    finally:
        present.close()


def _check_closed(target: Path) -> None:
    """SQLite takes the log away when the last one closes the bank."""
    if target.with_name(target.name + "-wal").exists():
        raise BankBusy(f"{target} is open elsewhere; nothing was restored: close it first")


def _names(connection: Connection) -> set[str]:
    return set(connection.execute(select(namespaces.c.name)).scalars())


def _snapshots(target: Path | None, config: BankConfig, source: Store) -> Snapshots | None:
    """Where the arrays of the bank are kept between runs, if on this machine."""
    if config.snapshot_folder is not None:
        folder = Path(config.snapshot_folder).expanduser().absolute()
    elif target is not None:
        folder = target.with_name(target.name + ".snapshots")
    else:
        return None
    return Snapshots(folder, lambda name: source.keys.of("snapshot", 0, name).hex())


def _drop_snapshots(snapshots: Snapshots | None, names: set[str]) -> None:
    """They hold the arrays of the bank that was replaced."""
    if snapshots is not None:
        for name in sorted(names):
            snapshots.delete(name)
