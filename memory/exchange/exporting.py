"""Files written from a bank: whole or not at all, one snapshot, and known to every later purge.

Before a file is begun, its path is noted in the bank; before it takes its name, nothing may have
been forgotten since its snapshot, or it is written again. So whatever is forgotten, and whenever, a
purge finds each file of ours that may hold it, and rewrites it (`purge_exports`). Copies that
somebody made of such a file are out of reach.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeVar

from sqlalchemy import Connection, delete, func, insert, select

from memory.case import Case, NewCase
from memory.drafts import draft_of, drafts_left, sync_folder
from memory.errors import BankBusy, BankError, BankUnavailable, InvalidInput, NotFound
from memory.exchange import parquet
from memory.exchange.jsonl import case_of, encoded, parse_json
from memory.filters import CaseFilter
from memory.schema import cases, exports, receipts, removals
from memory.sinks import Gone
from memory.storage.bytescan import is_sqlite
from memory.storage.namespaces import NamespaceState, namespace_state
from memory.storage.rows import cases_where, count_where, spoken
from memory.storage.store import Store
from memory.text.matching import holds, near_verbatim
from memory.times import now

log = logging.getLogger(__name__)

FORMATS = ("jsonl", "parquet", "outcome_log")

#: Files that SQLite, or a bank, keeps beside a database.
_BESIDE = ("-wal", "-shm", "-journal", ".snapshots")
#: Called with how many of how many cases are written.
RowProgress: TypeAlias = Callable[[int, int], None]

_PAGE = 1000  # cases held in memory; of a Parquet file, a row group
_ATTEMPTS = 5  # at a file while others keep forgetting

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written; `invalidated` cases, kept only for history, were left out."""

    path: Path
    format: str
    written: int
    invalidated: int = 0


def export_cases(
    store: Store,
    path: Path,
    namespace: str,
    format_: str,
    where: CaseFilter | None = None,
    progress: RowProgress | None = None,
) -> ExportReport:
    """Write the live cases of a namespace by id; see `CaseBank.export_jsonl`."""
    wanted = where or CaseFilter()
    if wanted.invalidated:
        # Neither format can say so, and whoever imported the file would bring them back to life.
        raise InvalidInput("where.invalidated: an export holds live cases only; leave it out")
    if format_ == "parquet":
        parquet.library()  # before anything is noted

    def write(connection: Connection, state: NamespaceState, file: BinaryIO) -> tuple[int, int]:
        if count_where(connection, CaseFilter().condition(store.keys, state.id)) == 0:
            raise _nothing(namespace)
        condition = wanted.condition(store.keys, state.id)
        total = count_where(connection, condition)

        def pages() -> Iterator[Sequence[Case]]:
            after = done = 0
            if progress is not None:
                progress(done, total)
            while page := cases_where(connection, condition, namespace, after, _PAGE):
                yield page
                after = page[-1].id
                done += len(page)
                if progress is not None:
                    progress(done, total)

        written = 0
        if format_ == "parquet":
            written = parquet.write_cases(file, pages())
        else:
            for page in pages():
                file.writelines(encoded(case.to_json()) for case in page)
                written += len(page)
        history = replace(wanted, invalidated=True).condition(store.keys, state.id)
        old = count_where(connection, history & cases.c.invalidated_at.is_not(None))
        return written, old

    written, old = publish(store, path, namespace, format_, write)
    return ExportReport(path.absolute(), format_, written, old)


def publish(
    store: Store,
    path: Path,
    namespace: str,
    format_: str,
    write: Callable[[Connection, NamespaceState, BinaryIO], T],
) -> T:
    """Have a file written from one snapshot of a namespace, and give it its name once it is whole.

    Args:
        store: the bank.
        path: the file; an older one is replaced.
        namespace: where the words come from.
        format_: one of `FORMATS`.
        write: called with a transaction that reads, the namespace, and the file; called again, on a
            new file, if something was forgotten while it wrote.

    Raises:
        NotFound: no such namespace.
        BankUnavailable: the file cannot be written.
        BankBusy: something was forgotten each time it was written.
    """
    path = refuse_database(path.absolute())
    note = _note(store, path, namespace, format_)
    renamed = False
    try:
        for _ in range(_ATTEMPTS):
            with draft_of(path) as draft:
                with store.read() as connection:
                    state = _known(connection, store, namespace)
                    seen = _forgotten_so_far(connection, state.id)
                    with draft.open("xb") as file:
                        made = write(connection, state, file)
                        file.flush()
                        os.fsync(file.fileno())
                with store.write() as connection:
                    # Without a draft, a purge that came to nothing took it away.
                    if _forgotten_so_far(connection, state.id) != seen or not draft.exists():
                        continue
                    draft.replace(path)
                    renamed = True
                    sync_folder(path.parent)
                    # What the file held before, of whichever namespace, is no longer in it.
                    before = (exports.c.path == str(path)) & (exports.c.id != note)
                    connection.execute(delete(exports).where(before))
                return made
        raise BankBusy(
            f"cases of namespace {namespace!r} were forgotten each of {_ATTEMPTS} times that "
            f"{path} was written; it was left as it was: try again"
        )
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be written: {error.strerror or error}; check space and permissions"
        ) from error
    finally:
        if not renamed:
            _withdraw(store, note)


def exports_of(connection: Connection, namespace_id: int) -> list[tuple[Path, str]]:
    """The files that were written from a namespace, as far as we know, with their formats."""
    rows = connection.execute(
        select(exports.c.path, exports.c.format)
        .where(exports.c.namespace_id == namespace_id)
        .distinct()
        .order_by(exports.c.path, exports.c.format)
    )
    return [(Path(row.path), row.format) for row in rows]


@dataclass(frozen=True, slots=True)
class ExportedRow:
    """A row of a file that was exported, maybe changed by hand since.

    Attributes:
        texts: every text in it; the line as it is where it is no JSON object.
        case: the case it holds, where it holds one.
        case_id: the case's id, in an outcome log.
        asked: the query of the run, in an outcome log.
    """

    texts: tuple[str, ...]
    case: NewCase | None = None
    case_id: int | None = None
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class PurgedFile:
    """What became of a file: `rows` went from it; `gone`: it is not there; else why it failed."""

    path: Path
    rows: int = 0
    gone: bool = False
    unreached: str = ""


def purge_exports(connection: Connection, namespace_id: int, gone: Gone) -> tuple[int, list[str]]:
    """Rewrite every file exported from a namespace without what is forgotten.

    Returns:
        How many rows went, and the paths of files that could not be reached.
    """
    drop = _goes(gone)
    rows = 0
    missed: list[str] = []
    for path, format_ in exports_of(connection, namespace_id):
        purged = purge_export(path, format_, drop)
        rows += purged.rows
        if purged.unreached:
            log.warning("%s was not reached: %s", path, purged.unreached)
            missed.append(str(path))
    return rows, missed


def purge_export(path: Path, format_: str, drop: Callable[[ExportedRow], bool]) -> PurgedFile:
    """Rewrite an exported file without some rows, atomically, the others unchanged.

    Drafts that a crash left beside it are removed. A file without such a row is not touched.
    """
    try:
        real = path.resolve(strict=True)  # if it became a link, what it leads to holds the words
        if not real.is_file():
            return PurgedFile(path, gone=True)
        for left in drafts_left(real):
            left.unlink(missing_ok=True)
        return PurgedFile(path, rows=_rewrite(real, format_, drop))
    except (FileNotFoundError, NotADirectoryError):
        with suppress(OSError):
            for left in drafts_left(path):
                left.unlink(missing_ok=True)
        return PurgedFile(path, gone=True)
    except (OSError, RuntimeError) as error:  # the latter: a link that leads to itself
        reason = getattr(error, "strerror", None) or type(error).__name__
        return PurgedFile(path, unreached=str(reason))
    except BankError as error:
        # Its message might quote what is to be forgotten.
        return PurgedFile(path, unreached=type(error).__name__)


def rows_holding(path: Path, format_: str, holds_it: Callable[[str], bool]) -> int:
    """How many rows of an exported file hold what a test says, in any of their texts.

    Raises:
        BankError: a Parquet file that cannot be read.
        OSError: a file that cannot be read.
    """
    found = 0

    def look(row: ExportedRow) -> bool:
        nonlocal found
        found += any(map(holds_it, row.texts))
        return True  # of the copy that reading Parquet makes, nothing is kept

    with path.open("rb") as source:
        if format_ == "parquet":
            parquet.copy_rows(
                source, BytesIO(), lambda case, cells: look(ExportedRow(tuple(_texts(cells)), case))
            )
        else:
            for raw in source:
                if raw.strip():
                    look(_row_of(raw, format_))
    return found


def refuse_database(path: Path) -> Path:
    """The path, if no database may be lost by writing a file there.

    Raises:
        InvalidInput: a SQLite file is there (a bank, a backup), or it is the name of a file that
            SQLite or a bank keeps beside one.
    """
    beside = next((s for s in _BESIDE if path.name.endswith(s)), None)
    owner = None if beside is None else path.with_name(path.name.removesuffix(beside))
    # Its size and first bytes are asked of the file system and of SQLite's own header, in another
    # process: a handle of ours would drop the locks of a bank that is open here.
    if (owner is not None and owner.exists()) or (path.is_file() and is_sqlite(path)):
        raise InvalidInput(
            f"{path} is a database, or belongs to one; an export never replaces it: name another "
            "file"
        )
    return path


def _nothing(namespace: str) -> NotFound:
    return NotFound(f"namespace {namespace!r} has no cases to export; check its name")


def _known(connection: Connection, store: Store, namespace: str) -> NamespaceState:
    state = namespace_state(connection, store.keys, namespace)
    if state is None:
        raise _nothing(namespace)
    return state


def _note(store: Store, path: Path, namespace: str, format_: str) -> int:
    """Write down that a file may hold words of a namespace; the note's id."""
    with store.read() as connection:
        _known(connection, store, namespace)  # no writer waits for a misspelt name
    with store.write() as connection:
        row = {
            "namespace_id": _known(connection, store, namespace).id,
            "path": str(path),
            "format": format_,
            "created_at": now(),
        }
        return int(connection.execute(insert(exports).returning(exports.c.id), [row]).scalar_one())


def _withdraw(store: Store, note: int) -> None:
    # Where even this fails, a note of a file that is not there does no harm.
    with suppress(BankError), store.write() as connection:
        connection.execute(delete(exports).where(exports.c.id == note))


def _forgotten_so_far(connection: Connection, namespace_id: int) -> tuple[int, int]:
    """Raised by everything that takes words of a namespace away."""
    newest = connection.execute(
        select(func.coalesce(func.max(receipts.c.id), 0)).where(
            receipts.c.namespace_id == namespace_id
        )
    )
    last = connection.execute(
        select(func.coalesce(func.max(removals.c.seq), 0)).where(
            removals.c.namespace_id == namespace_id
        )
    )
    return int(newest.scalar_one()), int(last.scalar_one())


def _goes(gone: Gone) -> Callable[[ExportedRow], bool]:
    """Whether a row holds what is forgotten. A live case that only asks the same does not."""
    if not gone.cases and not gone.strings:  # a whole namespace
        return lambda row: any(map(gone.holds, row.texts))
    ids = {case.id for case in gone.cases}
    names = {case.external_id for case in gone.cases} - {None}
    said = [spoken(case) for case in gone.cases]

    def goes(row: ExportedRow) -> bool:
        if row.case is None:
            return row.case_id in ids or any(map(gone.holds, row.texts))
        if row.case_id in ids or row.case.external_id in names:
            return True
        if row.asked is not None and gone.holds(row.asked):
            return True
        words = spoken(row.case)
        return any(near_verbatim(words, other) for other in said) or any(
            holds(text, string) for string in gone.strings for text in row.texts
        )

    return goes


def _rewrite(path: Path, format_: str, drop: Callable[[ExportedRow], bool]) -> int:
    with draft_of(path) as draft:
        with path.open("rb") as source, draft.open("xb") as target:
            if format_ == "parquet":
                rows = parquet.copy_rows(
                    source,
                    target,
                    lambda case, cells: drop(ExportedRow(tuple(_texts(cells)), case)),
                )
            else:
                rows = 0
                for raw in source:
                    if raw.strip() and drop(_row_of(raw, format_)):
                        rows += 1
                    else:
                        target.write(raw)
            target.flush()
            os.fsync(target.fileno())
        if rows:
            shutil.copymode(path, draft)
            draft.replace(path)
            sync_folder(path.parent)
    return rows


def _row_of(raw: bytes, format_: str) -> ExportedRow:
    words = raw.decode(errors="replace")
    try:
        row = parse_json(words)
    except InvalidInput:
        return ExportedRow((words,))
    texts = tuple(_texts(row))
    case, case_id, asked = None, None, None
    with suppress(InvalidInput):
        if format_ == "outcome_log" and isinstance(row, dict):
            case_id, asked = row.get("case_id"), row.get("query")
            case = NewCase(row["case"], plan=row.get("plan")) if "case" in row else None
        else:
            case = case_of(row)
    return ExportedRow(
        texts,
        case,
        case_id if isinstance(case_id, int) else None,
        asked if isinstance(asked, str) else None,
    )


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, keys and numbers too: a number may be somebody's."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield str(value)
