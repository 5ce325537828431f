"""A conversation for the tests: what was told, and a resolver's answer to a request after it."""

from __future__ import annotations

from memory import microseconds
from memory.requests import (
    Ambiguous,
    ForgetPlan,
    PlainView,
    Remembered,
    RuleResolver,
    current_ids,
)

KEY = b"a key of the tests"
START = microseconds("2026-03-01T10:00:00Z")  # a Sunday
DAY = 86_400_000_000
ASKED = microseconds("2026-03-06T15:18:00Z")  # the Friday after


def told(*texts: str | tuple[str, str], kinds: dict[int, str] | None = None) -> PlainView:
    """A view of these turns, one a day, with ids from 0; (speaker, text), or Ann's text."""
    turns = [("ann", text) if isinstance(text, str) else text for text in texts]
    return PlainView(
        Remembered(i, text, speaker, START + i * DAY, i, (kinds or {}).get(i, "turn"))
        for i, (speaker, text) in enumerate(turns)
    )


def asks(text: str, speaker: str = "ann", at: int | None = ASKED) -> Remembered:
    """A turn that comes after all others."""
    return Remembered(10_000, text, speaker, at, 10_000)


def resolved(view: PlainView, text: str, **of: object) -> ForgetPlan | Ambiguous | None:
    """What the rules make of a request."""
    return RuleResolver(KEY).resolve(asks(text, **of), view)


def plan(view: PlainView, text: str, **of: object) -> ForgetPlan:
    """The plan that the rules make of a request, which must be one."""
    answer = resolved(view, text, **of)
    assert isinstance(answer, ForgetPlan), answer
    return answer


def forgotten(view: PlainView, text: str, **of: object) -> set[int]:
    """The ids that a request means."""
    return set(current_ids(plan(view, text, **of), view))
