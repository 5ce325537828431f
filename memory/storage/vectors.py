"""Vectors of cases, computed once per text and embedder of a namespace, and kept in the bank.

A vector is keyed by namespace, embedder (which names encoder and text format) and a keyed digest of
the model's text. It goes when the last case with that text goes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, or_, select

from memory.case import Case, NewCase
from memory.errors import EmbedderMismatch, EmbeddingFailed, InvalidInput, shown
from memory.keys import Keys
from memory.schema import case_vectors, cases, embedders, vectors
from memory.storage.namespaces import namespace_state
from memory.storage.rows import cases_by_id, chunks
from memory.storage.store import Store, insert_new
from memory.types import Embedder, Floats

#: Called with how many of how many cases are done.
Progress: TypeAlias = Callable[[int, int], None]
#: How a vector is stored, by the name in the configuration; its length tells which it was.
STORED: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an embedder made of N cases: one sha256 of the text each, and the vectors that are new.

    The digests stay in memory; the database knows a text by its keyed digest only.
    """

    texts: list[str]
    hashes: list[bytes]
    computed: dict[bytes, bytes]

    def only(self, rows: Sequence[int]) -> Prepared:
        """The same for some of the cases."""
        return Prepared(
            [self.texts[i] for i in rows], [self.hashes[i] for i in rows], self.computed
        )


class Shelf:
    """The vectors of one bank under the embedders it was opened with."""

    def __init__(self, store: Store, given: Sequence[Embedder]) -> None:
        self._store = store
        self.embedders = tuple(given)
        keys = [_checked_key(embedder) for embedder in given]
        if len(set(keys)) < len(keys):
            raise InvalidInput(
                f"two embedders have the key {keys[0]!r}; a key must name what is embedded as well"
            )
        self._ids = self._register()

    @property
    def ids(self) -> tuple[int, ...]:
        """The embedders' ids in the database, in the order given."""
        return tuple(self._ids[embedder.key] for embedder in self.embedders)

    def prepare(self, namespace: str, new: Sequence[NewCase]) -> list[Prepared]:
        """Embed what the namespace has no vector of, outside of any transaction."""
        return [self._prepare(namespace, embedder, new) for embedder in self.embedders]

    def attach(
        self,
        connection: Connection,
        namespace_id: int,
        ids: Sequence[int],
        prepared: Sequence[Prepared],
    ) -> None:
        """Store the vectors of N cases, given their ids, in the caller's transaction."""
        for embedder, ready in zip(self.embedders, prepared, strict=True):
            embedder_id = self._ids[embedder.key]
            known = self._vector_ids(connection, namespace_id, embedder_id, ready.hashes)
            lacking = {
                digest: text
                for digest, text in zip(ready.hashes, ready.texts, strict=True)
                if digest not in known
            }
            # A vector that was there at `prepare` and has gone since is computed again.
            gone = {
                digest: text for digest, text in lacking.items() if digest not in ready.computed
            }
            computed = ready.computed | self._embed(embedder, gone)
            rows = [
                {
                    "namespace_id": namespace_id,
                    "embedder_id": embedder_id,
                    "text_key": _text_key(self._store.keys, namespace_id, digest),
                    "vector": computed[digest],
                }
                for digest in lacking
            ]
            insert_new(connection, vectors, rows)
            known |= self._vector_ids(connection, namespace_id, embedder_id, list(lacking))
            links = [
                {"embedder_id": embedder_id, "case_id": id_, "vector_id": known[digest]}
                for id_, digest in zip(ids, ready.hashes, strict=True)
            ]
            insert_new(connection, case_vectors, links)

    def embed_missing(
        self, namespace: str, *, since: int = 0, progress: Progress | None = None
    ) -> int:
        """Embed the cases changed after change `since` that lack a vector; how many there were.

        Every batch is kept as soon as it is done, so an interrupted call has only the rest to do.
        """
        if not self.embedders:
            return 0
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return 0
            # What is added from here on is not waited for, or a fast writer would keep us for ever.
            total, last = self._lacking_span(connection, state.id, since)
        done = after = 0
        while batch := self._lacking(namespace, state.id, since, after, last):
            prepared = self.prepare(namespace, batch)
            with self._store.write() as connection:
                self._attach_unchanged(connection, state.id, namespace, batch, prepared)
            after = batch[-1].id
            done += len(batch)
            if progress is not None:
                progress(done, total)
        return done

    def _attach_unchanged(
        self,
        connection: Connection,
        namespace_id: int,
        namespace: str,
        batch: Sequence[Case],
        prepared: Sequence[Prepared],
    ) -> None:
        """Attach the vectors of those cases that are still what they were when embedded."""
        still = cases_by_id(connection, namespace_id, namespace, [case.id for case in batch])
        kept = [
            i
            for i, case in enumerate(batch)
            if case.id in still and still[case.id].version == case.version
        ]
        ids = [batch[i].id for i in kept]
        self.attach(connection, namespace_id, ids, [ready.only(kept) for ready in prepared])

    def _register(self) -> dict[str, int]:
        with self._store.read() as connection:
            known = {row.key: (row.id, row.dim) for row in connection.execute(select(embedders))}
        for embedder in self.embedders:
            if embedder.key in known and known[embedder.key][1] != embedder.dim:
                raise EmbedderMismatch(
                    f"embedder {embedder.key!r} gives {embedder.dim} values, but this bank holds "
                    f"vectors of {known[embedder.key][1]} under that key; whatever changes the "
                    "vectors must change the key"
                )
        new = [e for e in self.embedders if e.key not in known]
        if new:
            with self._store.write() as connection:
                insert_new(connection, embedders, [{"key": e.key, "dim": e.dim} for e in new])
            return self._register()
        return {embedder.key: known[embedder.key][0] for embedder in self.embedders}

    def _prepare(self, namespace: str, embedder: Embedder, new: Sequence[NewCase]) -> Prepared:
        texts = [_checked_model_text(embedder, case) for case in new]
        hashes = [hashlib.sha256(text.encode()).digest() for text in texts]
        unique = dict(zip(hashes, texts, strict=True))
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is not None:
                embedder_id = self._ids[embedder.key]
                for digest in self._vector_ids(connection, state.id, embedder_id, list(unique)):
                    del unique[digest]
        return Prepared(texts, hashes, self._embed(embedder, unique))

    def _embed(self, embedder: Embedder, texts: dict[bytes, str]) -> dict[bytes, bytes]:
        computed = {}
        stored = STORED[self._store.config.vectors]
        for part in chunks(list(texts), self._store.config.embed_batch):
            made = _checked_vectors(embedder, [texts[digest] for digest in part])
            for digest, vector in zip(part, made, strict=True):
                computed[digest] = vector.astype(stored, copy=False).tobytes()
        return computed

    def _vector_ids(
        self, connection: Connection, namespace_id: int, embedder_id: int, hashes: Sequence[bytes]
    ) -> dict[bytes, int]:
        found = {}
        keys = self._store.keys
        by_key = {_text_key(keys, namespace_id, digest): digest for digest in hashes}
        for part in chunks(list(by_key)):
            rows = connection.execute(
                select(vectors.c.text_key, vectors.c.id).where(
                    vectors.c.namespace_id == namespace_id,
                    vectors.c.embedder_id == embedder_id,
                    vectors.c.text_key.in_(part),
                )
            )
            found.update({by_key[bytes(row.text_key)]: row.id for row in rows})
        return found

    def _lacking(
        self, namespace: str, namespace_id: int, since: int, after: int, last: int
    ) -> list[Case]:
        with self._store.read() as connection:
            ids = connection.execute(
                select(cases.c.id)
                .where(self._lacks(namespace_id, since), cases.c.id > after, cases.c.id <= last)
                .order_by(cases.c.id)
                .limit(self._store.config.embed_batch)
            )
            found = cases_by_id(connection, namespace_id, namespace, list(ids.scalars()))
        return [found[id_] for id_ in sorted(found)]

    def _lacking_span(
        self, connection: Connection, namespace_id: int, since: int
    ) -> tuple[int, int]:
        """How many cases changed after `since` lack a vector, and the largest id (0 if none)."""
        query = select(func.count(), func.coalesce(func.max(cases.c.id), 0))
        total, last = connection.execute(query.where(self._lacks(namespace_id, since))).one()
        return int(total), int(last)

    def _lacks(self, namespace_id: int, since: int) -> ColumnElement[bool]:
        links = [
            exists().where(
                case_vectors.c.embedder_id == embedder_id, case_vectors.c.case_id == cases.c.id
            )
            for embedder_id in self.ids
        ]
        return and_(
            cases.c.namespace_id == namespace_id,
            cases.c.seq > since,
            cases.c.invalidated_at.is_(None),  # history is never retrieved
            or_(*(~link for link in links)),
        )


def detach(connection: Connection, ids: Sequence[int]) -> int:
    """Take the vectors of cases away that no other case shares; how many vectors went."""
    gone = 0
    for part in chunks(ids):
        links = case_vectors.c.case_id.in_(part)
        held = list(connection.execute(select(case_vectors.c.vector_id).where(links)).scalars())
        connection.execute(delete(case_vectors).where(links))
        for some in chunks(list(dict.fromkeys(held))):
            alone = vectors.c.id.in_(some) & ~exists().where(
                case_vectors.c.vector_id == vectors.c.id
            )
            gone += connection.execute(delete(vectors).where(alone)).rowcount
    return gone


def drop_embedder(store: Store, key: str) -> int:
    """Delete every vector of an embedder, a batch a transaction; how many there were."""
    with store.read() as connection:
        embedder_id = connection.execute(
            select(embedders.c.id).where(embedders.c.key == key)
        ).scalar_one_or_none()
    if embedder_id is None:
        raise InvalidInput(f"embedder {shown(key)}: the bank has no vectors of it")
    gone = 0
    while True:
        with store.write() as connection:
            some = select(vectors.c.id).where(vectors.c.embedder_id == embedder_id).limit(5000)
            ids = list(connection.execute(some).scalars())
            for part in chunks(ids):
                connection.execute(delete(case_vectors).where(case_vectors.c.vector_id.in_(part)))
                gone += connection.execute(delete(vectors).where(vectors.c.id.in_(part))).rowcount
        if not ids:
            return gone


def _text_key(keys: Keys, namespace_id: int, digest: bytes) -> bytes:
    return keys.of("text", namespace_id, digest.hex())


def _checked_key(embedder: Embedder) -> str:
    key, dim = embedder.key, embedder.dim
    if not isinstance(key, str) or not key.strip():
        raise InvalidInput(f"embedder.key = {shown(key)}: must name what changes the vectors")
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise InvalidInput(f"embedder.dim = {shown(dim)} of {key!r}: must be an integer above 0")
    return key


def _checked_model_text(embedder: Embedder, case: NewCase) -> str:
    try:
        text = embedder.text(case)
    except Exception as error:
        raise EmbeddingFailed(
            f"embedder {embedder.key!r} could not make a text of {_named(case)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(text, str):
        raise EmbeddingFailed(
            f"embedder {embedder.key!r} made {type(text).__name__} of {_named(case)}; text() "
            "returns str"
        )
    if not text.isascii() and _SURROGATE.search(text):
        raise EmbeddingFailed(
            f"embedder {embedder.key!r} made a text with half a surrogate pair of {_named(case)}; "
            "it has no UTF-8 form"
        )
    return text


def _named(case: NewCase) -> str:
    """Enough to find a case: its id where it is stored, else what it was given with."""
    if isinstance(case, Case):
        return f"case {case.id} of namespace {case.namespace!r}"
    if case.external_id is not None:
        return f"the case with external id {shown(case.external_id)}"
    return f"the case with query {shown(case.query)}"


def _checked_vectors(embedder: Embedder, texts: list[str]) -> Floats:
    made = np.asarray(embedder.embed(texts), dtype=np.float32)
    if made.shape != (len(texts), embedder.dim):
        raise EmbeddingFailed(
            f"embedder {embedder.key!r} returned shape {made.shape} for {len(texts)} texts; "
            f"({len(texts)}, {embedder.dim}) was promised, and nothing was stored"
        )
    bad = np.flatnonzero(~np.isfinite(made).all(axis=1))
    if bad.size:
        raise EmbeddingFailed(
            f"embedder {embedder.key!r} returned NaN or infinity for {bad.size} of {len(texts)} "
            f"texts, the first being {shown(texts[int(bad[0])])}; nothing was stored"
        )
    return made
