"""How a file of cases is read, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from memory.errors import InvalidInput, shown
from memory.storage.writing import ON_DUPLICATE

#: Called with how many of how many bytes of the file are stored.
ByteProgress: TypeAlias = Callable[[int, int], None]

ON_BAD_LINE = ("error", "skip")
ON_FORGOTTEN = ("skip", "keep")


class SkippedLine(NamedTuple):
    """A bad line: its number from 1, what is wrong, and in which field.

    `reason` quotes the line. `field` does not: it is one of the format's own names, or "" where no
    such field is to blame; where what was stored must stay private, log this one.
    """

    line: int
    reason: str
    field: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of a file.

    `read` counts the lines that are not blank. Each is in `added`, in `updated` (an upsert
    overwrote the case with its external id), in `merged` (into the case it is a duplicate of), in
    `resumed` (stored by another import of the same file: one that was interrupted, or one that ran
    beside this one), in `skipped`, or in `forgotten`: the numbers of the lines whose case was
    forgotten in this namespace once. Where those are kept, each is in one of the others as well.
    `unknown_outcomes` counts the lines that are not left out and whose outcome is not known, such
    as Memento's label "unknown". `already_imported`: the same content had been imported before, so
    nothing was read or added.
    """

    read: int
    added: int
    skipped: tuple[SkippedLine, ...] = ()
    already_imported: bool = False
    resumed: int = 0
    unknown_outcomes: int = 0
    updated: int = 0
    merged: int = 0
    forgotten: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a file is read and what its cases meet; see `CaseBank.import_jsonl`."""

    on_bad_line: str = "error"
    on_duplicate: str = "keep"
    on_forgotten: str = "skip"
    upsert: bool = False
    again: bool = False
    progress: ByteProgress | None = None
    batch_size: int = 1000

    def __post_init__(self) -> None:
        for name, known in (
            ("on_bad_line", ON_BAD_LINE),
            ("on_duplicate", ON_DUPLICATE),
            ("on_forgotten", ON_FORGOTTEN),
        ):
            if getattr(self, name) not in known:
                raise InvalidInput(
                    f"{name} = {shown(getattr(self, name))}: one of {', '.join(known)}"
                )
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise InvalidInput(f"batch_size = {shown(self.batch_size)}: must be an integer")
        if self.batch_size < 1:
            raise InvalidInput(f"batch_size = {self.batch_size}: at least 1")
