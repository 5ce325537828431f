"""How a report looks in a terminal: two tables, the verdicts, and what they rest on.

Reads the dict of `retriever.learning.report.build_report`, fresh or read back from JSON.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from retriever.learning.verdicts import COMPARED, MODEL

HEADINGS: dict[str, str] = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "f1": "F1",
    "log_loss": "log-loss",
    "brier": "Brier",
    "ece": "ECE",
    "within_query_auc": "AUC within query",
}


def render(report: Mapping[str, Any]) -> RenderableType:
    """A report, fresh or read back from JSON, as rich tables and sentences."""
    rows = report["rows"]
    rate = f"{100 * rows['positive_rate_at_half']:.1f} % positive"
    head = Text(
        f"On {report['evaluated_on']} rows: {rows['rows']} rows, {rows['queries']} queries, "
        f"{rows['cases']} cases, {rate}.",
        style="bold",
    )
    sentences = [Text(f"• {sentence}") for sentence in report["verdicts"]]
    notes = [Text(line, style="dim") for line in _notes(report)]
    return Group(head, _systems_table(report), _differences_table(report), *sentences, *notes)


def render_text(report: Mapping[str, Any], *, width: int = 100) -> str:
    """The same as plain text, no colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _systems_table(report: Mapping[str, Any]) -> Table:
    measured = report["rows"]["queries_with_both_classes"] > 0
    shown = {m: h for m, h in HEADINGS.items() if measured or m != "within_query_auc"}
    table = _table("Figures with 95 % intervals (bootstrap by query)")
    table.add_column("system", overflow="fold")
    for heading in shown.values():
        table.add_column(heading, justify="right", overflow="fold")
    for name, system in report["systems"].items():
        cells = [_cell(system["metrics"][metric], ".3f") for metric in shown]
        table.add_row(Text(name, style="bold" if name == MODEL else ""), *cells)
    return table


def _differences_table(report: Mapping[str, Any]) -> RenderableType:
    if not report["differences"]:
        return Text("")
    measured = report["rows"]["queries_with_both_classes"] > 0
    shown = COMPARED if measured else COMPARED[:2]
    table = _table("Model minus baseline, on the same resamples")
    table.add_column("baseline", overflow="fold")
    for metric in shown:
        table.add_column(HEADINGS[metric], justify="right", overflow="fold")
        table.add_column("model is", overflow="fold")
    for name, by_metric in report["differences"].items():
        cells: list[Text] = []
        for metric in shown:
            difference = by_metric[metric]
            cells += [_cell(difference, "+.4f"), Text(difference["model_is"])]
        table.add_row(Text(name), *cells)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1))


def _cell(interval: Mapping[str, Any], form: str) -> Text:
    if interval["estimate"] is None:
        return Text("n/a")
    figure = f"{interval['estimate']:{form}}"
    if interval["low"] is None:
        return Text(figure)
    between = " to " if form.startswith("+") else "–"
    return Text(f"{figure}\n{interval['low']:{form}}{between}{interval['high']:{form}}")


def _notes(report: Mapping[str, Any]) -> list[str]:
    shared = report["leakage"]["shared_queries"]
    checked = "not checked" if shared is None else f"{shared} queries shared with training"
    drawn = report["bootstrap"]
    lines = [
        f"leakage check: {checked}",
        f"intervals: {drawn['resamples']} resamples of queries, seed {drawn['seed']}; ECE is "
        "biased upwards, on resamples most: compare systems by it, do not read it alone",
    ]
    skipped = max(
        interval["skipped"]
        for system in report["systems"].values()
        for metric, interval in system["metrics"].items()
        if metric == "auc"
    )
    if skipped:
        lines.append(f"resamples of one class, left out of AUC: {skipped}")
    for section in ("split", "read", "calibration", "truncation", "training"):
        lines += _lines(section, report[section])
    return lines


def _lines(section: str, value: Any) -> list[str]:
    """One line a mapping: its plain values; lists and mappings inside it stay in the JSON."""
    if isinstance(value, list):
        return [line for i, item in enumerate(value) for line in _lines(f"{section} {i}", item)]
    if not isinstance(value, Mapping):
        return [] if value is None else [f"{section}: {value}"]
    told = [f"{k} {_short(v)}" for k, v in value.items() if not isinstance(v, Mapping | list)]
    return [f"{section}: {', '.join(told)}"] if told else []


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
