"""LoCoMo (Maharana et al., ACL 2024): long conversations of two, and questions with their evidence.

The file is one JSON list of conversations: `conversation` holds `session_<n>` (turns with `dia_id`,
`speaker`, `text` and perhaps `blip_caption`) and `session_<n>_date_time`; `qa` the questions, each
with `category` (1 several hops, 2 time, 3 common knowledge, 4 one hop, 5 unanswerable) and
`evidence`, the ids of the turns that answer it.

The evidence was written by hand. One text may hold several ids, with `;`, `,` or blanks between
them, and an id may have a stray colon or a leading zero (`D:11:26`, `D30:05`): those are read. What
names no turn of the conversation is listed, and the question keeps the evidence that is left.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memory.errors import DataError

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "common knowledge", 4: "single-hop", 5: "no answer"}
UNANSWERABLE = 5

_SESSION = re.compile(r"session_(\d+)")
_ID = re.compile(r"D\s*:?\s*(\d+)\s*:\s*(\d+)")
_DATE = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn; `told_at` is when its session began, microseconds, the file's clock taken as UTC.

    `caption` describes the picture that was shown with the words, if one was.
    """

    turn_id: str
    session: int
    speaker: str
    words: str
    caption: str | None
    told_at: int | None


@dataclass(frozen=True, slots=True)
class Question:
    """A question; `evidence` are turn ids of its conversation, none where nothing resolved."""

    question_id: str
    text: str
    category: int
    answer: str | None
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Evidence that names no turn, as it stands in the file."""

    question_id: str
    evidence: str


@dataclass(frozen=True, slots=True)
class LocomoConversation:
    """One conversation, its turns in the order in which they were said."""

    conversation_id: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]
    lost: tuple[Lost, ...]

    def asked(self) -> tuple[Question, ...]:
        """The questions that retrieval can be measured by: answerable, with evidence."""
        return tuple(q for q in self.questions if q.category != UNANSWERABLE and q.evidence)


def read_locomo(path: Path) -> list[LocomoConversation]:
    """The conversations of a file, in its order.

    Raises:
        DataError: no such list, or a conversation whose turns cannot be told apart.
        FileNotFoundError: there is no such file.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(path, 0, f"is not JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise DataError(path, 0, "must be a JSON list of conversations, and not empty")
    read = [_conversation(path, number, row) for number, row in enumerate(rows)]
    names = {conversation.conversation_id for conversation in read}
    if len(names) != len(read):
        raise DataError(path, 0, "two conversations have one sample_id; each needs its own")
    return read


def _conversation(path: Path, number: int, row: Any) -> LocomoConversation:
    place = f"conversation {number}"
    if not isinstance(row, dict) or not isinstance(row.get("conversation"), dict):
        raise DataError(path, 0, f"{place} has no object 'conversation'")
    name = str(row.get("sample_id") or number)
    turns = _turns(path, name, row["conversation"])
    known = {turn.turn_id for turn in turns}
    if len(known) != len(turns) or not turns:
        raise DataError(
            path, 0, f"{name}: dia_ids are missing or repeated; each turn needs its own"
        )
    questions, lost = [], []
    for place_of, asked in enumerate(row.get("qa") or ()):
        question, unknown = _question(path, f"{name}/q{place_of}", asked, known)
        questions.append(question)
        lost += [Lost(question.question_id, text) for text in unknown]
    return LocomoConversation(name, turns, tuple(questions), tuple(lost))


def _turns(path: Path, name: str, talk: dict[str, Any]) -> tuple[Turn, ...]:
    numbers = sorted(int(match[1]) for key in talk if (match := _SESSION.fullmatch(key)))
    return tuple(
        _turn(
            path, name, number, turn, _moment(path, name, talk.get(f"session_{number}_date_time"))
        )
        for number in numbers
        for turn in talk[f"session_{number}"] or ()
    )


def _turn(path: Path, name: str, session: int, row: dict[str, Any], told_at: int | None) -> Turn:
    found = _ID.fullmatch(str(row.get("dia_id", "")).strip())
    if found is None:
        raise DataError(path, 0, f"{name}: dia_id = {row.get('dia_id')!r}: write D<session>:<turn>")
    caption = str(row.get("blip_caption") or "").strip()
    return Turn(
        _turn_id(found),
        session,
        str(row.get("speaker", "")),
        str(row.get("text", "")),
        caption or None,
        told_at,
    )


def _moment(path: Path, name: str, stamp: str | None) -> int | None:
    if stamp is None:
        return None
    try:
        at = datetime.strptime(stamp.strip(), _DATE).replace(tzinfo=UTC)
    except ValueError as error:
        raise DataError(
            path, 0, f"{name}: date_time = {stamp!r}: write it as '1:56 pm on 8 May, 2023'"
        ) from error
    return int(at.timestamp()) * 1_000_000


def _question(
    path: Path, name: str, row: dict[str, Any], known: set[str]
) -> tuple[Question, list[str]]:
    text, category = row.get("question"), row.get("category")
    if not isinstance(text, str) or not text.strip():
        raise DataError(path, 0, f"{name}: question = {text!r}: must be text and not empty")
    if category not in CATEGORIES:
        raise DataError(path, 0, f"{name}: category = {category!r}: one of 1 to 5")
    evidence: dict[str, None] = {}
    lost = []
    for given in row.get("evidence") or ():
        ids = [_turn_id(match) for match in _ID.finditer(str(given))]
        evidence.update(dict.fromkeys(id_ for id_ in ids if id_ in known))
        if not ids or not known.issuperset(ids):
            lost.append(str(given))
    answer = row.get("answer")
    found = Question(name, text, category, None if answer is None else str(answer), tuple(evidence))
    return found, lost


def _turn_id(match: re.Match[str]) -> str:
    return f"D{int(match[1])}:{int(match[2])}"
