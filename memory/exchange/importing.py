"""Bringing a file of cases into a bank, exactly once, whatever interrupts it.

The file is read three times, a line at a time: for its sha256; to check every line; to store the
cases in batches. A batch and the note of how far the file is stored are one transaction. So a bad
line, an external id that is taken or a duplicate that is to be rejected is found before anything is
stored; and an import that was interrupted (an error, a kill, a power cut) is not noted as finished,
keeps the batches it acknowledged, and goes on after them when it is repeated. Only the external ids
of the file are held in memory, and where duplicates are rejected a digest of each case.

What was once forgotten is known by its keyed digest: such a line is reported, and left out unless
it is wanted back. Of a Parquet file, "line" means row.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, false, func, select, update

from memory.case import NewCase
from memory.errors import (
    AlreadyStored,
    BankUnavailable,
    DataError,
    DuplicateCase,
    shown,
)
from memory.exchange.import_report import ImportOptions, ImportReport, SkippedLine
from memory.exchange.jsonl import Line, read_lines
from memory.exchange.parquet import read_rows
from memory.schema import cases, forgotten, imports
from memory.storage.namespaces import changed_namespace, namespace_state
from memory.storage.rows import Place, chunks, content_key, ids_by_external_id
from memory.storage.store import Store, insert_new
from memory.storage.vectors import Prepared, Shelf
from memory.storage.writing import AddOptions, duplicate_of, place_cases

_STARTED = {"lines": 0, "finished": 0}
_CHECK_BATCH = 1000  # lines whose external ids are looked up together


def import_file(
    store: Store, shelf: Shelf, path: Path, namespace: str, format_: str, options: ImportOptions
) -> ImportReport:
    """Store the cases of a file, `jsonl` or `parquet`; see `CaseBank.import_jsonl`."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        work = _Import(store, shelf, path, file, namespace, format_, options, _digest(file))
        finished = work.noted().finished
        if finished and not options.again:
            return ImportReport(0, 0, already_imported=True)
        checked = work.check(once_more=finished)
        if finished:
            work.restart()
        stored = Counter[str]()
        done = 0
        for batch in work.batches(checked.left_out, options.batch_size):
            if options.progress is not None:
                options.progress(done, size)
            stored += work.add(batch, checked)
            done = batch[-1].end
        if _digest(file) != work.digest:
            raise work.changed()
        work.finish()
    if options.progress is not None:
        options.progress(size, size)
    dropped = len(checked.forgotten) if options.on_forgotten == "skip" else 0
    return ImportReport(
        checked.read,
        stored["added"],
        tuple(checked.skipped),
        resumed=checked.read - len(checked.skipped) - dropped - stored.total(),
        unknown_outcomes=checked.unknown_outcomes,
        updated=stored["updated"],
        merged=stored["merged"],
        forgotten=tuple(sorted(checked.forgotten)),
    )


class _Noted(NamedTuple):
    """What the bank knows of a file's content: lines stored, and whether that is all of it."""

    lines: int = 0
    finished: bool = False


@dataclass(slots=True)
class _Checked:
    """What the check of all lines found, and later what storing them did."""

    read: int = 0
    skipped: list[SkippedLine] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    unknown_outcomes: int = 0
    left_out: set[int] = field(default_factory=set)
    line_of: dict[str, int] = field(default_factory=dict)  # by external id
    alike: dict[bytes, list[_Told]] = field(default_factory=dict)  # by what is told


class _Met(NamedTuple):
    """What some lines meet in the namespace: taken external ids, duplicates by line, forgotten."""

    taken: set[str]
    duplicates: dict[int, int]
    forgotten: set[int]


class _Told(NamedTuple):
    """What decides whether two lines with the same words are one experience."""

    line: int
    outcome: float | None
    external_id: str | None


@dataclass(frozen=True, slots=True)
class _Import:
    store: Store
    shelf: Shelf
    path: Path
    file: BufferedReader
    namespace: str
    format: str
    options: ImportOptions
    digest: bytes

    def check(self, *, once_more: bool) -> _Checked:
        """Read every line and store none; `once_more` if all of them are stored already.

        Raises:
            DataError: the first bad line, unless they are skipped; or no line at all.
        """
        checked = _Checked()
        skip_bad = self.options.on_bad_line == "skip"
        for part in _parts(self._lines(), _CHECK_BATCH):
            known = self._known(part, once_more)
            for line in part:
                checked.read += 1
                if line.number in known.forgotten:
                    checked.forgotten.add(line.number)
                    if self.options.on_forgotten == "skip":
                        checked.left_out.add(line.number)
                        continue
                problem, named = line.problem, line.field
                if not problem:
                    problem, named = self._clash(line, checked, known)
                if problem and not skip_bad:
                    raise DataError(self.path, line.number, problem)
                if problem:
                    checked.skipped.append(SkippedLine(line.number, problem, named))
                    checked.left_out.add(line.number)
                elif line.case is not None:
                    checked.unknown_outcomes += line.case.outcome is None
        if checked.read == 0:
            what = "line must be one JSON object" if self.format == "jsonl" else "row is a case"
            raise DataError(self.path, 0, f"holds no cases; every {what}")
        return checked

    def restart(self) -> None:
        """Forget that the file was imported before: it is stored once more."""
        with self.store.write() as connection:
            connection.execute(update(imports).where(self._key(connection)).values(_STARTED))

    def add(self, batch: Sequence[Line], checked: _Checked) -> Counter[str]:
        """Store the cases of a batch that are not stored yet; how many were added, and so on."""
        if batch[-1].number <= self.noted().lines:
            return Counter()
        new = [line.case for line in batch if line.case is not None]
        prepared = self.shelf.prepare(self.namespace, new)
        with self.store.write() as connection:
            # Asked again now that nobody else can write: the file may be imported by another
            # process, and some of it may have been forgotten since it was checked.
            lines = self._noted(connection).lines
            rest = [i for i, line in enumerate(batch) if line.number > lines]
            if not rest:
                return Counter()
            state = changed_namespace(
                connection, self.store.keys, self.namespace, self.store.lexical
            )
            if self.options.on_forgotten == "skip":
                late = self._forgotten(connection, state.id, [batch[i] for i in rest])
                checked.forgotten |= late
                rest = [i for i in rest if batch[i].number not in late]
            try:
                stored = self._place(
                    connection,
                    Place.of(self.store, state.id, state.version),
                    [new[i] for i in rest],
                    [ready.only(rest) for ready in prepared],
                )
            except (AlreadyStored, DuplicateCase) as error:
                reason = f"{error}; it was stored by another writer while this file was imported"
                raise DataError(self.path, batch[rest[0]].number, reason) from error
            row = {"namespace_id": state.id, "file_key": self._file_key(state.id), **_STARTED}
            insert_new(connection, imports, [row])
            connection.execute(
                update(imports).where(self._key(connection)).values(lines=batch[-1].number)
            )
        return stored

    def _place(
        self,
        connection: Connection,
        place: Place,
        new: Sequence[NewCase],
        prepared: Sequence[Prepared],
    ) -> Counter[str]:
        # Nobody else writes now, so whatever gets a larger id than these is new.
        last = connection.execute(select(func.coalesce(func.max(cases.c.id), 0))).scalar_one()
        names = [case.external_id for case in new if case.external_id is not None]
        taken = ids_by_external_id(connection, place.keys, place.namespace_id, names)
        options = AddOptions(upsert=self.options.upsert, on_duplicate=self.options.on_duplicate)
        ids = place_cases(connection, self.shelf, place, self.namespace, new, prepared, options)
        updated = sum(case.external_id in taken for case in new)
        added = len({id_ for id_ in ids if id_ > last})
        return Counter(added=added, updated=updated, merged=len(ids) - added - updated)

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

    def _clash(self, line: Line, checked: _Checked, known: _Met) -> tuple[str, str]:
        """What is wrong with a good line among the others, and in which field; or nothing."""
        case = line.case
        if case is None:
            return "", ""
        name = case.external_id
        if name in checked.line_of:
            first = checked.line_of[name]
            return f"id = {shown(name)}: line {first} has it too; make it unique", "id"
        if name in known.taken and not self.options.upsert:
            return (
                f"id = {shown(name)}: a case of the namespace has it; change it or drop the line",
                "id",
            )
        if self.options.on_duplicate == "reject":
            other = self._duplicate(line.number, case, checked, known)
            if other and name not in known.taken:
                return f"is a duplicate of {other}; drop one of them, or keep or merge it", ""
        if name is not None:
            checked.line_of[name] = line.number
        return "", ""

    def _duplicate(self, number: int, case: NewCase, checked: _Checked, known: _Met) -> str:
        """The case, or the earlier line, that is the same experience (`memory.storage.writing`)."""
        if number in known.duplicates:
            return f"case {known.duplicates[number]}"
        words = json.dumps([case.query, case.plan, case.kind])
        told = _Told(number, case.outcome, case.external_id)
        others = checked.alike.setdefault(hashlib.sha256(words.encode()).digest(), [])
        for other in others:
            both = zip(told[1:], other[1:], strict=True)
            if all(None in pair or pair[0] == pair[1] for pair in both):
                return f"line {other.line}"
        others.append(told)
        return ""

    def _known(self, part: Sequence[Line], once_more: bool) -> _Met:
        """What the namespace has of lines already: ids, duplicates, forgotten cases."""
        with self.store.read() as connection:
            state = namespace_state(connection, self.store.keys, self.namespace)
            if state is None:
                return _Met(set(), {}, set())
            # What was stored by an interrupted import, or by one that runs beside this one, is
            # there by itself.
            stored = 0 if once_more else self._noted(connection).lines
            new = [
                (line.number, line.case)
                for line in part
                if line.case is not None and line.number > stored
            ]
            names = [case.external_id for _, case in new if case.external_id is not None]
            taken = ids_by_external_id(connection, self.store.keys, state.id, names)
            duplicates: dict[int, int] = {}
            if self.options.on_duplicate == "reject":
                place = Place.of(self.store, state.id, state.version)
                for number, case in new:
                    same = duplicate_of(connection, place, self.namespace, case)
                    if same is not None:
                        duplicates[number] = same.id
            return _Met(set(taken), duplicates, self._forgotten(connection, state.id, part))

    def _forgotten(
        self, connection: Connection, namespace_id: int, lines: Sequence[Line]
    ) -> set[int]:
        """The numbers of those lines whose case was forgotten in the namespace once."""
        keys = self.store.keys
        numbers: dict[bytes, list[int]] = {}
        for line in lines:
            if line.case is not None:
                key = content_key(keys, namespace_id, line.case)
                numbers.setdefault(key, []).append(line.number)
        found: set[int] = set()
        for part in chunks(list(numbers)):
            rows = connection.execute(
                select(forgotten.c.content_key).where(
                    forgotten.c.namespace_id == namespace_id, forgotten.c.content_key.in_(part)
                )
            )
            for key in rows.scalars():
                found.update(numbers[bytes(key)])
        return found

    def _noted(self, connection: Connection) -> _Noted:
        row = connection.execute(select(imports).where(self._key(connection))).one_or_none()
        return _Noted() if row is None else _Noted(row.lines, bool(row.finished))

    def _key(self, connection: Connection) -> ColumnElement[bool]:
        state = namespace_state(connection, self.store.keys, self.namespace)
        if state is None:
            return false()
        return and_(
            imports.c.namespace_id == state.id, imports.c.file_key == self._file_key(state.id)
        )

    def _file_key(self, namespace_id: int) -> bytes:
        return self.store.keys.of("file", namespace_id, self.digest.hex())

    def _lines(self) -> Iterator[Line]:
        self.file.seek(0)
        if self.format == "parquet":
            return read_rows(self.file, self.path)
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
        raise DataError(path, 0, "is not a file; name one file of cases")
    try:
        file = path.open("rb")
    except OSError as error:
        raise BankUnavailable(
            f"{path} cannot be read: {error.strerror or error}; check its permissions"
        ) from error
    with file:
        yield file
