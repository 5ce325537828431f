"""What a request becomes: a plan to forget, or the candidates between which somebody must choose.

Nothing here forgets anything. The texts of a plan stay out of its `repr`, so that a plan in a log
line does not keep what it was made to remove; `reasons` are codes without text, `explain` is for
the person who asked.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from memory.case import NewCase
from memory.forgetting.selectors import ByIds, Selector
from memory.requests.words import content_stems


class Kind(StrEnum):
    """The six kinds of BEMULA, by what a request is aimed at."""

    FACT = "F1_one_fact"
    COMBINATION = "F2_combination"
    CATEGORY = "F3_category"
    DERIVED = "F4_derived_fact"
    SPAN = "F5_time_span"
    REPLACEMENT = "F6_replacement"


@dataclass(frozen=True, slots=True)
class Remembered:
    """One record of a namespace as requests see it; `order` rises in the order of telling."""

    id: int
    text: str
    speaker: str | None = None
    created_at: int | None = None  # microseconds UTC
    order: int = 0
    kind: str = "turn"
    tags: tuple[str, ...] = ()
    source: str | None = None


class RecordView(Protocol):
    """The records of one namespace, read only."""

    def records(self) -> Iterable[Remembered]:
        """Every record, in the order of telling."""
        ...

    def recent(self, count: int) -> Sequence[Remembered]:
        """The last `count` records, the latest last."""
        ...

    def having(self, words: Collection[str]) -> Iterable[Remembered]:
        """Every record that holds one of these words (`words.keys`); more may come, none lacks."""
        ...

    def search(self, text: str, k: int) -> Sequence[tuple[int, float]]:
        """The k records nearest to `text` as (id, score), best first; scores are the view's own."""
        ...

    def get(self, record_id: int) -> Remembered:
        """The record with this id, which the view has named before."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """A condition without a date ("once the audit is done"), kept as keyed digests of its words.

    It is taken as met when one later turn says, without a negation, at least the share `needed` of
    its words.
    """

    digests: frozenset[str]
    needed: float = 0.6

    @classmethod
    def of(cls, condition: str, key: bytes) -> Event:
        """The event of these words."""
        return cls(frozenset(_digest(stem, key) for stem in content_stems(condition)))

    def met_by(self, text: str, key: bytes) -> bool:
        """Whether a turn tells that it happened."""
        if not self.digests:
            return False
        told = {_digest(stem, key) for stem in content_stems(text)}
        return len(self.digests & told) >= self.needed * len(self.digests)


#: None: now. A number: at that moment, microseconds UTC.
Due: TypeAlias = int | Event | None


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """What to forget and when; carried out by whoever owns the records.

    `strings` are the exact values: every record of the namespace that states one of them is meant,
    also one told after the request. `names` are those that stood for little else than these values;
    their records were chosen one by one, and a turn that only speaks of them is not stored. `ids`
    are the records found when the plan was made, including those that name a value in other words.
    `replacement` is stored as a fresh case afterwards: the new value, or what else the turn told.
    """

    kind: Kind
    selectors: tuple[Selector, ...] = field(repr=False)
    strings: tuple[str, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)
    keep: tuple[str, ...] = field(default=(), repr=False)
    due: Due = None
    replacement: NewCase | None = field(default=None, repr=False)
    unclear: tuple[int, ...] = ()  # records of the parts of the request that nothing decides
    confidence: float = 1.0
    reasons: tuple[str, ...] = ()
    explain: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ids(self) -> tuple[int, ...]:
        """The records that the selectors name by id, in rising order."""
        named: set[int] = set()
        for selector in self.selectors:
            ids = selector.ids if isinstance(selector, ByIds) else getattr(selector, "ids", ())
            named.update(ids)
        return tuple(sorted(named))

    @property
    def empty(self) -> bool:
        """Whether nothing was found that the request could mean."""
        return not self.selectors


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """More than one thing could be meant; nothing is forgotten until somebody chooses."""

    candidates: tuple[int, ...]
    why: str
    reasons: tuple[str, ...] = ()


class Resolver(Protocol):
    """Turns a request into a plan over the records of one namespace."""

    def resolve(self, request: Remembered, view: RecordView) -> ForgetPlan | Ambiguous | None:
        """The plan; `Ambiguous` where a guess would be needed; None where nothing is asked."""
        ...


def _digest(word: str, key: bytes) -> str:
    return hmac.new(key, word.encode(), hashlib.sha256).hexdigest()[:24]
