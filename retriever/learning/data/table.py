"""Checked rows as an Arrow file, which `datasets` maps into memory; and an entry of the log cache.

An entry is a folder `<key>/` with `rows.arrow` and `log.json`. It is filled under another name and
renamed when whole, so of two processes that build one entry at once the slower finds it done.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import datasets
import pyarrow as pa

from retriever.learning.data.row_form import LogRow

#: The fields of `LogRow`, then the number of the run, and whether an equal row came before.
SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("query", pa.string()),
        ("case_id", pa.string()),
        ("case", pa.string()),
        ("plan", pa.string()),
        ("case_outcome", pa.float64()),
        ("outcome", pa.float64()),
        ("rank", pa.int64()),
        ("score", pa.float64()),
        ("propensity", pa.float64()),
        ("teacher_score", pa.float64()),
        ("time", pa.int64()),
        ("run", pa.int64()),
        ("duplicate", pa.bool_()),
    ]
)

_ROWS = "rows.arrow"
_META = "log.json"
_BATCH = 8192  # rows; bounds the memory of writing and of every pass


class TableWriter:
    """Appends rows to an Arrow stream, a batch at a time; use it as a context."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[tuple[Any, ...]] = []

    def __enter__(self) -> TableWriter:
        self._file = pa.OSFile(str(self._path), "wb")
        self._stream = pa.ipc.new_stream(self._file, SCHEMA)
        return self

    def add(self, row: LogRow, run: int, duplicate: bool) -> None:
        """Append one row, which belongs to run number `run`."""
        self._pending.append((*row, run, duplicate))
        if len(self._pending) == _BATCH:
            self._flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._pending:
            self._flush()
        self._stream.close()
        self._file.close()

    def _flush(self) -> None:
        columns = zip(*self._pending, strict=True)
        arrays = [
            pa.array(values, type=field.type) for values, field in zip(columns, SCHEMA, strict=True)
        ]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        self._pending.clear()


def open_table(folder: Path) -> datasets.Dataset:
    """The rows of an entry, mapped into memory: nothing is read before it is used."""
    return datasets.Dataset.from_file(str(folder / _ROWS))


def batches(table: datasets.Dataset) -> Iterator[pa.Table]:
    """The table in pieces of bounded size, in order."""
    yield from table.with_format("arrow").iter(batch_size=_BATCH)


def entry_meta(folder: Path) -> dict[str, Any] | None:
    """What is known of a whole entry, or None where it is missing, damaged or half there."""
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        whole = (folder / _ROWS).stat().st_size == meta["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return meta if whole else None


def build_entry(
    folder: Path, fill: Callable[[Path], None], describe: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Make the entry `folder`: `fill` its rows, then `describe` what was written; return that."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fill(temporary / _ROWS)
        meta = describe(temporary) | {"bytes": (temporary / _ROWS).stat().st_size}
        (temporary / _META).write_text(json.dumps(meta), encoding="utf-8")
        for name in (_ROWS, _META):
            with (temporary / name).open("rb") as file:
                os.fsync(file.fileno())
        return _put(temporary, folder, meta)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(temporary: Path, folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Give the new entry its name, unless another process was first."""
    for attempt in (1, 2):
        try:
            temporary.rename(folder)
            return meta
        except OSError:
            theirs = entry_meta(folder)
            if theirs is not None:
                return theirs
            if attempt == 2 or not folder.exists():
                raise
            # A damaged entry stands in the way; whoever still maps it keeps its bytes.
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
            folder.rename(aside / folder.name)
            shutil.rmtree(aside, ignore_errors=True)
    raise AssertionError("unreachable")
