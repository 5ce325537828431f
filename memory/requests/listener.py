"""Requests switched on: each turn heard once, in order, before it is stored.

The listener decides what of a turn may be stored and which plans are due; it touches no database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from memory.case import NewCase
from memory.forgetting.selectors import Replacement
from memory.requests.echoes import Forgotten
from memory.requests.mentions import holds_any
from memory.requests.plan import Ambiguous, Event, ForgetPlan, RecordView, Remembered, Resolver

_COMPLETED = re.compile(
    r"\b(?:deletion|cleanup|clean-up|removal|purge)s?\s+(?:is |are |was |now )?(?:complete"
    r"|completed|done|finished)\b",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What to do about one turn: carry out `plans` in their order, then store.

    `store` says whether the turn itself is stored. A plan's `replacement` is stored after the plan
    was carried out; `besides` is stored where the plan waits.
    """

    store: bool
    plans: tuple[ForgetPlan, ...] = ()
    besides: NewCase | None = None
    ambiguous: Ambiguous | None = None
    why: str = "told"


class Listener:
    """Hears the turns of one namespace.

    Args:
        resolver: turns a request into a plan.
        key: keys the digests of what was forgotten; the same as the resolver's.
        pending: plans that wait for their time, from an earlier life.
        forgotten: digests of what was forgotten, from an earlier life.
    """

    def __init__(
        self,
        resolver: Resolver,
        key: bytes,
        *,
        pending: tuple[ForgetPlan, ...] = (),
        forgotten: Forgotten | None = None,
    ) -> None:
        self._resolver = resolver
        self._key = key
        self.pending = list(pending)
        self.forgotten = forgotten if forgotten is not None else Forgotten(key)

    def hear(self, turn: Remembered, view: RecordView) -> Heard:
        """Decide about one turn; `view` holds what was stored before it."""
        # First what may fail: a resolver that cannot answer leaves every waiting plan in place.
        answer = self._resolver.resolve(turn, view)
        ripe = self.due(turn.created_at, turn.text)
        if answer is None:
            return self._told(turn, ripe)
        if isinstance(answer, Ambiguous):
            return Heard(False, tuple(ripe), ambiguous=answer, why="ambiguous")
        if answer.due is not None:
            if not answer.empty:
                self.pending.append(_without_news(answer))
            return Heard(False, tuple(ripe), besides=answer.replacement, why="waits")
        why = "acknowledgement" if "acknowledgement" in answer.reasons else "request"
        self.forgotten.add((*answer.strings, *answer.names))
        gone = {*answer.strings}
        self.pending = [p for p in self.pending if not (p.strings and gone.issuperset(p.strings))]
        return Heard(False, (*ripe, answer), why=why)

    def due(self, now: int | None, told: str = "") -> list[ForgetPlan]:
        """Take out the waiting plans whose time has come, or whose condition this turn tells."""
        ripe = [plan for plan in self.pending if self._ripe(plan, now, told)]
        self.pending = [plan for plan in self.pending if plan not in ripe]
        for plan in ripe:
            self.forgotten.add((*plan.strings, *plan.names))
        return ripe

    def _told(self, turn: Remembered, ripe: list[ForgetPlan]) -> Heard:
        if any(holds_any(turn.text, plan.strings) for plan in ripe):
            return Heard(False, tuple(ripe), why="restates")
        if self.forgotten.echoed_by(turn.text):
            return Heard(False, tuple(ripe), why="echo")
        return Heard(True, tuple(ripe))

    def _ripe(self, plan: ForgetPlan, now: int | None, told: str) -> bool:
        if isinstance(plan.due, Event):
            # "Cleanup completed": whatever waited for an event has happened.
            done = _COMPLETED.search(told) is not None
            return done or plan.due.met_by(told, self._key)
        return plan.due is None or (now is not None and now >= plan.due)


def _without_news(plan: ForgetPlan) -> ForgetPlan:
    """A plan that waits: what its turn told besides is stored at once, and only once."""
    selectors = tuple(
        replace(selector, new=None) if isinstance(selector, Replacement) else selector
        for selector in plan.selectors
    )
    return replace(plan, selectors=selectors, replacement=None)
