"""Runs as rows: the records, their checks, and functions over an open transaction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, Connection, Row, and_, func, select

from memory.checks import checked_json
from memory.errors import InvalidInput, NotFound, shown
from memory.keys import Keys
from memory.schema import cases, run_texts, runs, texts
from memory.schema import shown as shown_rows
from memory.storage.rows import chunks

_MAX_RANK = 2**31 - 1


class Shown(NamedTuple):
    """A case that was shown: its place from 1, its score, and its propensity.

    The propensity is the conditional probability at its rank: that the policy showed this case
    there, given what it had shown at the ranks before.
    """

    case_id: int
    rank: int
    score: float | None = None
    propensity: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a query. `id` is the database's (the cursor of `list`), `run_id` the caller's.

    `shown` is by rank, without cases that were purged since. Times are microseconds UTC.
    """

    id: int
    run_id: str
    namespace: str
    query: str
    policy: str
    shown: tuple[Shown, ...]
    created_at: int
    outcome: float | None = None
    outcome_at: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def checked_metadata(metadata: Mapping[str, Any] | None) -> str:
    """What else is to be kept of a run, as the JSON of an object."""
    if not isinstance(metadata, Mapping | None):
        raise InvalidInput(f"metadata = {shown(metadata)}: must be an object of names and values")
    plain = checked_json("metadata", metadata or {})
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def checked_shown(given: Sequence[Shown]) -> list[Shown]:
    """The rows by rank, in plain types."""
    if isinstance(given, Shown) or not isinstance(given, Sequence):
        raise InvalidInput(f"shown must be a list of Shown, got {type(given).__name__}")
    checked = []
    for position, item in enumerate(given):
        if not isinstance(item, Shown):
            raise InvalidInput(f"shown[{position}] is {shown(item)}; make it a Shown")
        checked.append(_checked_item(f"shown[{position}]", item))
    for name in ("rank", "case_id"):
        values = [getattr(item, name) for item in checked]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise InvalidInput(
                f"shown gives {name} {twice} twice; a run shows a case once, by rank"
            )
    return sorted(checked, key=lambda item: item.rank)


def _checked_item(where: str, item: Shown) -> Shown:
    for name, most in (("case_id", 2**53 - 1), ("rank", _MAX_RANK)):
        value = getattr(item, name)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidInput(f"{where}.{name} = {shown(value)}: must be an integer")
        if name == "rank" and not 1 <= value <= most:
            raise InvalidInput(f"{where}.rank = {value}: ranks count from 1")
    score = _finite(f"{where}.score", item.score)
    chance = _finite(f"{where}.propensity", item.propensity)
    if chance is not None and not 0.0 < chance <= 1.0:
        raise InvalidInput(
            f"{where}.propensity = {chance!r}: the probability with which the policy showed the "
            "case, above 0 and at most 1; leave it out where it is not known"
        )
    return Shown(int(item.case_id), int(item.rank), score, chance)


def _finite(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInput(f"{name} = {shown(value)}: must be a number, or nothing")
    if not math.isfinite(value):
        raise InvalidInput(f"{name} = {shown(value)}: must be finite; leave it out if unknown")
    return float(value)


def checked_outcome(outcome: object) -> float:
    """A number in [0, 1]."""
    if not isinstance(outcome, Real) or not 0.0 <= cast(float, outcome) <= 1.0:  # NaN neither
        raise InvalidInput(
            f"outcome = {shown(outcome)}: a number in [0, 1]; leave the run unscored if unknown"
        )
    return float(outcome)


def run_key(keys: Keys, namespace_id: int, run_id: str) -> bytes:
    """What a run is looked up by."""
    return keys.of("run", namespace_id, run_id)


def unknown_run(namespace: str, run_id: str) -> NotFound:
    """The error for a run that is not there."""
    return NotFound(f"namespace {namespace!r} has no run {shown(run_id)}; log it first")


def run_row(connection: Connection, keys: Keys, namespace_id: int, run_id: str) -> Row[Any] | None:
    """The numbers of a run, or None where there is none of that id."""
    return connection.execute(
        select(runs).where(
            runs.c.namespace_id == namespace_id,
            runs.c.run_key == run_key(keys, namespace_id, run_id),
        )
    ).one_or_none()


def run_named(
    connection: Connection, keys: Keys, namespace_id: int, namespace: str, run_id: str
) -> Run | None:
    """A whole run, or None where there is none of that id."""
    row = run_row(connection, keys, namespace_id, run_id)
    if row is None:
        return None
    (run,) = runs_page(connection, runs.c.id == row.id, namespace, 0, 1)
    return run


def words_shown(
    connection: Connection, namespace_id: int, ids: Sequence[int], *, live: bool = True
) -> dict[int, int]:
    """Which text rows hold the words of those cases that the namespace has."""
    found: dict[int, int] = {}
    # Beyond 53 bits there is no case, and beyond 63 the driver could not even ask.
    for part in chunks([id_ for id_ in ids if 0 < id_ < 2**53]):
        wanted = (
            select(cases.c.id, texts.c.id.label("text_id"))
            .join(texts, texts.c.case_id == cases.c.id)
            .where(cases.c.namespace_id == namespace_id, cases.c.id.in_(part))
        )
        if live:
            wanted = wanted.where(cases.c.invalidated_at.is_(None))
        found.update({int(row.id): int(row.text_id) for row in connection.execute(wanted)})
    return found


def runs_where(namespace_id: int, scored: bool | None) -> ColumnElement[bool]:
    """The runs of a namespace: all, those with an outcome (True), or those without (False)."""
    mine = runs.c.namespace_id == namespace_id
    if scored is None:
        return mine
    return and_(mine, runs.c.outcome.is_not(None) if scored else runs.c.outcome.is_(None))


def count_runs(connection: Connection, condition: ColumnElement[bool]) -> int:
    """How many runs meet a condition."""
    query = select(func.count()).select_from(runs).where(condition)
    return int(connection.execute(query).scalar_one())


def runs_page(
    connection: Connection, condition: ColumnElement[bool], namespace: str, after: int, limit: int
) -> list[Run]:
    """At most `limit` runs with larger ids than `after`, by id."""
    wanted = (
        select(runs, run_texts.c.name, run_texts.c.query, run_texts.c.policy, run_texts.c.metadata)
        .join(run_texts, run_texts.c.run_id == runs.c.id)
        .where(condition, runs.c.id > after)
        .order_by(runs.c.id)
        .limit(limit)
    )
    found = list(connection.execute(wanted))
    by_run: dict[int, list[Shown]] = {row.id: [] for row in found}
    for part in chunks(list(by_run)):
        c = shown_rows.c
        of_part = select(shown_rows).where(c.run_id.in_(part)).order_by(c.run_id, c.rank)
        for row in connection.execute(of_part):
            by_run[row.run_id].append(Shown(row.case_id, row.rank, row.score, row.propensity))
    return [
        Run(
            id=row.id,
            run_id=row.name,
            namespace=namespace,
            query=row.query,
            policy=row.policy,
            shown=tuple(by_run[row.id]),
            created_at=row.created_at,
            outcome=row.outcome,
            outcome_at=row.outcome_at,
            metadata=json.loads(row.metadata),
        )
        for row in found
    ]
