"""Files as numbered rows of fields, each line checked before anything else sees it.

A line that cannot be read is yielded as a `BadRow` in its place, so the reader after it decides
whether to stop or to count; nothing is dropped here. What the fields mean is `row_form`'s business.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from retriever.errors import DataError

#: The kinds of file that are read, by suffix.
KINDS: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}

#: CSV has no types: a cell of these columns becomes a number where it is written as one.
NUMBER_COLUMNS = frozenset(
    ("truth_label", "outcome", "case_outcome", "rank", "score", "propensity", "teacher_score")
)

_BOM = b"\xef\xbb\xbf"
_BLANK = " \t\r\n"


class BadRow(Exception):
    """A row that cannot be used: `reason` to count by, `message` to show without its place."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


#: Called with (bytes read, bytes in all) of one file.
BytesRead: TypeAlias = Callable[[int, int], None]
NumberedRow: TypeAlias = tuple[int, Mapping[str, Any] | BadRow]


def numbered_rows(path: Path, kind: str, progress: BytesRead) -> Iterator[NumberedRow]:
    """(line, fields or what is wrong) of every row; blank lines are no rows.

    The line is where the row begins; for Parquet it is the number of the row, from 1.

    Raises:
        DataError: the file as a whole is empty or unreadable, or a CSV header is wrong.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; write rows into it or leave it out")
    if kind == "parquet":
        yield from _parquet_rows(path, progress)
        return
    with path.open("rb") as file:
        lines = _Lines(file, path.stat().st_size, progress)
        yield from _csv_rows(path, lines) if kind == "csv" else _jsonl_rows(lines)


class _Lines:
    """The lines of a file as text; one that is not UTF-8 raises `BadRow`, and reading can go on."""

    def __init__(self, file: BinaryIO, size: int, progress: BytesRead) -> None:
        self.number = 0
        self._file = file
        self._size = size
        self._done = 0
        self._progress = progress

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        raw = self._file.readline()
        if not raw:
            self._progress(self._size, self._size)
            raise StopIteration
        self.number += 1
        self._done += len(raw)
        if self.number % 1000 == 0:
            self._progress(self._done, self._size)
        if self.number == 1:
            raw = raw.removeprefix(_BOM)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRow(
                "bad UTF-8",
                f"byte {error.start + 1} of the line ({error.object[error.start]:#04x}) is not "
                "UTF-8; save the file as UTF-8",
            ) from error


def _jsonl_rows(lines: _Lines) -> Iterator[NumberedRow]:
    while True:
        try:
            text = next(lines).strip(_BLANK)
            if text:
                yield lines.number, json_object(text)
        except StopIteration:
            return
        except BadRow as bad:
            yield lines.number, bad


def json_object(text: str) -> dict[str, Any]:
    """The object that a line of JSON holds; NaN, infinity and a repeated key are refused."""
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise BadRow("bad JSON", "the JSON is nested too deeply; flatten it") from error
    except ValueError as error:
        # Also what Python says of an integer with more than 4300 digits.
        what = str(error)
        if isinstance(error, json.JSONDecodeError):
            what = f"{error.msg} at column {error.colno}"
        remedy = "write one object a line"
        raise BadRow("bad JSON", f"not one JSON value: {what}; {remedy}") from error
    if not isinstance(value, dict):
        raise BadRow(
            "not an object",
            f"expected one JSON object a line, got {json_type(value)}: {shown(value)}",
        )
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                what = f"key {key!r} occurs twice in one object; keep one of them"
                raise BadRow("duplicate key", what)
            seen.add(key)
    return fields


def _constant(name: str) -> float:
    raise BadRow("not a finite number", f"{name} is no JSON number; leave the field out if unknown")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _csv_rows(path: Path, lines: _Lines) -> Iterator[NumberedRow]:
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        start = lines.number + 1
        try:
            cells = next(reader)
            if not "".join(cells).strip():
                continue
            if header is None:
                header = _header(path, start, cells)
            else:
                yield start, _fields(header, cells)
        except StopIteration:
            break
        except (BadRow, csv.Error) as error:
            bad = error if isinstance(error, BadRow) else _bad_csv(error, start, lines.number)
            if header is None:
                raise DataError(f"{path}, line {start}: {bad.message}") from error
            yield start, bad
    if header is None:
        raise DataError(f"{path} holds blank lines only; write rows into it or leave it out")


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if not name or names.count(name) > 1:
            what = f"column {name!r} occurs twice" if name else "a column has no name"
            raise DataError(f"{path}, line {line}: {what} in the header; name each column once")
    return names


def _fields(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    if len(cells) != len(header):
        raise BadRow(
            "wrong number of cells",
            f"{len(cells)} cells under {len(header)} columns; quote cells that hold commas",
        )
    return {
        name: _number(cell) if name in NUMBER_COLUMNS else cell or None
        for name, cell in zip(header, cells, strict=True)
    }


def _number(cell: str) -> str | int | float | None:
    """The number a cell holds; else the cell itself, for the check of the row to judge."""
    if not cell.strip():
        return None
    if "_" in cell:  # Python's 1_000, which no other reader takes for a number
        return cell
    for convert in (int, float):
        try:
            return convert(cell)
        except ValueError:
            continue
    return cell


def _bad_csv(error: csv.Error, start: int, end: int) -> BadRow:
    if "unexpected end of data" in str(error):
        return BadRow(
            "open quote",
            f"a quote that opens here is never closed (up to line {end}, the last); close it",
        )
    if "field larger than field limit" in str(error):
        return BadRow(
            "cell too long",
            f"a cell is longer than {csv.field_size_limit()} characters; a quote may be missing, "
            "or write such texts as JSONL",
        )
    return BadRow("bad CSV", f"not CSV (lines {start} to {end}): {error}; quote the cell")


def _parquet_rows(path: Path, progress: BytesRead) -> Iterator[NumberedRow]:
    size = path.stat().st_size
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            total = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=4096):
                for fields in batch.to_pylist():
                    number += 1
                    yield number, fields
                progress(size * number // total, size)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}, row {number + 1}: not readable as Parquet: {str(error).splitlines()[0]}; "
            "write the file again"
        ) from error


def json_type(value: Any) -> str:
    """What a value is called in JSON: `an array`, `a string` and so on."""
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "a string"), (int | float, "a number"), (list, "an array")):
        if isinstance(value, kind):
            return name
    if value is None:
        return "null"
    return "an object" if isinstance(value, Mapping) else type(value).__name__


def shown(value: Any) -> str:
    """A value for an error message: its `repr`, cut at 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
