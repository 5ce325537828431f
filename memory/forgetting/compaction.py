"""Which cases to keep when not all can stay: policies as pure functions.

A policy gives every case a value; what is kept is taken by falling value (ties: the newer, then the
lower id) as long as the budget lasts. A case that does not fit is passed over for a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from memory.errors import InvalidInput, shown

#: A run's outcome counts as one of this many, the others being even: few runs prove little.
_PRIOR_RUNS = 2.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What may stay: at most this many live cases, and this many bytes of words and vectors.

    Words count as UTF-8, vectors as they are stored; indexes and the engine's own overhead do not
    count. A vector that several cases share counts for each.
    """

    cases: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.cases is None and self.bytes is None:
            raise InvalidInput("a budget needs cases or bytes")
        for name in ("cases", "bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(f"budget.{name} = {shown(value)}: must be an integer")
            if value < 0:
                raise InvalidInput(f"budget.{name} = {value}: 0 or more")


@dataclass(frozen=True, slots=True)
class CaseUse:
    """What is known of a case's cost and use.

    `time` is when it was told, else stored, in microseconds. `shown` counts the runs that showed
    it, `scored` those of them with an outcome, `outcomes` is the sum of these.
    """

    id: int
    size: int
    time: int
    outcome: float | None = None
    shown: int = 0
    scored: int = 0
    outcomes: float = 0.0


Policy: TypeAlias = Callable[[CaseUse], float]


def newest(case: CaseUse) -> float:
    """What was told last stays."""
    return float(case.time)


def most_shown(case: CaseUse) -> float:
    """What searches keep finding stays."""
    return float(case.shown)


def best_outcome(case: CaseUse) -> float:
    """What went well stays; unknown counts as even."""
    return 0.5 if case.outcome is None else case.outcome


def most_helpful(case: CaseUse) -> float:
    """What was shown in runs that went well stays: their mean outcome, shrunk towards even."""
    return (case.outcomes + 0.5 * _PRIOR_RUNS) / (case.scored + _PRIOR_RUNS)


def helpful_per_byte(case: CaseUse) -> float:
    """`most_helpful` by size: the greedy rule for a knapsack."""
    return most_helpful(case) / max(1, case.size)


POLICIES: dict[str, Policy] = {
    policy.__name__: policy
    for policy in (newest, most_shown, best_outcome, most_helpful, helpful_per_byte)
}


def keep(cases: Sequence[CaseUse], budget: Budget, policy: Policy) -> list[int]:
    """Ids of the cases that stay, ascending.

    Raises:
        InvalidInput: the policy gave a case no number; nothing compares with NaN.
    """
    values = {case.id: _value(policy, case) for case in cases}
    left_cases = len(cases) if budget.cases is None else budget.cases
    left_bytes = sum(c.size for c in cases) if budget.bytes is None else budget.bytes
    kept = []
    for case in sorted(cases, key=lambda c: (-values[c.id], -c.time, c.id)):
        if left_cases > 0 and case.size <= left_bytes:
            kept.append(case.id)
            left_cases -= 1
            left_bytes -= case.size
    return sorted(kept)


def _value(policy: Policy, case: CaseUse) -> float:
    value = float(policy(case))
    if math.isnan(value):
        name = getattr(policy, "__name__", type(policy).__name__)
        raise InvalidInput(f"policy {name} gave case {case.id} the value NaN: return a number")
    return value


def named_policy(name: str) -> Policy:
    """The policy of this name."""
    if name not in POLICIES:
        raise InvalidInput(f"policy = {name!r}: one of {', '.join(POLICIES)}")
    return POLICIES[name]
