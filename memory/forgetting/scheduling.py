"""Requests to forget that take effect later: kept until they are due, then carried out and erased.

Until then the bank must know what it will forget, so the request's own words are stored, in a table
that nothing searches; they go with everything else when it is carried out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert, select

from memory.checks import DEFAULT_NAMESPACE, checked_namespace, checked_text
from memory.errors import BankError, NotFound
from memory.forgetting.forgetting import Forgetting, Request
from memory.forgetting.receipts import Receipt
from memory.forgetting.selectors import Selector, selector_from_json, selector_to_json
from memory.schema import namespaces, scheduled
from memory.storage.erasing import owe, pay
from memory.storage.namespaces import changed_namespace, namespace_state
from memory.storage.store import Store
from memory.storage.wiping import wipe
from memory.times import microseconds, now

#: Due when something happens, not at a time: later than every time there is.
UPON_EVENT = 2**62


@dataclass(frozen=True, slots=True)
class Due:
    """A request that waits: when it is due, and in which namespace. Never its words."""

    id: int
    namespace: str
    due_at: int
    actor: str | None


class Schedule:
    """The waiting requests of one open bank."""

    def __init__(self, store: Store, forgetting: Forgetting) -> None:
        self._store, self._forgetting = store, forgetting

    def add(
        self,
        what: Selector | Sequence[Selector],
        due_at: int | str | datetime,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: str = "purge",
        request: str | None = None,
        actor: str | None = None,
        event: Mapping[str, Any] | None = None,
    ) -> int:
        """Keep a request until it is due; its number. The arguments are those of `CaseBank.forget`.

        What it means is decided when it is carried out: what is told until then is covered too.
        `event` is kept for a conversation that waits for it, with `due_at=UPON_EVENT`.
        """
        selectors = tuple(what) if isinstance(what, list | tuple) else (what,)
        asked = Request(selectors, checked_namespace(namespace), mode, actor, request)
        # What is due since before 1970 is due now as well; 0 and below mark what is carried out.
        moment = UPON_EVENT if event is not None else max(1, microseconds(due_at))
        if request is not None:
            checked_text("request", request)
        body = {
            "selectors": [selector_to_json(selector) for selector in asked.selectors],
            "mode": asked.mode,
            "words": asked.words,
            "event": None if event is None else dict(event),
        }
        store = self._store
        with store.write() as connection:
            state = namespace_state(connection, store.keys, namespace)
            if state is None:  # what the request means may be told later
                state = changed_namespace(connection, store.keys, namespace, store.lexical)
            row = {
                "namespace_id": state.id,
                "due_at": moment,
                "request": json.dumps(body, ensure_ascii=False),
                "actor": actor,
            }
            made = connection.execute(insert(scheduled).returning(scheduled.c.id), [row])
            return int(made.scalar_one())

    def events(self, namespace: str) -> list[tuple[list[Selector], Mapping[str, Any]]]:
        """What waits for an event in a namespace: selectors, and the event as it was given."""
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return []
            rows = connection.execute(
                select(scheduled.c.request)
                .where(scheduled.c.namespace_id == state.id, scheduled.c.due_at == UPON_EVENT)
                .order_by(scheduled.c.id)
            )
            bodies = [json.loads(body) for body in rows.scalars()]
        return [
            ([selector_from_json(selector) for selector in body["selectors"]], body["event"])
            for body in bodies
            if body.get("event") is not None
        ]

    def happened(self, event: Mapping[str, Any], namespace: str) -> int:
        """Take what waited for an event out, for whoever carries it out; how many there were."""
        gone = 0
        with self._store.write() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return 0
            waiting = select(scheduled.c.id, scheduled.c.request).where(
                scheduled.c.namespace_id == state.id, scheduled.c.due_at == UPON_EVENT
            )
            for number, body in connection.execute(waiting).all():
                if json.loads(body).get("event") == dict(event):
                    _take(number, connection)
                    gone += 1
        return gone

    def waiting(self) -> list[Due]:
        """The requests that wait, the next first."""
        with self._store.read() as connection:
            rows = connection.execute(
                select(scheduled.c.id, namespaces.c.name, scheduled.c.due_at, scheduled.c.actor)
                .join(namespaces, namespaces.c.id == scheduled.c.namespace_id)
                .where(scheduled.c.due_at > 0)
                .order_by(scheduled.c.due_at, scheduled.c.id)
            )
            return [Due(*row) for row in rows]

    def cancel(self, number: int) -> None:
        """Take a waiting request back.

        Raises:
            NotFound: no request of this number waits.
        """
        with self._store.write() as connection:
            if not wipe(connection, scheduled, scheduled.c.id == number):
                raise NotFound(f"no request {number} waits; it was carried out or cancelled")
            owe(connection)
        pay(self._store, self._store.config.erase_timeout_s)

    def run(
        self, moment: int | str | datetime | None = None, *, namespace: str | None = None
    ) -> list[Receipt]:
        """Carry out what is due at a moment (now), the oldest first.

        One that fails goes on waiting and keeps no other from being carried out; the first error is
        raised in the end, when the receipts of the others are in the bank.

        Args:
            moment: what is due at it, or was before.
            namespace: only there; everywhere if not given.
        """
        until = now() if moment is None else microseconds(moment)
        done: list[Receipt] = []
        failed: list[BankError] = []
        for due in self.waiting():
            if due.due_at > until:
                break
            if namespace not in (None, due.namespace):
                continue
            try:
                receipt = self._carry_out(due)
            except BankError as error:
                failed.append(error)
                continue
            if receipt is not None:
                done.append(receipt)
        if done:
            pay(self._store, self._store.config.erase_timeout_s)
        if failed:
            raise failed[0]
        return done

    def _carry_out(self, due: Due) -> Receipt | None:
        """Forget what a request names; None if somebody else just did."""
        with self._store.read() as connection:
            body = connection.execute(
                select(scheduled.c.request).where(scheduled.c.id == due.id, scheduled.c.due_at > 0)
            ).scalar_one_or_none()
        if body is None:
            return None
        row = json.loads(body)
        request = Request(
            tuple(selector_from_json(selector) for selector in row["selectors"]),
            due.namespace,
            mode=row["mode"],
            actor=due.actor,
            words=row["words"],
        )
        try:
            # In the same transaction: a replacement must not be stored twice.
            return self._forgetting.forget(request, also=partial(_take, due.id))
        except _Taken:
            return None


class _Taken(Exception):
    """Another process carried the request out meanwhile: undo what this one did."""


def _take(number: int, connection: Connection) -> None:
    if not wipe(connection, scheduled, scheduled.c.id == number):
        raise _Taken
    owe(connection)
