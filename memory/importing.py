"""Bringing a file of cases into a bank, exactly once, whatever interrupts it.

The file is read three times, a line at a time: for its sha256; to check every line; to store the
cases in batches. A batch and the note of how far the file is stored are one transaction. So a bad
line, or an external id that is taken, is found before anything is stored; and an import that was
interrupted (an error, a kill, a power cut) is not noted as finished, keeps the batches it
acknowledged, and goes on after them when it is repeated. Only the external ids of the file are held
in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, and_, select, update

from memory.errors import AlreadyStored, BankUnavailable, DataError, shown
from memory.jsonl import Line, read_lines
from memory.rows import (
    changed_namespace,
    existing_external_ids,
    insert_cases,
    namespace_state,
)
from memory.schema import imports
from memory.store import Store, insert_new
from memory.vectors import Shelf

#: Called with how many of how many bytes of the file are stored.
ByteProgress: TypeAlias = Callable[[int, int], None]

_STARTED = {"lines": 0, "finished": 0}
_CHECK_BATCH = 1000  # lines whose external ids are looked up together


class SkippedLine(NamedTuple):
    """A bad line: its number from 1, what is wrong, and in which field.

    `reason` quotes the line. `field` does not: it is one of the format's own names, or "" where no
    such field is to blame; where what was stored must stay private, log this one.
    """

    line: int
    reason: str
    field: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of a file.

    `read` counts the lines that are not blank; each is in `added`, in `resumed` (stored by another
    import of the same file: one that was interrupted, or one that ran beside this one) or in
    `skipped`. `unknown_outcomes` counts the good lines whose outcome is
    not known, such as Memento's label "unknown". `already_imported`: the same content had been
    imported before, so nothing was read or added.
    """

    read: int
    added: int
    skipped: tuple[SkippedLine, ...] = ()
    already_imported: bool = False
    resumed: int = 0
    unknown_outcomes: int = 0


def import_file(
    store: Store,
    shelf: Shelf,
    path: Path,
    namespace: str,
    *,
    skip_bad: bool,
    again: bool,
    progress: ByteProgress | None,
    batch_size: int,
) -> ImportReport:
    """Store the cases of a file; see `CaseBank.import_jsonl`."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        work = _Import(store, shelf, path, file, namespace, _digest(file))
        finished = work.noted().finished
        if finished and not again:
            return ImportReport(0, 0, already_imported=True)
        checked = work.check(skip_bad, once_more=finished)
        if finished:
            work.restart()
        added = 0
        done = 0
        for batch in work.batches({bad.line for bad in checked.skipped}, batch_size):
            if progress is not None:
                progress(done, size)
            added += work.add(batch)
            done = batch[-1].end
        if _digest(file) != work.digest:
            raise work.changed()
        work.finish()
    if progress is not None:
        progress(size, size)
    return ImportReport(
        checked.read,
        added,
        tuple(checked.skipped),
        resumed=checked.read - len(checked.skipped) - added,
        unknown_outcomes=checked.unknown_outcomes,
    )


class _Noted(NamedTuple):
    """What the bank knows of a file's content: lines stored, and whether that is all of it."""

    lines: int = 0
    finished: bool = False


@dataclass(slots=True)
class _Checked:
    read: int
    skipped: list[SkippedLine]
    unknown_outcomes: int


@dataclass(frozen=True, slots=True)
class _Import:
    store: Store
    shelf: Shelf
    path: Path
    file: BufferedReader
    namespace: str
    digest: bytes

    def check(self, skip_bad: bool, *, once_more: bool) -> _Checked:
        """Read every line and store none; `once_more` if all of them are stored already.

        Raises:
            DataError: the first bad line, unless they are skipped; or no line at all.
        """
        checked = _Checked(0, [], 0)
        line_of: dict[str, int] = {}  # by external id
        for part in _parts(self._lines(), _CHECK_BATCH):
            taken = self._taken(part, once_more)
            for line in part:
                checked.read += 1
                problem = line.problem or self._clash(line, line_of, taken)
                if problem and not skip_bad:
                    raise DataError(self.path, line.number, problem)
                if problem:
                    field = line.field if line.problem else "id"
                    checked.skipped.append(SkippedLine(line.number, problem, field))
                elif line.case is not None:
                    checked.unknown_outcomes += line.case.outcome is None
        if checked.read == 0:
            raise DataError(self.path, 0, "holds no cases; every line must be one JSON object")
        return checked

    def restart(self) -> None:
        """Forget that the file was imported before: it is stored once more."""
        with self.store.write() as connection:
            connection.execute(update(imports).where(self._key(connection)).values(_STARTED))

    def add(self, batch: Sequence[Line]) -> int:
        """Store the cases of a batch that are not stored yet; how many they were."""
        if batch[-1].number <= self.noted().lines:
            return 0
        new = [line.case for line in batch if line.case is not None]
        prepared = self.shelf.prepare(self.namespace, new)
        with self.store.write() as connection:
            # Asked again now that nobody else can write: the file may be imported by another
            # process.
            lines = self._noted(connection).lines
            start = sum(line.number <= lines for line in batch)
            if start == len(batch):
                return 0
            namespace_id = changed_namespace(connection, self.namespace)
            try:
                ids = insert_cases(connection, namespace_id, new[start:])
            except AlreadyStored as error:
                reason = f"{error}; it was stored by another writer while this file was imported"
                raise DataError(self.path, batch[start].number, reason) from error
            self.shelf.attach(connection, namespace_id, ids, [p.tail(start) for p in prepared])
            insert_new(
                connection,
                imports,
                [{"namespace_id": namespace_id, "sha256": self.digest, **_STARTED}],
            )
            connection.execute(
                update(imports).where(self._key(connection)).values(lines=batch[-1].number)
            )
        return len(ids)

    def finish(self) -> None:
        """Note that all of the file is stored."""
        with self.store.write() as connection:
            connection.execute(update(imports).where(self._key(connection)).values(finished=1))

    def batches(self, bad: set[int], size: int) -> Iterator[list[Line]]:
        """The good lines, `size` at a time."""
        for batch in _parts((line for line in self._lines() if line.number not in bad), size):
            if any(line.case is None for line in batch):
                raise self.changed()
            yield batch

    def noted(self) -> _Noted:
        with self.store.read() as connection:
            return self._noted(connection)

    def changed(self) -> DataError:
        return DataError(
            self.path, 0, "changed while it was imported; batches before that are stored"
        )

    def _clash(self, line: Line, line_of: dict[str, int], taken: set[str]) -> str:
        """What is wrong with the external id of a line among the others, or nothing."""
        name = None if line.case is None else line.case.external_id
        if name is None:
            return ""
        if name in line_of:
            return f"id = {shown(name)}: line {line_of[name]} has it too; make it unique"
        if name in taken:
            return f"id = {shown(name)}: a case of the namespace has it; change it or drop the line"
        line_of[name] = line.number
        return ""

    def _taken(self, part: Sequence[Line], once_more: bool) -> set[str]:
        """External ids of the lines that other cases of the namespace have."""
        with self.store.read() as connection:
            state = namespace_state(connection, self.namespace)
            if state is None:
                return set()
            # The ids of lines stored by an interrupted import, or by one that runs beside this one,
            # are taken by themselves.
            stored = 0 if once_more else self._noted(connection).lines
            new = [line.case for line in part if line.case is not None and line.number > stored]
            ids = [case.external_id for case in new if case.external_id is not None]
            return existing_external_ids(connection, state.id, ids)

    def _noted(self, connection: Connection) -> _Noted:
        row = connection.execute(select(imports).where(self._key(connection))).one_or_none()
        return _Noted() if row is None else _Noted(row.lines, bool(row.finished))

    def _key(self, connection: Connection) -> ColumnElement[bool]:
        state = namespace_state(connection, self.namespace)
        return and_(
            imports.c.namespace_id == (None if state is None else state.id),
            imports.c.sha256 == self.digest,
        )

    def _lines(self) -> Iterator[Line]:
        self.file.seek(0)
        return read_lines(self.file)


def _parts(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    while part := list(islice(lines, size)):
        yield part


def _digest(file: BufferedReader) -> bytes:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    if not path.exists():
        raise DataError(path, 0, "there is no such file; check the path")
    if not path.is_file():
        raise DataError(path, 0, "is not a file; name one .jsonl file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be read: {error.strerror or error}; check its permissions"
        ) from error
    with file:
        yield file
