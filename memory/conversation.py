"""A namespace that is spoken to: turns are stored, requests to forget are carried out, not stored.

    with CaseBank.open("bank.db") as bank:
        talk = Conversation(bank, namespace="ann")
        talk.tell(NewCase("My number is 415-555-0186.", kind="turn"))
        talk.tell(NewCase("Please forget my number.", kind="turn")).receipts

What is asked for later waits in the bank (`CaseBank.schedule`): what is due at a time is carried
out by whoever runs the schedule, what is due upon an event by the conversation that hears of it,
also after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memory.bank import CaseBank
from memory.case import Case, NewCase
from memory.checks import DEFAULT_NAMESPACE
from memory.errors import InvalidInput
from memory.forgetting.receipts import Receipt
from memory.forgetting.scheduling import UPON_EVENT
from memory.forgetting.selectors import ByDerivedFact, ByIds, ByStrings, Replacement, Selector
from memory.requests import (
    Ambiguous,
    Event,
    ForgetPlan,
    Forgotten,
    Kind,
    Listener,
    Remembered,
    Resolver,
    RuleResolver,
    current_ids,
)
from memory.requests.view import fused
from memory.storage.rows import spoken
from memory.text.matching import unspaced
from memory.times import now

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a turn.

    Attributes:
        id: the case it was stored as; None where it was a request, or only repeats what is gone.
        receipts: of what was forgotten because of it, or was due by now.
        replaced_by: cases stored in place of what went, or of what else the turn told.
        ambiguous: the candidates, where a request could mean several things; nothing was forgotten.
        why: told | request | acknowledgement | waits | ambiguous | restates | echo.
    """

    id: int | None
    receipts: tuple[Receipt, ...] = ()
    replaced_by: tuple[int, ...] = ()
    ambiguous: Ambiguous | None = None
    why: str = "told"


class Conversation:
    """The turns of one namespace, told in order.

    Args:
        bank: where they are kept; its embeddings, if it has some, help to find what is meant.
        namespace: whose turns.
        resolver: turns requests into plans; rules if not given, while
            `memory.requests.LLMResolver` asks a model.
        actor: who speaks, for the receipts.
        clock: tells when a turn without `created_at` is told; None: nobody knows, and what is due
            at a time waits for a turn that says when it was told, or for `CaseBank.schedule.run`.
    """

    def __init__(
        self,
        bank: CaseBank,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        resolver: Resolver | None = None,
        actor: str | None = None,
        clock: Callable[[], int] | None = now,
    ) -> None:
        self._bank, self._namespace, self._actor = bank, namespace, actor
        self._clock = clock
        key = bank.secret_for("requests", namespace)
        digests = [
            (int(size), digest)
            for receipt in bank.receipts(namespace)
            for size, _, digest in (echo.partition(":") for echo in receipt.echoes)
        ]
        self._listener = Listener(
            resolver or RuleResolver(key),
            key,
            pending=tuple(self._waiting()),
            forgotten=Forgotten(key, digests),
        )

    def tell(self, turn: NewCase, *, wait: bool = True) -> Told:
        """Hear one turn: store it, or do what it asks.

        Args:
            turn: what was said; `created_at` is when, and decides what is due.
            wait: embed before returning.
        """
        moment = turn.created_at
        if moment is None and self._clock is not None:
            moment = self._clock()
        receipts: list[Receipt] = []
        if moment is not None:
            receipts += self._bank.schedule.run(moment, namespace=self._namespace)
        records = BankRecords(self._bank, self._namespace)
        waited = {plan: None for plan in self._listener.pending}
        heard = self._listener.hear(_remembered(0, turn, 0), records)
        made: list[int] = []
        for plan in heard.plans:
            receipt = self._carry_out(plan, turn, records)
            receipts.append(receipt)
            made += receipt.replaced_by
        for plan in list(self._listener.pending):
            if plan not in waited:
                self._keep(plan, turn)
        if heard.besides is not None:
            made += self._bank.add([heard.besides], namespace=self._namespace, wait=wait)
        id_ = None
        if heard.store:
            (id_,) = self._bank.add([turn], namespace=self._namespace, wait=wait)
        return Told(id_, tuple(receipts), tuple(made), heard.ambiguous, heard.why)

    def choose(self, ids: Iterable[int], request: str | None = None) -> Receipt:
        """Forget what somebody chose among the candidates of an ambiguous request."""
        return self._bank.forget(
            ByIds(tuple(ids)), namespace=self._namespace, request=request, actor=self._actor
        )

    def _carry_out(self, plan: ForgetPlan, turn: NewCase, records: BankRecords) -> Receipt:
        receipt = _forget(self._bank, self._namespace, plan, turn.query, records, self._actor)
        if isinstance(plan.due, Event):
            # Last: a crash in between has it carried out once more, not lost.
            self._bank.schedule.happened(_as_json(plan.due), self._namespace)
        return receipt

    def _keep(self, plan: ForgetPlan, turn: NewCase) -> None:
        """Have the bank keep a plan that waits; what is due at a time leaves the listener."""
        selectors = list(plan.selectors)
        schedule = self._bank.schedule
        if isinstance(plan.due, Event):
            schedule.add(
                selectors,
                UPON_EVENT,
                namespace=self._namespace,
                request=turn.query,
                actor=self._actor,
                event=_as_json(plan.due),
            )
            return
        self._listener.pending.remove(plan)
        if plan.due is not None:
            schedule.add(
                selectors,
                plan.due,
                namespace=self._namespace,
                request=turn.query,
                actor=self._actor,
            )

    def _waiting(self) -> Iterator[ForgetPlan]:
        """Plans that wait for an event, from an earlier life."""
        for selectors, event in self._bank.schedule.events(self._namespace):
            strings = [s for one in selectors if isinstance(one, ByStrings) for s in one.strings]
            yield ForgetPlan(
                kind=Kind.FACT,
                selectors=tuple(selectors),
                strings=tuple(strings),
                due=Event(frozenset(event["digests"]), float(event["needed"])),
            )


def _as_json(event: Event) -> dict[str, Any]:
    return {"digests": sorted(event.digests), "needed": event.needed}


def request(
    bank: CaseBank,
    words: str,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    resolver: Resolver | None = None,
    actor: str | None = None,
    dry_run: bool = False,
) -> Receipt | Ambiguous | None:
    """Carry out one request in plain words, without a conversation around it.

    Returns:
        What went (or would go); the candidates where it could mean several things; None where
        nothing is asked to be forgotten, or nothing is found that could be meant.

    Raises:
        InvalidInput: it takes effect later; a `Conversation` keeps it until then.
    """
    asked = resolver or RuleResolver(bank.secret_for("requests", namespace))
    records = BankRecords(bank, namespace)
    spoken_now = NewCase(words, kind="turn", created_at=now())
    plan = asked.resolve(_remembered(0, spoken_now, 0), records)
    if plan is None or isinstance(plan, Ambiguous):
        return plan
    if plan.due is not None:
        raise InvalidInput(
            "this request takes effect later: tell it to a Conversation, or put what it means into "
            "the bank's schedule (`precedent forget ... --at TIME`)"
        )
    if plan.empty:
        return None
    return _forget(bank, namespace, plan, words, records, actor, dry_run=dry_run)


def _forget(
    bank: CaseBank,
    namespace: str,
    plan: ForgetPlan,
    words: str,
    records: BankRecords,
    actor: str | None,
    *,
    dry_run: bool = False,
) -> Receipt:
    selectors: list[Selector] = [ByIds(tuple(current_ids(plan, records)))]
    if plan.replacement is not None:
        selectors.append(Replacement(ids=plan.ids or (0,), new=plan.replacement))
    selectors += [selector for selector in plan.selectors if isinstance(selector, ByDerivedFact)]
    forgotten = Forgotten(bank.secret_for("requests", namespace))
    forgotten.add((*plan.strings, *plan.names))
    return bank.forget(
        selectors,
        namespace=namespace,
        request=words,
        actor=actor,
        strings=plan.strings,
        echoes=[f"{size}:{digest}" for size, digest in forgotten.digests()],
        dry_run=dry_run,
    )


class BankRecords:
    """The live cases of a namespace as requests see them (`memory.requests.RecordView`)."""

    def __init__(self, bank: CaseBank, namespace: str) -> None:
        self._bank, self._namespace = bank, namespace

    def records(self) -> Iterable[Remembered]:
        """Every record, in the order of telling."""
        after: int | None = None
        while page := self._bank.list(namespace=self._namespace, after=after, limit=_PAGE):
            yield from map(_record, page)
            after = page[-1].id

    def recent(self, count: int) -> Sequence[Remembered]:
        """The last `count` records, the latest last."""
        if count < 1:
            return []
        return [_record(case) for case in self._bank.newest(count, namespace=self._namespace)]

    def having(self, words: Collection[str]) -> Iterable[Remembered]:
        """Every record that may hold one of these words."""
        if any(map(unspaced, words)):
            return self.records()  # a part of what the index takes for one word
        ids = self._bank.may_hold(words, namespace=self._namespace)
        if ids is None:
            return self.records()
        return [_record(case) for case in self._live(ids)]

    def search(self, text: str, k: int) -> Sequence[tuple[int, float]]:
        """The k records nearest to a text by BM25, fused with the cosine if there are vectors."""
        ranked = [self._bank.search_text(text, 2 * k, namespace=self._namespace)]
        similar = self._bank.similar(text, namespace=self._namespace)
        if similar:
            ranked.append(sorted(similar.items(), key=lambda item: (-item[1], item[0]))[: 2 * k])
        return fused(ranked)[:k]

    def get(self, record_id: int) -> Remembered:
        """The record with this id."""
        (case,) = self._bank.get([record_id], namespace=self._namespace)
        return _record(case)

    def _live(self, ids: Sequence[int]) -> list[Case]:
        return list(self._bank.known(ids, namespace=self._namespace).values())


def _record(case: Case) -> Remembered:
    return _remembered(case.id, case, case.id)


def _remembered(id_: int, case: NewCase, order: int) -> Remembered:
    speaker: Any = case.metadata.get("speaker")
    return Remembered(
        id=id_,
        text=spoken(case),
        speaker=speaker if isinstance(speaker, str) else None,
        created_at=case.created_at,
        order=order,
        kind=case.kind,
        tags=case.tags,
        source=case.source,
    )
