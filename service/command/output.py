"""What the command prints: tables or JSON on stdout; progress, questions and notes on stderr.

Words of cases are somebody else's: control characters in them never reach the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from service.command.errors import CommandError

#: Called with how much of how much is done.
Tell: TypeAlias = Callable[[int, int], None]

#: Into a file or a pipe, a table is as wide as its words.
_WIDE = 200
_CELL = 300


class Output:
    """Where one call of the command prints to."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else _WIDE
        self._out = Console(file=sys.stdout, highlight=False, markup=False, width=width)

    def data(self, value: object) -> None:
        """Print JSON; nothing where tables are wanted."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")

    def line(self, words: str) -> None:
        """Print a sentence; nothing where JSON is wanted."""
        if not self.as_json:
            self._out.print(Text(plain(words, None)), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table; nothing where JSON is wanted."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(plain(_shown(cell))) for cell in row))
        self._out.print(table)

    def facts(self, values: Mapping[str, object]) -> None:
        """Print names and values, those that say something; nothing where JSON is wanted."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in values.items():
            if value not in (None, "", (), [], {}):
                table.add_row(name, Text(plain(_shown(value))))
        self._out.print(table)

    def note(self, words: str) -> None:
        """Say something beside the result, on stderr."""
        sys.stderr.write(plain(words, None) + "\n")

    def agreed(self, question: str, *, yes: bool) -> None:
        """Ask before what cannot be undone.

        Raises:
            CommandError: no, or nobody can be asked.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(f"{question} Nothing was done: add --yes where nobody can be asked")
        sys.stderr.write(f"{plain(question, None)} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was done")

    @contextmanager
    def progress(self, what: str) -> Iterator[Tell | None]:
        """A bar on stderr where somebody watches; None where nobody does."""
        if not sys.stderr.isatty():
            yield None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        bar = Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr))
        with bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=max(total, 1))


def plain(words: str, limit: int | None = _CELL) -> str:
    """Words on one line, without anything that moves a cursor or rings a bell."""
    cut = words if limit is None or len(words) <= limit else f"{words[:limit]}…"
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in cut)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        more = f" … ({len(value)} in all)" if len(value) > 20 else ""
        return ", ".join(_shown(item) for item in value[:20]) + more
    return str(value)
