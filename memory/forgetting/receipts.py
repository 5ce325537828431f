"""What a request to forget did: counts, ids and keyed digests, never a word of what is gone.

The receipts of a bank are also its audit log: who forgot what kind of thing, when, and how much.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from memory.keys import Keys
from memory.schema import namespaces, receipts
from memory.storage.namespaces import namespace_key
from memory.times import microseconds, rfc3339

MODES = ("purge", "invalidate", "compact", "retention", "namespace")
DONE, PENDING = "done", "pending"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A summary that went because one of its sources did, and the sources that are left."""

    id: int
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was forgotten.

    Attributes:
        uid: names the receipt; empty for a dry run.
        namespace: where; empty if the namespace itself is gone.
        mode: `purge` (gone), `invalidate` (kept for history, never retrieved), `compact`,
            `retention` or `namespace`.
        created_at: microseconds UTC.
        actor: who asked, as the caller says.
        selectors: the kinds of selectors, such as `text` or `span`.
        ids: the cases that went.
        digests: HMACs of their contents under the bank's secret, as hex; of a deleted namespace,
            the one of its name.
        counts: how many went from each layer: cases, copies, derived, texts, lexical, vectors,
            shown, runs, exports, snapshots, and `sink:NAME` each.
        matched_by: how many cases each way of matching found; of a time span: `span_valid`,
            `span_told`, `span_stored`.
        thresholds: of text selectors.
        replaced_by: the cases stored in place of what went, one a replacement.
        rebuild: summaries that had other sources too, to be made again from those.
        sources: of a derived fact: the sources purged to break its derivations.
        kept_sources: sources were kept on request: inference cannot be excluded.
        still_held: cases of the namespace that stay and hold a forgotten string or query; None
            where too much was forgotten at once to look for each.
        artifacts: trained artifacts whose training log held some of it.
        unreached: sinks, exports and artifacts that could not be reached or asked.
        echoes: keyed digests of what was forgotten in a conversation, for those who listen to it.
        erased: `done` once the bytes are overwritten; `pending` until then.
        dry_run: nothing was done; this is what would be.
    """

    uid: str
    namespace: str
    mode: str
    created_at: int
    actor: str | None = None
    selectors: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    matched_by: Mapping[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    replaced_by: tuple[int, ...] = ()
    rebuild: tuple[Rebuild, ...] = ()
    sources: tuple[int, ...] = ()
    kept_sources: bool = False
    still_held: int | None = 0
    artifacts: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    echoes: tuple[str, ...] = ()
    erased: str = DONE
    dry_run: bool = False

    @property
    def count(self) -> int:
        """How many cases went; 0 if nothing matched."""
        return len(self.ids)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; times as RFC 3339."""
        row = asdict(self)
        row["created_at"] = rfc3339(self.created_at)
        return row


def new_uid() -> str:
    """A name for a receipt."""
    return str(uuid.uuid4())


def store_receipt(connection: Connection, receipt: Receipt, namespace_id: int | None) -> int:
    """Keep a receipt; its row's id."""
    row = {
        "uid": receipt.uid,
        "namespace_id": namespace_id,
        "created_at": receipt.created_at,
        "mode": receipt.mode,
        "actor": receipt.actor,
        "erased": receipt.erased,
        "body": _body(receipt),
    }
    return int(connection.execute(insert(receipts).returning(receipts.c.id), [row]).scalar_one())


def change_receipt(connection: Connection, receipt: Receipt) -> None:
    """Write down what became known of a receipt since."""
    connection.execute(
        update(receipts)
        .where(receipts.c.uid == receipt.uid)
        .values(body=_body(receipt), erased=receipt.erased)
    )


def erased_state(connection: Connection, uid: str) -> str:
    """Whether the bytes of a receipt's cases are erased: `done` or `pending`."""
    query = select(receipts.c.erased).where(receipts.c.uid == uid)
    return str(connection.execute(query).scalar_one())


def load_receipts(
    connection: Connection, keys: Keys, namespace: str | None, *, after: int = 0, limit: int = 100
) -> list[tuple[int, Receipt]]:
    """Receipts by row id, of one namespace or of all, with their row ids as cursor."""
    wanted = select(receipts).where(receipts.c.id > after).order_by(receipts.c.id).limit(limit)
    if namespace is not None:
        wanted = wanted.join(namespaces, namespaces.c.id == receipts.c.namespace_id).where(
            namespaces.c.name_key == namespace_key(keys, namespace)
        )
    return [(int(row.id), _from_row(row)) for row in connection.execute(wanted)]


def load_receipt(connection: Connection, uid: str) -> Receipt | None:
    """The receipt of this name."""
    row = connection.execute(select(receipts).where(receipts.c.uid == uid)).one_or_none()
    return None if row is None else _from_row(row)


def receipt_from_json(row: Mapping[str, Any]) -> Receipt:
    """The receipt that `to_json` made the row of."""
    body = {**row, "created_at": microseconds(row["created_at"])}
    return _typed(body)


def _body(receipt: Receipt) -> str:
    row = asdict(receipt)
    for name in ("uid", "created_at", "mode", "actor", "erased", "dry_run"):
        del row[name]
    return json.dumps(row, separators=(",", ":"))


def _from_row(row: Row[Any]) -> Receipt:
    body = json.loads(row.body)
    body.update(uid=row.uid, created_at=row.created_at, mode=row.mode, actor=row.actor)
    return _typed({**body, "erased": row.erased})


def _typed(body: dict[str, Any]) -> Receipt:
    for name in (
        "selectors",
        "ids",
        "digests",
        "sources",
        "artifacts",
        "unreached",
        "echoes",
        "replaced_by",
    ):
        body[name] = tuple(body[name])
    body["rebuild"] = tuple(Rebuild(r["id"], tuple(r["sources"])) for r in body["rebuild"])
    return Receipt(**body)
