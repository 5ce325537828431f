"""Scored runs as an outcome log: one JSON line for every case shown, what a retriever learns from.

`{"run_id", "query", "case_id", "case", "plan"?, "case_outcome"?, "outcome", "rank", "score"?,
"propensity"?, "time"}`; `case_id` is the bank's id, `case` and `plan` the words that were shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Connection, Select, select

from memory.exchange.exporting import RowProgress, publish
from memory.exchange.jsonl import encoded
from memory.runs.run_rows import Run, count_runs, runs_page, runs_where
from memory.schema import cases, texts
from memory.schema import shown as shown_rows
from memory.storage.namespaces import NamespaceState
from memory.storage.store import Store
from memory.times import rfc3339

_PAGE = 200  # runs held in memory, each with all of its cases


@dataclass(frozen=True, slots=True)
class OutcomeLogReport:
    """What an outcome log holds, and what it had to leave out.

    `runs` scored runs gave `rows` rows. `unscored` runs were left out, and so were the rows of
    `changed` cases, whose words are no longer those that were shown.
    """

    path: Path
    runs: int
    rows: int
    unscored: int = 0
    changed: int = 0


def write_outcome_log(
    store: Store, path: Path, namespace: str, progress: RowProgress | None = None
) -> OutcomeLogReport:
    """Write the scored runs of a namespace; see `RunLog.export_outcome_log`."""

    def write(connection: Connection, state: NamespaceState, file: BinaryIO) -> OutcomeLogReport:
        scored = runs_where(state.id, True)
        total = count_runs(connection, scored)
        rows = changed = after = done = 0
        if progress is not None:
            progress(0, total)
        while page := runs_page(connection, scored, namespace, after, _PAGE):
            for row in _log_rows(connection, page):
                if row is None:
                    changed += 1
                else:
                    rows += 1
                    file.write(encoded(row))
            after = page[-1].id
            done += len(page)
            if progress is not None:
                progress(done, total)
        unscored = count_runs(connection, runs_where(state.id, False))
        return OutcomeLogReport(path.absolute(), total, rows, unscored, changed)

    return publish(store, path, namespace, "outcome_log", write)


def _shown_words(ids: Sequence[int]) -> Select[Any]:
    c = shown_rows.c
    return (
        select(
            c.run_id,
            c.rank,
            c.case_id,
            c.score,
            c.propensity,
            (c.text_id == texts.c.id).label("unchanged"),
            texts.c.query,
            texts.c.plan,
            texts.c.plan_is_json,
            cases.c.outcome,
        )
        .join(cases, cases.c.id == c.case_id)
        .join(texts, texts.c.case_id == c.case_id)
        .where(c.run_id.in_(ids))
        .order_by(c.run_id, c.rank)
    )


def _log_rows(connection: Connection, page: Sequence[Run]) -> Iterator[dict[str, Any] | None]:
    """The rows of some runs by run and rank; None for a case with other words than were shown."""
    by_id = {run.id: run for run in page}
    for row in connection.execute(_shown_words(list(by_id))):
        run = by_id[row.run_id]
        if not row.unchanged:
            yield None
            continue
        made = {
            "run_id": run.run_id,
            "query": run.query,
            "case_id": row.case_id,
            "case": row.query,
            "plan": json.loads(row.plan) if row.plan_is_json else row.plan,
            "case_outcome": row.outcome,
            "outcome": run.outcome,
            "rank": row.rank,
            "score": row.score,
            "propensity": row.propensity,
            "time": rfc3339(run.created_at),
        }
        yield {name: value for name, value in made.items() if value is not None}
