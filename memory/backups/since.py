"""What happened since a backup was made, and how a copy of it is brought up to that.

Everything that was removed is removed again, by compactions too: once they ran, no later request to
forget could name what they dropped. For the same reason a case that was updated gets its newer
words if anything was purged from its namespace since.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from memory.backups.backup import Told, receipts_of
from memory.backups.copying import id_counters, numbered_tables, raise_counters
from memory.case import NewCase
from memory.errors import ForeignBank
from memory.forgetting.forgetting import Request, gone_of
from memory.forgetting.receipts import Receipt, store_receipt
from memory.forgetting.removing import drop_cases
from memory.forgetting.retiring import delete_rows
from memory.runs import log as run_log
from memory.schema import (
    cases,
    change_sequence,
    exports,
    forgotten,
    namespaces,
    receipts,
    removals,
    runs,
    scheduled,
)
from memory.storage.namespaces import last_change, namespace_key, remove_namespace
from memory.storage.rows import Place, cases_by_id, chunks, rewrite_case
from memory.storage.store import Store, insert_new
from memory.storage.vectors import detach
from memory.storage.wiping import wiped
from memory.text import lexical

#: Ids, and numbers of changes, that a lost bank may have given out since its backup.
GAP = 2**24


@dataclass(slots=True)
class Since:
    """What the bank in place knows that its backup does not.

    Attributes:
        told: its receipts.
        names: its namespaces, by id.
        versions: version and namespace of every case, by id.
        newer: the words of cases that were updated since, by id.
        runs: the ids of its runs.
        exports: the rows that tell which files were written.
        scheduled: the requests that wait.
        counters: the last id given out in each table.
        change: the last change.
    """

    told: list[Told]
    names: dict[int, str]
    versions: dict[int, tuple[int, int]]
    newer: dict[int, NewCase]
    runs: set[int]
    exports: list[dict[str, Any]]
    scheduled: list[dict[str, Any]]
    counters: dict[str, int]
    change: int


@dataclass(slots=True)
class Done:
    """How many cases went again, under how many receipts; and how many updates were kept."""

    forgotten: int = 0
    receipts: int = 0
    updates: int = 0
    purged: set[int] = field(default_factory=set)  # namespaces that something was purged from


def since_backup(present: Store, connection: Connection, source: Store) -> Since | None:
    """What a bank did since; None where there is only an empty bank of another origin.

    Raises:
        ForeignBank: it is another bank than the backup's, and not empty.
    """
    told = receipts_of(present, connection)
    rows = connection.execute(select(namespaces.c.id, namespaces.c.name))
    names = {int(row.id): str(row.name) for row in rows}
    if present.uid != source.uid:
        if told or names:
            raise ForeignBank(
                f"{present.shown} is another bank (uid {present.uid}) than the backup's "
                f"({source.uid}); restore to another location"
            )
        return None
    versions = _versions(connection)
    with source.read() as backed_up:
        old = _versions(backed_up)
    newer: dict[int, NewCase] = {}
    for owner, name in names.items():
        updated = [i for i, (v, o) in versions.items() if o == owner and i in old and v > old[i][0]]
        found = cases_by_id(connection, owner, name, updated)
        newer.update({id_: case.as_new() for id_, case in found.items()})
    return Since(
        told,
        names,
        versions,
        newer,
        {int(id_) for id_ in connection.execute(select(runs.c.id)).scalars()},
        _rows(connection, exports),
        _rows(connection, scheduled),
        id_counters(connection),
        last_change(connection),
    )


def forget_since(
    source: Store, connection: Connection, since: Since | None, told: Sequence[Told]
) -> Done:
    """Apply to the copy of a backup what happened since; what that came to.

    Args:
        source: the copy.
        connection: a transaction of it that writes.
        since: what the bank in place knows; None where it is lost.
        told: receipts from a file.

    Raises:
        ForeignBank: receipts of another bank.
    """
    every = [*([] if since is None else since.told), *told]
    foreign = next((t.bank for t in every if t.bank != source.uid), None)
    if foreign is not None:
        raise ForeignBank(
            f"the receipts are those of another bank (uid {foreign}) than the backup's "
            f"({source.uid}); name a file of this bank's receipts"
        )
    seq = _raise_numbers(connection, since, every)
    known = set(connection.execute(select(receipts.c.uid)).scalars())
    done = Done()
    for item in {t.receipt.uid: t for t in every if t.receipt.uid not in known}.values():
        done.receipts += 1
        _forget_again(source, connection, seq, item, done)
    if since is not None:
        _follow(source, connection, seq, since, done)
    connection.execute(update(cases).values(seq=seq))  # a follower reads everything anew
    connection.execute(update(namespaces).values(version=seq))
    return done


def _raise_numbers(connection: Connection, since: Since | None, every: Sequence[Told]) -> int:
    """Raise the counters above all that was given out; the number of the change that this is."""
    highest = max((id_ for t in every for id_ in t.receipt.ids), default=0)
    last = last_change(connection)
    if since is None:
        counters = id_counters(connection)
        raise_counters(connection, {n: counters.get(n, 0) + GAP for n in numbered_tables()})
        last += GAP
    else:
        raise_counters(connection, since.counters)
        last = max(last, since.change)
    raise_counters(connection, {"cases": highest})
    connection.execute(update(change_sequence).values(value=last + 1))
    return last + 1


def _forget_again(source: Store, connection: Connection, seq: int, item: Told, done: Done) -> None:
    receipt = item.receipt
    owner = _owner(source, connection, seq, item)
    if receipt.mode == "namespace":
        for digest in receipt.digests:
            done.forgotten += _drop_namespace(connection, bytes.fromhex(digest))
    going = _still_there(connection, receipt)
    for namespace_id, ids in sorted(going.items()):
        done.forgotten += len(ids)
        if receipt.mode == "invalidate":
            _invalidate(connection, ids, receipt)
            continue
        place = Place.of(source, namespace_id, seq)
        if receipt.mode == "compact":
            drop_cases(connection, place, sorted(ids))
        else:
            _purge(connection, place, sorted(ids))
    number = store_receipt(connection, receipt, owner)
    if receipt.mode in ("purge", "retention") and owner is not None:
        done.purged.add(owner)
    if receipt.mode == "purge" and owner is not None:
        rows = [
            {"namespace_id": owner, "content_key": bytes.fromhex(digest), "receipt_id": number}
            for digest in sorted(set(receipt.digests))
        ]
        insert_new(connection, forgotten, rows)


def _owner(source: Store, connection: Connection, seq: int, item: Told) -> int | None:
    """The namespace of a receipt in the copy; made if the backup is older than it."""
    name = item.receipt.namespace
    if not name or item.namespace_id is None:
        return None
    key = namespace_key(source.keys, name)
    mine = select(namespaces.c.id).where(namespaces.c.name_key == key)
    found = connection.execute(mine).scalar_one_or_none()
    if found is not None:
        # Made again since: its digests are of another id, and would say nothing here.
        return int(found) if found == item.namespace_id else None
    _make_namespace(source, connection, seq, item.namespace_id, name)
    return item.namespace_id


def _make_namespace(source: Store, connection: Connection, seq: int, id_: int, name: str) -> None:
    row = {
        "id": id_,
        "name": name,
        "name_key": namespace_key(source.keys, name),
        "created_seq": seq,
        "version": seq,
    }
    connection.execute(insert(namespaces), [row])
    lexical.create(connection, id_, source.lexical)


def _still_there(connection: Connection, receipt: Receipt) -> dict[int, set[int]]:
    """The cases of a receipt that the copy holds, by namespace: its ids, and what says the same."""
    found: dict[int, set[int]] = {}
    wanted: list[Any] = [cases.c.id.in_(part) for part in chunks(receipt.ids)]
    if receipt.mode in ("purge", "retention"):
        digests = [bytes.fromhex(digest) for digest in receipt.digests]
        wanted += [cases.c.content_key.in_(part) for part in chunks(digests)]
    for condition in wanted:
        for id_, owner in connection.execute(
            select(cases.c.id, cases.c.namespace_id).where(condition)
        ):
            found.setdefault(int(owner), set()).add(int(id_))
    return found


def _purge(connection: Connection, place: Place, ids: Sequence[int]) -> None:
    for part in chunks(ids):
        found = cases_by_id(connection, place.namespace_id, "restored", part)
        gone = gone_of(Request((), "restored"), (), found.values())
        asked = run_log.runs_to_forget(connection, place.namespace_id, place.keys, gone)
        drop_cases(connection, place, sorted(found), asked)


def _invalidate(connection: Connection, ids: Iterable[int], receipt: Receipt) -> None:
    for part in chunks(sorted(ids)):
        connection.execute(
            update(cases)
            .where(cases.c.id.in_(part), cases.c.invalidated_at.is_(None))
            .values(invalidated_at=receipt.created_at, version=cases.c.version + 1)
        )


def _drop_namespace(connection: Connection, name_key: bytes) -> int:
    """Delete a namespace; how many cases it had."""
    mine = select(namespaces.c.id).where(namespaces.c.name_key == name_key)
    id_ = connection.execute(mine).scalar_one_or_none()
    if id_ is None:
        return 0
    had = select(func.count()).select_from(cases).where(cases.c.namespace_id == id_)
    count = int(connection.execute(had).scalar_one())
    delete_rows(connection, int(id_))
    connection.execute(
        update(receipts).where(receipts.c.namespace_id == id_).values(namespace_id=None)
    )
    remove_namespace(connection, int(id_))
    return count


def _follow(source: Store, connection: Connection, seq: int, since: Since, done: Done) -> None:
    """What the bank in place tells beyond its receipts."""
    mine = connection.execute(select(namespaces.c.id, namespaces.c.name_key))
    there = {int(row.id): bytes(row.name_key) for row in mine}
    for id_ in sorted(set(there) - set(since.names)):
        done.forgotten += _drop_namespace(connection, there[id_])
    for id_ in sorted(set(since.names) - set(there)):
        _make_namespace(source, connection, seq, id_, since.names[id_])
    # Runs go by strings too, and those no receipt holds.
    for owner, ids in _absent(connection, runs, since.runs).items():
        drop_cases(connection, Place.of(source, owner, seq), [], ids)
    for owner, ids in _absent(connection, cases, since.versions).items():
        drop_cases(connection, Place.of(source, owner, seq), ids)
        done.forgotten += len(ids)
    for table, rows in ((exports, since.exports), (scheduled, since.scheduled)):
        connection.execute(delete(table))
        if rows:
            connection.execute(insert(table), rows)
    kept = _versions(connection)
    _keep_updates(source, connection, seq, since, kept, done)
    # For whoever follows a server's bank while this happens: cases that the backup does not have.
    lost = [
        {"namespace_id": owner, "seq": seq, "case_id": id_}
        for id_, (_, owner) in since.versions.items()
        if id_ not in kept
    ]
    insert_new(connection, removals, lost)


def _keep_updates(
    source: Store,
    connection: Connection,
    seq: int,
    since: Since,
    kept: Mapping[int, tuple[int, int]],
    done: Done,
) -> None:
    """Give updated cases their newer words where something was purged since."""
    ids = [id_ for id_ in since.newer if id_ in kept and kept[id_][1] in done.purged]
    for part in chunks(ids):  # an external id may have moved from one case to another
        connection.execute(update(cases).where(cases.c.id.in_(part)).values(external_key=None))
    for id_ in ids:
        version, owner = since.versions[id_]
        detach(connection, [id_])
        rewrite_case(connection, Place.of(source, owner, seq), id_, since.newer[id_])
        connection.execute(update(cases).where(cases.c.id == id_).values(version=version))
    done.updates += len(ids)


def _absent(connection: Connection, table: Table, present: Container[int]) -> dict[int, list[int]]:
    """Ids of rows that the bank in place does not have any more, by namespace."""
    found: dict[int, list[int]] = {}
    for id_, owner in connection.execute(select(table.c.id, table.c.namespace_id)):
        if id_ not in present:
            found.setdefault(int(owner), []).append(int(id_))
    return found


def _versions(connection: Connection) -> dict[int, tuple[int, int]]:
    rows = connection.execute(select(cases.c.id, cases.c.version, cases.c.namespace_id))
    return {int(id_): (int(version), int(owner)) for id_, version, owner in rows}


def _rows(connection: Connection, table: Table) -> list[dict[str, Any]]:
    there = select(table).where(*wiped(table))
    return [dict(row) for row in connection.execute(there).mappings()]
