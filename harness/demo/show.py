"""What the demo prints: tables of hits, and the report in short."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

#: A stored outcome from here on went well.
POSITIVE_AT = 1.0


def console() -> Console:
    """The terminal; where the output goes to a file, 100 columns instead of rich's 80."""
    plain = Console()
    return plain if plain.is_terminal or "COLUMNS" in os.environ else Console(width=100)


def hits_table(
    mode: str,
    score_name: str,
    hits: Sequence[Mapping[str, Any]],
    truth: Mapping[str, float] | None = None,
    *,
    width: int = 100,
) -> Table:
    """One search's hits: rank, score, true chance if known, how the case once ended."""
    table = Table(title=f"  {mode}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("rank", score_name, *(["true chance"] if truth else [])):
        table.add_column(f"  {heading}", justify="right", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    table.add_column("case", no_wrap=True)
    for hit in hits:
        case = hit["case"]
        known = [f"{truth[case['id']]:.3f}"] if truth else []
        table.add_row(
            str(hit["rank"]),
            f"{hit['score']:.3f}",
            *known,
            _ended(case.get("outcome")),
            shorten(case["query"], width - (44 if truth else 30), placeholder=" …"),
        )
    return table


def _ended(outcome: float | None) -> str:
    if outcome is None:
        return "unknown"
    return "well" if outcome >= POSITIVE_AT else "badly"


def summary(report: Mapping[str, Any]) -> RenderableType:
    """The report in short: the two figures that count, for every system, and the verdicts."""
    table = Table(box=None, pad_edge=False)
    table.add_column("system")
    for heading in ("AUC", "log-loss", "ECE"):
        table.add_column(heading, justify="right")
    for name, system in report["systems"].items():
        table.add_row(name, *(_interval(system["metrics"][m]) for m in ("auc", "log_loss", "ece")))
    rows = report["rows"]
    head = Text(
        f"On {rows['rows']} {report['evaluated_on']} rows of {rows['queries']} queries, "
        "with 95 % intervals:"
    )
    return Group(head, table, *(Text(f"• {sentence}") for sentence in report["verdicts"]))


def _interval(figure: Mapping[str, float | None]) -> str:
    if figure["estimate"] is None:
        return "n/a"
    value = f"{figure['estimate']:.3f}"
    if figure["low"] is None or figure["high"] is None:
        return value
    return f"{value} [{figure['low']:.3f}, {figure['high']:.3f}]"
