"""The physical half of forgetting: until it is done, a bank owes it.

Deleting rows takes words out of every answer; their bytes may still lie in a write-ahead log, in
dead rows, in a server's own log. A transaction that takes words away notes the debt (`owe`), and
whoever pays it marks the receipts that waited for it. A crash in between loses neither.

SQLite can pay at once (`pay`), unless a reader still has an older state open: then the next write,
`verify`, opening the bank, or `erase` pays. PostgreSQL pays by a job (`erase`) whose state is kept
in the bank, so that an interrupted one goes on where it stopped; `database/postgres_erase.py` has
its steps.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import Connection, delete, func, insert, select, update

from memory.errors import BankUnavailable
from memory.schema import meta, namespaces, receipts
from memory.storage.database import postgres_erase
from memory.storage.database.postgres import PostgresDatabase
from memory.storage.database.sqlite import SqliteDatabase
from memory.storage.store import Store
from memory.storage.wiping import sweep
from memory.text import lexical

log = logging.getLogger(__name__)

OWED = "erase_owed"
JOB = "erase_job"

#: How long writers are kept waiting for readers at a time, and let go on in between.
_PIECE_S, _PAUSE_S = 0.1, 0.01

#: Called with a step's name, how many steps are done, and of how many.
EraseProgress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ErasureState:
    """How far the bytes of deleted words are overwritten.

    Attributes:
        state: `done`, or `pending`.
        reason: why it is pending, and what helps; None when done.
        steps: how many steps of the job under way are done, where the engine needs a job.
        of_steps: of how many.
        receipts: how many receipts wait for it.
    """

    state: str
    reason: str | None = None
    steps: int = 0
    of_steps: int = 0
    receipts: int = 0

    @property
    def done(self) -> bool:
        """Nothing is owed."""
        return self.state == "done"


@dataclass(slots=True)
class _Debt:
    """What is owed: everything deleted until it was noted, for receipts up to one."""

    name: str
    receipt: int


@dataclass(slots=True)
class _Job:
    """A job under way, as it is kept in `meta`."""

    debt: str
    receipt: int
    home: str  # the server and schema that it works on: a restored bank may be elsewhere
    done: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)  # what later steps need of earlier ones


def owe(connection: Connection) -> None:
    """Note, in the transaction that deletes words, that their bytes are still to be erased."""
    # No two debts are alike: what is deleted while an earlier one is paid stays owed.
    _keep(connection, OWED, secrets.token_hex(8))


def owed(connection: Connection) -> str | None:
    """The name of the debt; None if no deleted bytes may still be there."""
    return _kept(connection, OWED)


def pay(store: Store, timeout_s: float) -> bool:
    """Erase what is owed, if the engine can do so now; whether nothing is owed any more.

    Raises nothing that a later attempt may mend: what was written before is acknowledged all the
    same, and the debt stays noted.
    """
    try:
        debt = _debt(store)
        if debt is None:
            return True
        if isinstance(store.database, PostgresDatabase):
            return False  # that takes a job
        with store.database.translated():
            erased = _emptied(store, timeout_s)
        return erased and _paid(store, debt)
    except BankUnavailable as error:
        log.warning("the bytes of deleted words are not erased yet: %s", error)
        return False


def erasure(store: Store) -> ErasureState:
    """How things stand; nothing is done."""
    with store.read() as connection:
        debt, job = owed(connection), _job(connection)
        count = select(func.count()).select_from(receipts).where(receipts.c.erased == "pending")
        waiting = int(connection.execute(count).scalar_one())
    if debt is None:
        return ErasureState("done", receipts=waiting)
    reason = "deleted words are not erased yet: call erase"
    total = len(postgres_erase.STEPS) if isinstance(store.database, PostgresDatabase) else 0
    return ErasureState("pending", reason, len(job.done) if job else 0, total, waiting)


def erase(
    store: Store, timeout_s: float, *, deep: bool = False, progress: EraseProgress | None = None
) -> ErasureState:
    """Erase what is owed, now, by whatever it takes; see `CaseBank.erase`."""
    if deep and _debt(store) is None:
        with store.write() as connection:
            owe(connection)
    if _debt(store) is None:
        return erasure(store)
    if isinstance(store.database, PostgresDatabase):
        reason = _run_job(store, store.database, timeout_s, progress)
    else:
        reason = _rewrite(store, timeout_s, deep, progress)
    state = erasure(store)
    if state.done:
        return state
    reason = reason or "more was deleted meanwhile: call erase again"
    return ErasureState("pending", reason, state.steps, state.of_steps, state.receipts)


def _emptied(store: Store, timeout_s: float) -> bool:
    """Have the engine erase at once, trying until a time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        wait_s = min(_PIECE_S, max(0.0, deadline - time.monotonic()))
        # In turn with the writers: one that merely tries now and then never finds a gap.
        with store.turn():
            if store.database.erase(wait_s):
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)


def _rewrite(
    store: Store, timeout_s: float, deep: bool, progress: EraseProgress | None
) -> str | None:
    """Erase in a file; why not, if not."""
    debt = _debt(store)
    assert debt is not None, "only called for a debt"
    tell = progress or _silent
    with store.database.translated():
        if deep and isinstance(store.database, SqliteDatabase):
            tell("rewrite the file", 0, 2)
            with store.write() as connection:
                sweep(connection)
                for namespace_id in list(connection.execute(select(namespaces.c.id)).scalars()):
                    lexical.tidy(connection, int(namespace_id))
            store.database.rewrite()
        tell("empty the log", int(deep), 1 + int(deep))
        if not _emptied(store, timeout_s):
            return (
                f"a reader or writer used an older state for longer than {timeout_s:g} s: call "
                "erase again; the next write tries as well"
            )
    _paid(store, debt)
    return None


def _run_job(
    store: Store, database: PostgresDatabase, timeout_s: float, progress: EraseProgress | None
) -> str | None:
    """Go on with the job, or begin one; why it stopped, if it did."""
    tell = progress or _silent
    deadline = time.monotonic() + timeout_s
    total = len(postgres_erase.STEPS)
    with postgres_erase.session(database) as connection:
        if not postgres_erase.claimed(connection):
            return "another process erases this bank just now: its job counts for all"
        job = _resumed(store, postgres_erase.home(connection))
        for number, step in enumerate(postgres_erase.STEPS):
            if step in job.done:
                continue
            tell(step, number, total)
            try:
                postgres_erase.perform(connection, step, job.facts, deadline)
            except postgres_erase.Blocked as blocked:
                _note(store, job)
                return str(blocked)
            job.done.append(step)
            _note(store, job)
        _paid(store, _Debt(job.debt, job.receipt))
        tell("done", total, total)
    return None


def _resumed(store: Store, home: str) -> _Job:
    with store.read() as connection:
        job = _job(connection)
    if job is None or job.home != home:
        debt = _debt(store)
        assert debt is not None, "only called for a debt"
        job = _Job(debt.name, debt.receipt, home)
        _note(store, job)
    return job


def _note(store: Store, job: _Job) -> None:
    with store.write() as connection:
        _keep(connection, JOB, json.dumps(asdict(job)))


def _job(connection: Connection) -> _Job | None:
    kept = _kept(connection, JOB)
    return None if kept is None else _Job(**json.loads(kept))


def _debt(store: Store) -> _Debt | None:
    with store.read() as connection:
        name = owed(connection)
        if name is None:
            return None
        last = connection.execute(select(func.coalesce(func.max(receipts.c.id), 0))).scalar_one()
    return _Debt(name, int(last))


def _paid(store: Store, debt: _Debt) -> bool:
    """Note that a debt is paid; False if more was deleted since, which stays owed."""
    with store.write() as connection:
        waited = (receipts.c.erased == "pending") & (receipts.c.id <= debt.receipt)
        connection.execute(update(receipts).where(waited).values(erased="done"))
        connection.execute(delete(meta).where(meta.c.key == JOB))
        if owed(connection) != debt.name:
            return False
        connection.execute(delete(meta).where(meta.c.key == OWED))
    return True


def _kept(connection: Connection, key: str) -> str | None:
    return connection.execute(select(meta.c.value).where(meta.c.key == key)).scalar_one_or_none()


def _keep(connection: Connection, key: str, value: str) -> None:
    connection.execute(delete(meta).where(meta.c.key == key))
    connection.execute(insert(meta), [{"key": key, "value": value}])


def _silent(*_: Any) -> None:
    """Nobody watches."""
