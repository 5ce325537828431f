"""The planted benchmark's figures as a table and two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

HEADINGS = {
    "kendall_tau": "Kendall τ",
    "absolute_error": "|error|",
    "bias": "bias",
}


def show(figures: Mapping[str, Any], path: Path) -> None:
    """Print them, and where they were written."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    systems = figures["systems"]
    columns = list(systems["truth"])
    table = Table(
        title=f"Recovery of the truth: {figures['questions']} questions that are in no log, "
        f"{figures['cases']} cases (mean, 95 % interval by question)",
        title_justify="left",
        box=box.SIMPLE,
    )
    table.add_column("system")
    for figure in columns:
        table.add_column(_heading(figure), justify="right")
    for name, measured in systems.items():
        table.add_row(name, *(_cell(measured.get(figure)) for figure in columns))
    console.print(table)
    console.print(
        "τ: order of all cases within a question, 1 is the truth's. regret@K: chance of success "
        "lost by showing the top K instead of the best K. |error|, bias: estimate minus truth."
    )
    for sentence in sentences(figures["differences"]):
        console.print(f"• {sentence}")
    console.print(f"written: {path}", soft_wrap=True, highlight=False)


def sentences(differences: Mapping[str, Any]) -> list[str]:
    """Whether the retriever orders cases better than each other system, in words."""
    return [
        f"The retriever's order of cases is {_verdict(one['kendall_tau'])} {name}'s: "
        f"Kendall τ differs by {_cell(one['kendall_tau'], ', ', signed=True)}."
        for name, one in differences.items()
        if name != "base_rate"  # which orders nothing
    ]


def _verdict(difference: Mapping[str, float]) -> str:
    if difference["low"] > 0:
        return "nearer the truth than"
    if difference["high"] < 0:
        return "further from the truth than"
    return "not shown to differ from"


def _heading(figure: str) -> str:
    return HEADINGS.get(figure, figure.replace("regret_at_", "regret@"))


def _cell(
    interval: Mapping[str, float] | None, separator: str = "\n", *, signed: bool = False
) -> str:
    if interval is None:
        return "n/a"
    form = "+.3f" if signed else ".3f"
    between = f"{interval['low']:{form}} to {interval['high']:{form}}"
    return f"{interval['value']:{form}}{separator}{between}"
