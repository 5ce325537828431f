"""Values that change over time: which of several cases says what holds now."""

from __future__ import annotations

from collections.abc import Sequence

from memory.case import Case
from memory.keys import normal_form


def slot(case: Case) -> tuple[str, ...]:
    """What a case gives a value for; cases of one slot are versions of one another.

    `metadata.subject` and `metadata.predicate` where both are given, as extractors of facts write
    them; else the question itself. Turns say what they say: each is a slot of its own.
    """
    subject, predicate = case.metadata.get("subject"), case.metadata.get("predicate")
    if isinstance(subject, str) and isinstance(predicate, str):
        return ("fact", normal_form(subject), normal_form(predicate))
    if case.kind == "turn":
        return ("case", str(case.id))
    return ("query", case.kind, normal_form(case.query))


def holds_since(case: Case) -> tuple[int, int]:
    """From when a case holds: its valid time, else when it was told, else stored; ties by id."""
    for moment in (case.valid_from, case.created_at, case.stored_at):
        if moment is not None:
            return moment, case.id
    return 0, case.id


def latest_first(ranked: Sequence[Case]) -> list[Case]:
    """The same cases, those of one slot together, the latest of them first.

    A slot stands where the best ranked of its cases stood, so a search keeps its order but never
    shows an older value above a newer one.
    """
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in ranked:
        groups.setdefault(slot(case), []).append(case)
    return [
        case for group in groups.values() for case in sorted(group, key=holds_since, reverse=True)
    ]
