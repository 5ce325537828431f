"""One pass over the lines of a log: each is checked, counted, hashed and written to the table.

A run is all rows of one `run_id`. Memento's rows have none: there, consecutive rows of one query in
one file are one run.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from retriever.errors import DataError
from retriever.learning.data.lines import BadRow
from retriever.learning.data.row_arrays import rows_of
from retriever.learning.data.row_form import LogRow, checked_row, row_bytes
from retriever.learning.data.sources import Progress, Source
from retriever.learning.data.table import TableWriter, batches, open_table
from retriever.text import normalise_query

#: How many skipped lines a report lists.
LISTED = 20


class LogReader:
    """One pass over all lines: checks, counts, digest, table."""

    def __init__(self, source: Source, *, skip: bool, progress: Progress) -> None:
        self._source = source
        self._skip = skip
        self._progress = progress
        self._runs = _Runs()
        self._digest = hashlib.sha256()
        self._seen: set[int] = set()  # 64 bits of each distinct row
        self._reasons: Counter[str] = Counter()
        self._listed: list[tuple[int, int, str]] = []
        self._counts: Counter[str] = Counter()

    def write(self, path: Path) -> None:
        """Check every line and write the good rows to `path`."""
        with TableWriter(path) as table:
            for file in range(len(self._source.names)):
                before = self._counts["rows"] + self._reasons.total()
                self._runs.new_file()
                for number, fields in self._source.read(file, self._progress):
                    self._one(table, file, number, fields)
                if self._counts["rows"] + self._reasons.total() == before:
                    name = self._source.names[file]
                    raise DataError(f"{name} holds no row; write rows into it or leave it out")
        self._source.check_unchanged()
        if not self._counts["rows"]:
            file, number, message = self._listed[0]
            raise DataError(
                f"none of {self._reasons.total()} rows of {', '.join(self._source.names)} is "
                f"usable; the first: {self._source.where(file, number)}: {message}"
            )

    def _one(self, table: TableWriter, file: int, number: int, fields: Any) -> None:
        try:
            if isinstance(fields, BadRow):
                raise fields
            row = checked_row(fields)
            content = row_bytes(row)
            run = self._runs.number(row)
        except BadRow as bad:
            if not self._skip:
                raise DataError(f"{self._source.where(file, number)}: {bad.message}") from bad
            self._reasons[bad.reason] += 1
            if len(self._listed) < LISTED:
                self._listed.append((file, number, bad.message))
            return
        # 64 bits a row: that two of a million differing rows meet has a chance below 1e-7.
        short = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        duplicate = short in self._seen
        self._seen.add(short)
        table.add(row, run, duplicate)
        self._digest.update(content + b"\n")
        self._counts["rows"] += 1
        self._counts["duplicate"] += duplicate
        self._counts["memento"] += row.run_id is None
        self._counts["plan"] += row.plan is not None
        self._counts["propensity"] += row.propensity is not None

    def describe(self, folder: Path) -> dict[str, Any]:
        """The digest and the numbers of the report, as JSON."""
        rows = rows_of(batches(open_table(folder)), use_plan=True)
        count = len(rows)
        order = np.argsort(rows.group, kind="stable")
        starts = np.flatnonzero(np.diff(rows.group[order], prepend=-1))
        outcome = rows.outcome[order]
        constant = np.minimum.reduceat(outcome, starts) == np.maximum.reduceat(outcome, starts)
        report = {
            "rows": count,
            "memento_rows": self._counts["memento"],
            "skipped": self._reasons.total(),
            "skipped_reasons": dict(self._reasons.most_common()),
            "skipped_lines": self._listed,
            "runs": len(self._runs),
            "queries": len(starts),
            "cases": len(rows.case_texts),
            "constant_queries": int(constant.sum()),
            "positive_rate": float((rows.outcome >= 1.0).mean()),
            "mean_outcome": float(rows.outcome.mean(dtype=np.float64)),
            "duplicate_rows": self._counts["duplicate"],
            "self_case_rows": int(rows.self_case.sum()),
            "rows_with_plan": self._counts["plan"],
            "rows_with_propensity": self._counts["propensity"],
            "has_propensities": self._counts["propensity"] == count,
        }
        return {"digest": self._digest.hexdigest(), "report": report}


class _Runs:
    """Numbers the runs, and refuses one run of two queries."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._queries = array("q")  # by number: the hash of the normalised query
        self._open: str | None = None  # the query of a run without id that may go on
        self._last = ""
        self._last_normal = ""

    def __len__(self) -> int:
        return len(self._queries)

    def new_file(self) -> None:
        self._open = None

    def number(self, row: LogRow) -> int:
        if row.query != self._last:  # rows of one query come together
            self._last, self._last_normal = row.query, normalise_query(row.query)
        normal = self._last_normal
        if row.run_id is None:
            if self._open != normal:
                self._open = normal
                self._queries.append(hash(normal))
            return len(self._queries) - 1
        self._open = None
        number = self._numbers.get(row.run_id)
        if number is None:
            number = self._numbers[row.run_id] = len(self._queries)
            self._queries.append(hash(normal))
        elif self._queries[number] != hash(normal):
            raise BadRow(
                "run of two queries",
                f"run_id {row.run_id!r} belongs to another query in an earlier row; a run has one "
                "query: give each run its own id",
            )
        return number
