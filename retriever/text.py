"""The one place that turns queries, cases and plans into the text that a model reads.

Training, serving and the bank all call these functions, and an artifact stores `TEXT_FORMAT`; so
the two sides cannot drift apart. The layout is Memento's (`[CASE]`, `[PLAN]`, one step a line).
How a case once ended never enters the text.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from retriever.errors import InvalidInput
from retriever.types import CaseLike, Plan

#: Changes whenever the same input would give another text.
TEXT_FORMAT = "memento-1"


def normalise_query(query: str) -> str:
    """Case-folded, composed (NFC), white space collapsed: one normal form is one query."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", query).casefold())
    return " ".join(folded.split())


def query_text(query: str) -> str:
    """A query is read as it was asked."""
    return query


def plan_steps(plan: Plan) -> list[str]:
    """The steps of a plan, one line each: `<id>. <description>`, without id `- <description>`.

    Accepts what logs hold: JSON text, `{"plan": [...]}`, a list of steps, or free text (one step).
    """
    if plan is None:
        return []
    if isinstance(plan, str):
        stripped = plan.strip()
        if not stripped:
            return []
        try:
            parsed = json.loads(stripped)
        except (ValueError, RecursionError):  # text that only looks like JSON is free text
            return [f"- {_one_line(stripped)}"]
        if not isinstance(parsed, dict | list):
            return [f"- {_one_line(stripped)}"]
        plan = parsed
    if isinstance(plan, Mapping):
        if "plan" in plan:
            return plan_steps(plan["plan"])
        return [_step(plan)]
    if isinstance(plan, Sequence) and not isinstance(plan, bytes | bytearray | memoryview):
        return [line for line in map(_step, plan) if line]
    raise InvalidInput(
        f"plan must be text, an object or a list of steps, got {type(plan).__name__}: {plan!r}"
    )


def case_text(query: str, plan: Plan = None) -> str:
    """`[CASE]`, the question, and, where there is a plan, `[PLAN]` and its steps."""
    lines = ["[CASE]", query]
    steps = plan_steps(plan)
    if steps:
        lines += ["[PLAN]", *steps]
    return "\n".join(lines)


def turn_text(words: str, speaker: str | None, created_at: int | None) -> str:
    """A dialogue turn: `speaker (time): words`; what is unknown is left out."""
    time = "" if created_at is None else f" ({_rfc3339(created_at)})"
    head = f"{speaker or ''}{time}".strip()
    return f"{head}: {words}" if head else words


def record_text(case: CaseLike) -> str:
    """The model's text of a stored record, by its kind."""
    if case.kind == "turn":
        speaker = case.metadata.get("speaker")
        return turn_text(case.query, None if speaker is None else str(speaker), case.created_at)
    return case_text(case.query, case.plan)


def _step(step: Any) -> str:
    if not isinstance(step, Mapping):
        words = _one_line(str(step))
        return f"- {words}" if words else ""
    # `desc` and `step` are what Memento reads where there is no description.
    for key in ("description", "desc", "step"):
        if step.get(key) not in (None, ""):
            words = str(step[key])
            break
    else:
        words = json.dumps(dict(step), ensure_ascii=False, default=str)
    number = "" if step.get("id") is None else _one_line(str(step["id"]))
    return f"{number}. {_one_line(words)}" if number else f"- {_one_line(words)}"


def _one_line(words: str) -> str:
    return " ".join(words.split())


def _rfc3339(microseconds: int) -> str:
    moment = datetime.fromtimestamp(microseconds / 1e6, tz=UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
