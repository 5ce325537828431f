"""Cases as rows of a Parquet file, read and written some rows at a time; needs pyarrow.

The columns are the fields of a JSONL line, with the same names, and null where there is none:

    id, query, plan, kind, source       text
    plan_json, metadata                 JSON text: a plan that is an object or list; an object
    outcome                             double
    tags, derived_from                  lists of text
    created_at, valid_from, valid_to    timestamps in UTC, microseconds

That is what is written. Read are also Memento's two forms, plans and metadata as native structs,
lists or maps (a null inside of a struct counts as absent: the file has no other way to say it), and
times as RFC 3339 text. A timestamp without a zone is refused.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from memory.case import ROW_KEYS, NewCase
from memory.errors import BankUnavailable, DataError, InvalidCase, InvalidInput, shown
from memory.exchange.jsonl import Line, case_of, field_of, parse_json
from memory.times import rfc3339

#: Columns that a file of cases in our form may have.
COLUMNS = (*ROW_KEYS, "plan_json")

_READ_ROWS = 1000  # turned into Python's values together
_BUFFER = 2**20  # bytes of a column read ahead
_TIMES = ("created_at", "valid_from", "valid_to")
_SAID_UNKNOWN = ("case_label", "reward")  # null says "unknown" here, not "no such field"
_Cells: TypeAlias = dict[str, Any]
_Types: TypeAlias = dict[str, Any]
_TICKS = {"s": 1_000_000, "ms": 1_000, "us": 1}  # microseconds a tick; of "ns" a thousand make one


def library() -> Any:
    """pyarrow, with `pyarrow.parquet` loaded.

    Raises:
        BankUnavailable: it is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise BankUnavailable(
            "Parquet files need pyarrow: pip install pyarrow; JSONL needs nothing"
        ) from error


def read_rows(file: BinaryIO, path: Path) -> Iterator[Line]:
    """Every row of an open file as a line, numbered from 1.

    Args:
        file: open for reading, at any position.
        path: its name, for messages.

    Raises:
        DataError: no Parquet file, damaged, or with a column that the format does not have.
    """
    pa = library()
    size = file.seek(0, 2)
    file.seek(0)
    try:
        with pa.parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as source:
            _check_columns(source.schema_arrow, path)
            types = {field.name: field.type for field in source.schema_arrow}
            total = source.metadata.num_rows
            number = 0
            for batch in source.iter_batches(_READ_ROWS, use_threads=False):
                for cells in _cells(pa, batch):
                    number += 1
                    yield _line(number, size * number // total, cells, types)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(path, 0, f"is no Parquet file that can be read ({reason})") from error


def write_cases(file: BinaryIO, pages: Iterable[Sequence[NewCase]]) -> int:
    """Write cases to an open file, each page a row group; how many there were."""
    pa = library()
    count = 0
    with pa.parquet.ParquetWriter(file, _schema(pa), compression="zstd") as writer:
        for page in pages:
            rows = [_row(case) for case in page]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_schema(pa)))
            count += len(rows)
    return count


def copy_rows(
    source: BinaryIO, target: BinaryIO, drop: Callable[[NewCase | None, Any], bool]
) -> int:
    """Copy a file of rows without those to be dropped; how many those were.

    Args:
        source: any Parquet file.
        target: where the others go, in the same columns.
        drop: called with the case of a row (None where it is none) and the row's values.

    Raises:
        BankUnavailable: pyarrow is not installed.
        DataError: no Parquet file, damaged, or of a type that cannot be written again.
    """
    pa = library()
    path = Path(source.name)
    dropped = 0
    try:
        with pa.parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False) as file:
            _check_repeats(file.schema_arrow, path)
            # Metadata and dictionaries could hold words of rows that go: neither is copied.
            schema = _plain_schema(pa, file.schema_arrow)
            types = {field.name: field.type for field in file.schema_arrow}
            with pa.parquet.ParquetWriter(target, schema, compression="zstd") as writer:
                for batch in file.iter_batches(_READ_ROWS, use_threads=False):
                    keep = [not drop(_case(cells, types), cells) for cells in _cells(pa, batch)]
                    dropped += len(keep) - sum(keep)
                    table = pa.Table.from_batches([batch.filter(pa.array(keep, pa.bool_()))])
                    writer.write_table(table.replace_schema_metadata(None).cast(schema))
    except pa.ArrowException as error:
        raise DataError(path, 0, f"cannot be read and written again ({error})") from error
    return dropped


def _schema(pa: Any) -> Any:
    text, texts = pa.string(), pa.list_(pa.string())
    time = pa.timestamp("us", tz="UTC")
    types = {"outcome": pa.float64(), "tags": texts, "derived_from": texts}
    types |= dict.fromkeys(_TIMES, time)
    return pa.schema(
        pa.field(name, types.get(name, text), nullable=name not in ("query", "kind"))
        for name in COLUMNS
    )


def _row(case: NewCase) -> dict[str, Any]:
    """The values of a case by column."""
    row: dict[str, Any] = {name: getattr(case, name, None) for name in ROW_KEYS}
    row["id"] = case.external_id
    if case.plan is not None and not isinstance(case.plan, str):
        row["plan"], row["plan_json"] = None, _json(case.plan)
    row["metadata"] = _json(case.metadata) if case.metadata else None
    for name in ("tags", "derived_from"):
        row[name] = list(row[name]) or None
    return row


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _check_columns(schema: Any, path: Path) -> None:
    _check_repeats(schema, path)
    names = schema.names
    # A column is there in every row: naming it once says more than a fault in each of them.
    unknown = [name for name in names if name not in COLUMNS]
    if "query" in names and "case" not in names and unknown:
        known = ", ".join(COLUMNS)
        raise DataError(path, 0, f"unknown column {shown(unknown[0])}; known: {known}")


def _check_repeats(schema: Any, path: Path) -> None:
    repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(path, 0, f"has two columns {shown(repeated)}; rename one of them")


def _line(number: int, end: int, cells: _Cells, types: _Types) -> Line:
    try:
        return Line(number, end, case_of(_fields(cells, types)))
    except InvalidInput as error:
        return Line(number, end, None, str(error), field_of(error))


def _case(cells: _Cells, types: _Types) -> NewCase | None:
    try:
        return case_of(_fields(cells, types))
    except InvalidInput:
        return None


def _cells(pa: Any, batch: Any) -> Iterator[_Cells]:
    """The rows of a batch by column; timestamps as the numbers they are."""
    columns = {
        field.name: column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    for i in range(batch.num_rows):
        yield {name: _cell(column[i]) for name, column in columns.items()}


def _cell(scalar: Any) -> Any:
    """A value in Python's types; bytes, which no field takes, where it has none."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error.object
    except (ValueError, OverflowError) as error:
        return str(error).encode()


def _plain(type_: Any, value: Any, name: str) -> Any:
    """A value as JSON would have it; what has no JSON form is left to the checks of a case."""
    if value is None or isinstance(value, str | float | bool):
        return value
    types = library().types
    if types.is_timestamp(type_):
        return _time(type_, value, name)
    if isinstance(value, dict):
        found = {f.name: _plain(f.type, value[f.name], name) for f in type_}
        return {key: item for key, item in found.items() if item is not None}
    if types.is_map(type_) and isinstance(value, list):
        return {key: _plain(type_.item_type, item, name) for key, item in value}
    if isinstance(value, list):
        return [_plain(type_.value_type, item, name) for item in value]
    return value


def _time(type_: Any, value: Any, name: str) -> str:
    if not isinstance(value, int):  # inside of a struct or list
        raise InvalidCase(name, value, "a time has no JSON form; convert it to text first")
    if type_.tz is None:
        raise InvalidCase(name, value, "the column has no time zone; give it UTC")
    if type_.unit == "ns":
        if value % 1000:
            raise InvalidCase(name, value, "it is finer than a microsecond; round it")
        moment = value // 1000
    else:
        moment = value * _TICKS[type_.unit]
    try:
        return rfc3339(moment)
    except OverflowError as error:
        raise InvalidCase(name, value, "lies outside the years 1 to 9999") from error


def _fields(cells: _Cells, types: _Types) -> _Cells:
    """The values of a row as those of a line."""
    row = {
        name: _plain(types[name], value, name)
        for name, value in cells.items()
        if value is not None or name in _SAID_UNKNOWN
    }
    as_json = row.pop("plan_json", None)
    if as_json is not None:
        if "plan" in row:
            raise InvalidCase("plan_json", as_json, "plan is given too; keep one of them")
        row["plan"] = _parsed("plan_json", as_json)
        if not isinstance(row["plan"], dict | list):
            raise InvalidCase("plan_json", as_json, "must be the JSON of an object or a list")
    if isinstance(row.get("metadata"), str):
        row["metadata"] = _parsed("metadata", row["metadata"])
    return row


def _parsed(name: str, text: Any) -> Any:
    if not isinstance(text, str):
        raise InvalidCase(name, text, "must be JSON text")
    try:
        return parse_json(text)
    except InvalidCase:
        raise
    except InvalidInput as error:
        raise InvalidCase(name, text, str(error)) from error


def _plain_schema(pa: Any, schema: Any) -> Any:
    return pa.schema([f.with_type(_undictionaried(pa, f.type)).remove_metadata() for f in schema])


def _undictionaried(pa: Any, type_: Any) -> Any:
    """A type with every dictionary in it replaced by what it stands for."""
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_undictionaried(pa, f.type)) for f in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_undictionaried(pa, type_.value_type)))
    return type_
