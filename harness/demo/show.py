"""What the demo prints: tables of hits, and the report in short."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


def console() -> Console:
    """The terminal; where the output goes to a file, 100 columns instead of rich's 80."""
    plain = Console()
    return plain if plain.is_terminal or "COLUMNS" in os.environ else Console(width=100)


def hits_table(
    mode: str, score_name: str, hits: Sequence[Mapping[str, Any]], positive_at: float = 1.0
) -> Table:
    """One search's hits: rank, score, how the stored case once ended, its question."""
    table = Table(title=mode, title_justify="left", box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column(score_name, justify="right")
    table.add_column("ended")
    table.add_column("case", overflow="ellipsis", no_wrap=True)
    for hit in hits:
        case = hit["case"]
        table.add_row(
            str(hit["rank"]),
            f"{hit['score']:.3f}",
            _ended(case.get("outcome"), positive_at),
            " ".join(str(case["query"]).split()),
        )
    return table


def _ended(outcome: float | None, positive_at: float) -> str:
    if outcome is None:
        return "unknown"
    return "well" if outcome >= positive_at else "badly"


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
