"""Outcome logs: every line checked, then held as a memory-mapped table.

Reads JSON lines, CSV and Parquet, one file or many, and splits of hub data sets, in Memento's form
and in ours (`row_form`). A log is built once per content and kept in a cache folder. Every row that
is not used is counted and, up to 20, listed; nothing else is dropped here. `log_reader` says how
rows form runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from retriever.errors import InvalidInput
from retriever.learning.data.log_reader import LogReader
from retriever.learning.data.row_arrays import rows_of
from retriever.learning.data.rows import Rows
from retriever.learning.data.sources import Progress, Source, resolve
from retriever.learning.data.table import batches, build_entry, entry_meta, open_table
from retriever.text import TEXT_FORMAT

#: Part of the cache key: raise it when the same bytes would be read differently.
READER_VERSION = 1


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A line that `on_bad_line="skip"` left out."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What was read, and what is worth knowing of it before anything is learned from it."""

    source: str
    files: tuple[str, ...]
    ignored_files: tuple[str, ...]  # in the folder or glob, and no log by their suffix
    rows: int
    memento_rows: int  # in Memento's form; the others are in ours
    skipped: int
    skipped_reasons: dict[str, int]
    skipped_lines: tuple[SkippedLine, ...]  # the first 20
    runs: int
    queries: int  # distinct after normalisation
    cases: int  # distinct texts, plan included
    constant_queries: int  # all rows of the query have one outcome
    positive_rate: float  # share of rows with outcome 1
    mean_outcome: float
    duplicate_rows: int  # equal to an earlier row in every field, `run_id` included
    self_case_rows: int  # the case is the query itself
    rows_with_plan: int
    rows_with_propensity: int
    has_propensities: bool  # every row has one

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


@dataclass(frozen=True, eq=False)
class OutcomeLog:
    """A log that passed its checks: `table` (memory-mapped), `report`, `digest` of its rows."""

    table: datasets.Dataset
    report: ReadReport
    digest: str  # sha256 over the checked rows in order, whatever file held them

    def __len__(self) -> int:
        return self.report.rows

    def rows(self, use_plan: bool, *, duplicates: str = "keep") -> Rows:
        """The rows as arrays (R,), each distinct text once; cases with their plans or without.

        `duplicates="drop"` leaves out the rows that the report counts as `duplicate_rows`.
        """
        if duplicates not in ("keep", "drop"):
            raise InvalidInput(f"duplicates must be keep or drop, got {duplicates!r}")
        rows = rows_of(batches(self.table), use_plan=use_plan)
        return rows if duplicates == "keep" else rows.take(~self.duplicate)

    @property
    def duplicate(self) -> NDArray[np.bool_]:
        """(R,) True where an earlier row is equal in every field, the `run_id` too if given."""
        marks = [piece["duplicate"].to_numpy() for piece in batches(self.table)]
        return np.concatenate(marks).astype(np.bool_)


def read_outcome_log(
    source: str,
    *,
    on_bad_line: str = "error",
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> OutcomeLog:
    """Read and check the log that `source` names.

    Args:
        source: a `.jsonl`, `.json` (lines), `.csv` or `.parquet` file, a folder or glob of them, or
            `hub:<dataset id>[:<split>]`.
        on_bad_line: `error` stops at the first bad line; `skip` counts them and lists 20.
        cache_dir: where the table is kept for the next time; by default a temporary folder that
            lives as long as the log's table.
        progress: called with (done, total) while lines are read.

    Raises:
        DataError: a bad line, or a source without any good row.
    """
    if on_bad_line not in ("error", "skip"):
        raise InvalidInput(f"on_bad_line must be error or skip, got {on_bad_line!r}")
    found = resolve(source, show_progress=progress is not None)
    temporary = None
    if cache_dir is None:
        temporary = cache_dir = Path(tempfile.mkdtemp(prefix="outcome-log-"))
    try:
        folder = Path(cache_dir) / _key(found, on_bad_line)
        meta = entry_meta(folder)
        if meta is None:
            skip = on_bad_line == "skip"
            reader = LogReader(found, skip=skip, progress=progress or _no_progress)
            meta = build_entry(folder, reader.write, reader.describe)
        table = open_table(folder)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if temporary is not None:
        weakref.finalize(table, _remove, temporary, os.getpid())
    return OutcomeLog(table, _report(source, found, meta["report"]), meta["digest"])


def _key(found: Source, on_bad_line: str) -> str:
    named = json.dumps([READER_VERSION, TEXT_FORMAT, on_bad_line, found.identity()])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def _report(source: str, found: Source, numbers: dict[str, Any]) -> ReadReport:
    skipped = tuple(
        SkippedLine(found.names[file], line, reason)
        for file, line, reason in numbers["skipped_lines"]
    )
    return ReadReport(
        source=source,
        files=found.names,
        ignored_files=found.ignored,
        **numbers | {"skipped_lines": skipped},
    )


def _no_progress(done: int, total: int) -> None:
    """Nobody watches."""


def _remove(folder: Path, owner: int) -> None:
    # A forked worker holds a copy of the log; its end is not the end of the log.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
