"""Places outside the database that may hold words of cases: what a purge calls, and counts.

Whoever keeps such a place (a query cache, embeddings on disk, an index, answers of a language
model, traces of an agent) registers it at the bank. A purge calls every sink before it commits; one
that fails is named in the receipt, and the purge goes on. What can only be asked, because its words
cannot be taken out again (a trained artifact), is a witness: the receipt names those that held some
of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from memory.case import Case
from memory.checks import checked_text
from memory.errors import InvalidInput

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gone:
    """What is being forgotten: handed to sinks, never stored.

    Attributes:
        namespace: where.
        cases: the cases that go.
        strings: texts that may occur nowhere any more.
        holds: whether a text is one of `strings` or of the cases' own texts, or holds one of the
            strings, near-verbatim spellings included.
    """

    namespace: str
    cases: tuple[Case, ...]
    strings: tuple[str, ...]
    holds: Callable[[str], bool]


class Sink(Protocol):
    """A place that can be purged."""

    @property
    def name(self) -> str:
        """What the receipt calls it."""
        ...

    def purge(self, gone: Gone) -> int:
        """Remove every entry that holds some of it, overwriting; how many there were.

        Any exception means: not reached. The receipt then says so.
        """
        ...


class Witness(Protocol):
    """A place whose words cannot be taken out, such as a trained artifact."""

    @property
    def name(self) -> str:
        """What the receipt calls it."""
        ...

    def holds(self, gone: Gone) -> bool:
        """Whether it was made from some of it."""
        ...


class Sinks:
    """The sinks and witnesses of one open bank."""

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self._witnesses: dict[str, Witness] = {}

    @property
    def names(self) -> list[str]:
        """The names of the sinks."""
        return sorted(self._sinks)

    def add(self, sink: Sink) -> None:
        """Register a sink; one of the same name is replaced."""
        if not callable(getattr(sink, "purge", None)):
            raise InvalidInput(f"a sink needs purge(gone) -> int; {type(sink).__name__} has none")
        self._sinks[checked_text("sink.name", sink.name)] = sink

    def add_witness(self, witness: Witness) -> None:
        """Register a witness; one of the same name is replaced."""
        if not callable(getattr(witness, "holds", None)):
            raise InvalidInput(
                f"a witness needs holds(gone) -> bool; {type(witness).__name__} has none"
            )
        self._witnesses[checked_text("witness.name", witness.name)] = witness

    def purge(self, gone: Gone) -> tuple[dict[str, int], list[str]]:
        """Call every sink: how many entries went from each, and the names of those not reached."""
        counts: dict[str, int] = {}
        unreached: list[str] = []
        for name, sink in sorted(self._sinks.items()):
            try:
                counts[name] = int(sink.purge(gone))
            except Exception as error:
                # Its message might quote what is to be forgotten.
                log.warning("sink %s was not reached: %s", name, type(error).__name__)
                unreached.append(name)
        return counts, unreached

    def settle(self, namespace: str) -> list[str]:
        """After the commit: have sinks that follow the bank let go too; names of those not reached.

        A sink that reads the bank itself, such as an index, would take in again before the commit
        what it let go; it has a method `settle(namespace)` besides.
        """
        unreached = []
        for name, sink in sorted(self._sinks.items()):
            settle = getattr(sink, "settle", None)
            if settle is None:
                continue
            try:
                settle(namespace)
            except Exception as error:
                log.warning("sink %s was not reached: %s", name, type(error).__name__)
                unreached.append(name)
        return unreached

    def witnesses(self, gone: Gone) -> tuple[list[str], list[str]]:
        """The names of the witnesses that held some of it, and of those that could not tell."""
        held: list[str] = []
        silent: list[str] = []
        for name, witness in sorted(self._witnesses.items()):
            try:
                if witness.holds(gone):
                    held.append(name)
            except Exception as error:
                log.warning("artifact %s could not be asked: %s", name, type(error).__name__)
                silent.append(name)
        return held, silent
