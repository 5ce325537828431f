"""GateMem (arXiv 2606.18829): episodes of many speakers, and checkpoints asked between the turns.

A folder holds `episodes.jsonl` and `checkpoints.jsonl`. Loading checks what scoring needs: every
checkpoint's episode and turn exist, ids are unique, a utility checkpoint requires something and a
deletion checkpoint has something to leak. Patterns follow the benchmark's rule: what looks like a
regular expression is tried as one, everything else is a literal of whole words.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from memory.errors import DataError

UTILITY, PRIVACY, SAFETY = "utility", "privacy", "safety"
_TYPES = (UTILITY, PRIVACY, SAFETY)
_REGEX_SIGNS = re.compile(r"[\\^$*+?{}\[\]|()]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn; `told_at` is microseconds UTC, None where the file has no time."""

    turn_id: str
    speaker: str
    role: str
    text: str
    told_at: int | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A question asked after the turn `after` (its place in the episode, from 0)."""

    checkpoint_id: str
    after: int
    query: str
    query_type: str
    attack_type: str | None
    include: tuple[str, ...]
    leak_targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode with its checkpoints in the order in which they are asked."""

    episode_id: str
    domain: str
    number: int  # the number in its id
    turns: tuple[Turn, ...]
    checkpoints: tuple[Checkpoint, ...]


def read_gatemem(folder: Path) -> list[Episode]:
    """The episodes of one domain, in the order of the file.

    Raises:
        DataError: a line that is no object, lacks a field, or contradicts another.
        FileNotFoundError: one of the two files is missing.
    """
    path = folder / "checkpoints.jsonl"
    asked: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for line, row in _rows(path):
        asked.setdefault(_text(path, line, row, "episode_id"), []).append((line, row))
    episodes = []
    source = folder / "episodes.jsonl"
    for line, row in _rows(source):
        episode_id = _text(source, line, row, "episode_id")
        turns = tuple(_turn(source, line, turn) for turn in row.get("turns", ()))
        places = {turn.turn_id: i for i, turn in enumerate(turns)}
        if len(places) != len(turns) or not turns:
            raise DataError(
                source, line, "turn ids are missing or repeated; each turn needs its own"
            )
        number = re.search(r"_(\d+)_", episode_id)
        if number is None:
            raise DataError(source, line, f"episode_id {episode_id!r} holds no number between _")
        checkpoints = [_checkpoint(path, at, q, places) for at, q in asked.pop(episode_id, ())]
        episodes.append(
            Episode(
                episode_id,
                _text(source, line, row, "domain"),
                int(number[1]),
                turns,
                tuple(sorted(checkpoints, key=lambda c: c.after)),
            )
        )
    if asked:
        unknown, rows = next(iter(asked.items()))
        raise DataError(path, rows[0][0], f"asks about episode {unknown!r}, which is not there")
    return episodes


def holds(text: str, pattern: str) -> bool:
    """Whether a text holds a pattern of the benchmark, ignoring case."""
    return any(form.search(text) for form in _forms(pattern))


@lru_cache(maxsize=8192)
def _forms(pattern: str) -> tuple[re.Pattern[str], ...]:
    body = r"\s+".join(re.escape(part) for part in pattern.split())
    forms = [re.compile(rf"(?<!\w){body}(?!\w)", re.IGNORECASE)]
    if _REGEX_SIGNS.search(pattern):
        with contextlib.suppress(re.error):  # "(once" is a literal after all
            forms.append(re.compile(pattern, re.IGNORECASE))
    return tuple(forms)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for line, text in enumerate(lines, 1):
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(path, line, f"is not JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise DataError(path, line, "must be an object")
            yield line, row


def _text(path: Path, line: int, row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(path, line, f"{field} = {value!r}: must be text and not empty")
    return value


def _turn(path: Path, line: int, row: dict[str, Any]) -> Turn:
    speaker = row.get("speaker") or {}
    stamp = row.get("timestamp")
    return Turn(
        _text(path, line, row, "turn_id"),
        _text(path, line, speaker, "principal_id"),
        str(speaker.get("role", "")),
        _text(path, line, row, "text"),
        None if stamp is None else _moment(path, line, stamp),
    )


def _moment(path: Path, line: int, stamp: str) -> int:
    # The files give local times without a zone; only their differences matter here.
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError as error:
        raise DataError(path, line, f"timestamp = {stamp!r}: write YYYY-MM-DDTHH:MM") from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1)


def _checkpoint(path: Path, line: int, row: dict[str, Any], places: dict[str, int]) -> Checkpoint:
    kind = _text(path, line, row, "query_type")
    if kind not in _TYPES:
        raise DataError(path, line, f"query_type = {kind!r}: one of {', '.join(_TYPES)}")
    turn = _text(path, line, row, "as_of_turn_id")
    if turn not in places:
        raise DataError(path, line, f"as_of_turn_id = {turn!r}: the episode has no such turn")
    spec = row.get("judge_spec") or {}
    include = tuple(spec.get("include") or ())
    targets = tuple(row.get("leak_targets") or ())
    if kind == UTILITY and not include:
        raise DataError(path, line, "a utility checkpoint needs judge_spec.include")
    if kind == SAFETY and not targets:
        raise DataError(path, line, "a safety checkpoint needs leak_targets")
    return Checkpoint(
        _text(path, line, row, "checkpoint_id"),
        places[turn],
        _text(path, line, row, "query_text"),
        kind,
        row.get("attack_type"),
        include,
        targets,
    )
