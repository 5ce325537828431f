"""Taking cases out of a bank by rule instead of by request: a budget, or a whole namespace.

Unlike a purge, neither follows copies or lineage: a budget says how much stays, not what must never
return, so what it removes may be stored again, and what was derived from it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Table,
    cast,
    delete,
    func,
    select,
    update,
)

from memory.errors import NotFound
from memory.exchange.exporting import purge_exports
from memory.forgetting.compaction import Budget, CaseUse, Policy, keep
from memory.forgetting.receipts import (
    PENDING,
    Receipt,
    change_receipt,
    load_receipts,
    new_uid,
    store_receipt,
)
from memory.forgetting.removing import drop_cases
from memory.schema import (
    case_tags,
    case_vectors,
    cases,
    exports,
    forgotten,
    idempotency,
    imports,
    lineage,
    receipts,
    removals,
    run_texts,
    runs,
    scheduled,
    shown,
    texts,
    vectors,
)
from memory.sinks import Gone, Sinks
from memory.storage.erasing import owe
from memory.storage.namespaces import (
    changed_namespace,
    namespace_key,
    namespace_state,
    next_change,
    remove_namespace,
)
from memory.storage.rows import Place, cases_by_id, chunks
from memory.storage.store import Store
from memory.storage.wiping import wipe
from memory.times import now

_PAGE = 1000


def compact(
    store: Store,
    namespace: str,
    budget: Budget,
    policy: Policy,
    sinks: Sinks,
    *,
    actor: str | None,
    dry_run: bool,
) -> Receipt:
    """Keep what fits a budget; see `CaseBank.compact`."""
    with store.read() if dry_run else store.write() as connection:
        state = namespace_state(connection, store.keys, namespace)
        uses = [] if state is None else list(case_uses(connection, state.id))
        stays = set(keep(uses, budget, policy))
        goes = [use.id for use in uses if use.id not in stays]
        freed = sum(use.size for use in uses if use.id not in stays)
        receipt = _receipt(namespace, "compact", actor, goes, {"bytes": freed}, dry_run)
        if state is None:
            return replace(receipt, uid="")  # there is nowhere to keep it
        if dry_run:
            return receipt
        if goes:
            receipt = _compacted(connection, store, namespace, receipt, sinks)
        store_receipt(connection, receipt, state.id)
    return receipt


def _compacted(
    connection: Connection, store: Store, namespace: str, receipt: Receipt, sinks: Sinks
) -> Receipt:
    """Drop the cases of a receipt, some at a time; the receipt with what went."""
    raised = changed_namespace(connection, store.keys, namespace, store.lexical)
    place = Place.of(store, raised.id, raised.version)
    counts = Counter(receipt.counts)
    unreached: set[str] = set()
    for part in chunks(receipt.ids, _PAGE):
        found = cases_by_id(connection, raised.id, namespace, part)
        counts.update(drop_cases(connection, place, part))
        dropped, silent = sinks.purge(Gone(namespace, tuple(found.values()), (), lambda _: False))
        counts.update({f"sink:{name}": count for name, count in dropped.items()})
        unreached.update(silent)
    owe(connection)
    return replace(receipt, counts=dict(counts), erased=PENDING, unreached=tuple(sorted(unreached)))


def case_uses(connection: Connection, namespace_id: int) -> Iterable[CaseUse]:
    """What every live case costs and how it was used, by id."""
    t, c = texts.c, cases.c
    words = sum(
        (
            _bytes_of(connection, column)
            for column in (t.query, t.plan, t.tags, t.source, t.metadata, t.derived_from)
        ),
        start=_bytes_of(connection, t.external_id),
    )
    held = (
        select(func.coalesce(func.sum(func.length(vectors.c.vector)), 0))
        .join(case_vectors, case_vectors.c.vector_id == vectors.c.id)
        .where(case_vectors.c.case_id == c.id)
        .scalar_subquery()
    )
    used = (
        select(
            shown.c.case_id,
            func.count().label("shown"),
            func.count(runs.c.outcome).label("scored"),
            func.coalesce(func.sum(runs.c.outcome), 0.0).label("outcomes"),
        )
        .join(runs, runs.c.id == shown.c.run_id)
        .where(runs.c.namespace_id == namespace_id)
        .group_by(shown.c.case_id)
        .subquery()
    )
    rows = connection.execute(
        select(
            c.id,
            (words + held).label("size"),
            func.coalesce(c.created_at, c.stored_at).label("time"),
            c.outcome,
            func.coalesce(used.c.shown, 0).label("shown"),
            func.coalesce(used.c.scored, 0).label("scored"),
            func.coalesce(used.c.outcomes, 0.0).label("outcomes"),
        )
        .join(texts, t.case_id == c.id)
        .outerjoin(used, used.c.case_id == c.id)
        .where(c.namespace_id == namespace_id, c.invalidated_at.is_(None))
        .order_by(c.id)
    )
    for row in rows:
        yield CaseUse(
            int(row.id),
            int(row.size),
            int(row.time),
            row.outcome,
            int(row.shown),
            int(row.scored),
            float(row.outcomes),
        )


def _bytes_of(connection: Connection, column: ColumnElement[Any]) -> ColumnElement[int]:
    """How many bytes a text has as UTF-8, 0 for none; `length` of a text counts characters."""
    if connection.dialect.name == "postgresql":
        return func.coalesce(func.octet_length(column), 0)
    return func.coalesce(func.length(cast(column, LargeBinary)), 0)


def delete_namespace(store: Store, namespace: str, sinks: Sinks, *, actor: str | None) -> Receipt:
    """Delete a namespace with everything in it, its name too; see `CaseBank.delete_namespace`.

    The receipt's one digest is that of the name, so that a restored backup can delete it again.
    """
    with store.write() as connection:
        state = namespace_state(connection, store.keys, namespace)
        if state is None:
            raise NotFound(f"there is no namespace {namespace!r}; nothing was deleted")
        ids = _ids(connection, state.id)
        everything = Gone(namespace, (), (), lambda _: True)
        files, missed = purge_exports(connection, state.id, everything)
        counts, silent = sinks.purge(everything)
        counted = {"exports": files}
        counted.update({f"sink:{name}": count for name, count in counts.items()})
        counted.update(delete_rows(connection, state.id))
        for _, old in load_receipts(connection, store.keys, namespace, limit=2**31):
            change_receipt(connection, replace(old, namespace=""))
        connection.execute(
            update(receipts).where(receipts.c.namespace_id == state.id).values(namespace_id=None)
        )
        next_change(connection)
        remove_namespace(connection, state.id)
        owe(connection)
        receipt = replace(
            _receipt("", "namespace", actor, ids, counted, dry_run=False),
            digests=(namespace_key(store.keys, namespace).hex(),),
            erased=PENDING,
            unreached=tuple([*missed, *silent]),
        )
        store_receipt(connection, receipt, None)
    return receipt


def delete_rows(connection: Connection, namespace_id: int) -> dict[str, int]:
    """Every row that hangs on a namespace, the dependent ones first; how many of each."""
    mine = select(cases.c.id).where(cases.c.namespace_id == namespace_id)
    asked = select(runs.c.id).where(runs.c.namespace_id == namespace_id)
    by_case: Sequence[tuple[Table, object]] = (
        (shown, shown.c.run_id.in_(asked)),
        (case_vectors, case_vectors.c.case_id.in_(mine)),
    )
    counts = {
        "texts": wipe(connection, texts, texts.c.case_id.in_(mine)),
        "run_texts": wipe(connection, run_texts, run_texts.c.run_id.in_(asked)),
        "scheduled": wipe(connection, scheduled, scheduled.c.namespace_id == namespace_id),
    }
    for table, condition in by_case:
        counts[table.name] = connection.execute(delete(table).where(condition)).rowcount  # type: ignore[arg-type]
    for table in (
        runs,
        case_tags,
        lineage,
        vectors,
        cases,
        removals,
        imports,
        exports,
        idempotency,
        forgotten,
    ):
        gone = connection.execute(delete(table).where(table.c.namespace_id == namespace_id))
        counts[table.name] = gone.rowcount
    return {name: count for name, count in counts.items() if count and name != "cases"}


def _ids(connection: Connection, namespace_id: int) -> list[int]:
    query = select(cases.c.id).where(cases.c.namespace_id == namespace_id).order_by(cases.c.id)
    return [int(id_) for id_ in connection.execute(query).scalars()]


def _receipt(
    namespace: str,
    mode: str,
    actor: str | None,
    ids: Sequence[int],
    counts: dict[str, int],
    dry_run: bool,
) -> Receipt:
    return Receipt(
        uid="" if dry_run else new_uid(),
        namespace=namespace,
        mode=mode,
        created_at=now(),
        actor=actor,
        ids=tuple(ids),
        counts={"cases": len(ids), **counts},
        dry_run=dry_run,
    )
