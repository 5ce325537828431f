"""The arrays a search reads, one immutable picture a namespace, following the database.

Promises: `block` gives the newest acknowledged state; callers of one namespace share the work of
bringing it in, and nobody waits for a writer. What a block shows stays as it is while anybody holds
the block or one of its arrays. A case that is gone is in no block given out from then on, and its
numbers are overwritten in memory as soon as the last block that showed it is let go. Vectors are
never copied to grow.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from memory.arrays.feed import Changes, Columns, Feed
from memory.arrays.snapshot import Snapshots
from memory.arrays.table import Table
from memory.errors import BankBusy, BankUnavailable, EmbeddingFailed
from memory.types import Array, Bools, Embedder, Ids

_ATTEMPTS = 20  # at embedding what others keep adding without vectors

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Block:
    """One namespace at one version, row i of every array being one case; arrays are read-only.

    Rows are in no order, and those that are not `live` have no defined content: ids and vectors of
    such rows mean nothing.

    Attributes:
        bank: the bank's identity.
        namespace: its name.
        version: the namespace's last change that is in here.
        ids: (N,) unique among live rows.
        stamps: (N,) the change in which a row got its content; (id, stamp) names it for ever.
        live: (N,) False for rows that no search may return.
        embeddings: chunks (n_i, E) of consecutive rows, at least one, together N; float32 or
            float16. None where the bank was opened without that embedder.
        projections: chunks (n_i, D), likewise.
        embeddings_key: the embedder's key, or None.
        projections_key: the embedder's key, or None.
        columns: what a search may filter by.
    """

    bank: str
    namespace: str
    version: int
    ids: Ids
    stamps: Ids
    live: Bools
    embeddings: tuple[Array, ...] | None
    projections: tuple[Array, ...] | None
    embeddings_key: str | None
    projections_key: str | None
    columns: Columns

    def __len__(self) -> int:
        return len(self.ids)


class Blocks:
    """The newest block of every namespace asked for; only changes are read. Safe for threads.

    Args:
        feed: where the changes come from.
        embeddings: of the stored queries, or None.
        projections: of whole cases, or None.
        dtype: how vectors are held in memory, whatever the database holds: float32 or float16.
        snapshots: where blocks are kept between runs; None keeps none.
    """

    def __init__(
        self,
        feed: Feed,
        embeddings: Embedder | None = None,
        projections: Embedder | None = None,
        *,
        dtype: DTypeLike = np.float32,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._feed, self._dtype, self._snapshots = feed, np.dtype(dtype), snapshots
        self._served = Served(feed, embeddings, projections, self._dtype, snapshots)
        # What is removed must leave what waits for its swap, too.
        self._every: weakref.WeakSet[Served] = weakref.WeakSet([self._served])

    def block(self, namespace: str) -> Block:
        """The newest acknowledged state; cases that lack a vector are embedded first.

        A namespace that does not exist gives an empty block of version 0.

        Raises:
            BankBusy: others add cases without vectors faster than they are embedded.
            EmbeddingFailed: an embedder failed, or a value does not fit into float16.
        """
        return self._served.block(namespace)

    def prepare(
        self,
        embeddings: Embedder | None,
        projections: Embedder | None,
        namespaces: Iterable[str] = (),
    ) -> Served:
        """Load blocks under other embedders, while `block` goes on serving those of now.

        Both are in memory until `swap`. Nothing is swapped if this fails.
        """
        # Not from snapshots, which are of the embedders of now.
        prepared = Served(self._feed, embeddings, projections, self._dtype, None)
        self._every.add(prepared)
        for namespace in namespaces:
            prepared.block(namespace)
        return prepared

    def swap(self, prepared: Served) -> None:
        """Serve what `prepare` loaded from now on; a call of `block` gives the one or the other."""
        prepared.snapshots = self._snapshots
        self._served = prepared

    def wipe(self, namespace: str) -> int:
        """Take what was removed out of memory, without embedding or loading anything.

        Call it when the removal is committed. No block given out from then on has the rows, and
        their numbers are overwritten with zeros unless somebody still holds an older block; then
        they are the moment the last such block is let go.

        Returns:
            How many rows still wait for that.
        """
        return sum(served.wipe(namespace) for served in list(self._every))

    def save(self, namespace: str) -> int:
        """Write the snapshot of a namespace as it is in memory; how many bytes.

        0 where there is nothing in memory, nothing new since the file was written, no folder, or no
        way to write (see the log).
        """
        return self._served.save(namespace)

    def namespaces(self) -> list[str]:
        """The namespaces in memory, sorted."""
        return self._served.namespaces()

    def size(self, namespace: str) -> int:
        """How many cases of a namespace are in memory; 0 where none were asked for."""
        return self._served.size(namespace)

    def close(self) -> None:
        """Let go of every array; blocks that were given out stay good."""
        self._served.close()


class Served:
    """The blocks under one pair of embedders; `Blocks.prepare` makes another one."""

    def __init__(
        self,
        feed: Feed,
        embeddings: Embedder | None,
        projections: Embedder | None,
        dtype: np.dtype[np.generic],
        snapshots: Snapshots | None,
    ) -> None:
        given = {"embeddings": embeddings, "projections": projections}
        self.feed, self.snapshots = feed, snapshots
        self.roles = {name: role for name, role in given.items() if role is not None}
        self.keys = {name: role.key for name, role in self.roles.items()}
        self.widths = {name: (role.dim, dtype) for name, role in self.roles.items()}
        self._followers: dict[str, _Follower] = {}
        self._lock = threading.Lock()

    def block(self, namespace: str) -> Block:
        """See `Blocks.block`."""
        version = self.feed.version(namespace)
        if version is None:
            self._drop(namespace)
            # Not remembered: asking for names that do not exist must not fill the memory.
            return _Follower(self, namespace).picture(0)
        with self._lock:
            follower = self._followers.get(namespace)
            if follower is None:
                follower = self._followers[namespace] = _Follower(self, namespace)
        known = follower.newest
        if known is not None and known.version == version:
            return known
        with follower.lock:
            newest = follower.newest
            if newest is not None and newest is not known and newest.version >= version:
                return newest  # brought in by another caller while this one waited
            block = follower.follow()
        return self.block(namespace) if block is None else block

    def wipe(self, namespace: str) -> int:
        """See `Blocks.wipe`."""
        with self._lock:
            follower = self._followers.get(namespace)
        if follower is None:
            return 0
        with follower.lock:
            table = follower.table  # of which those that hold blocks hold rows
            there = follower.wipe()
        if not there:
            self._drop(namespace)
        return table.pending

    def save(self, namespace: str) -> int:
        """See `Blocks.save`."""
        with self._lock:
            follower = self._followers.get(namespace)
        if follower is None or self.snapshots is None:
            return 0
        with follower.saving:
            return follower.save(self.snapshots)

    def namespaces(self) -> list[str]:
        """See `Blocks.namespaces`."""
        with self._lock:
            return sorted(self._followers)

    def size(self, namespace: str) -> int:
        """See `Blocks.size`."""
        with self._lock:
            follower = self._followers.get(namespace)
        newest = None if follower is None else follower.newest
        return 0 if newest is None else int(np.count_nonzero(newest.live))

    def close(self) -> None:
        """See `Blocks.close`."""
        with self._lock:
            self._followers.clear()

    def _drop(self, namespace: str) -> None:
        with self._lock:
            follower = self._followers.pop(namespace, None)
        if follower is not None:
            with follower.lock:
                follower.start_over()


class _Follower:
    """One namespace. `lock` is held around everything but `newest`, which is read freely."""

    def __init__(self, served: Served, namespace: str) -> None:
        self.lock = threading.Lock()
        self.saving = threading.Lock()
        self.newest: Block | None = None
        self.table = Table(served.widths)
        self._served, self._namespace = served, namespace
        self._version = 0  # up to which every change is in the table
        self._origin: int | None = None
        self._saved: int | None = None  # version of the file
        self._untried = True  # whether there is a snapshot to start from

    def follow(self) -> Block | None:
        """Bring in what is new; None where the namespace is gone."""
        feed, roles = self._served.feed, list(self._served.roles.values())
        for _ in range(_ATTEMPTS):
            self._restore()
            with feed.changes(self._namespace, self._version, roles) as changes:
                if changes is None:
                    return None
                if self._is_of_another_past(changes):
                    self.start_over()
                    continue
                if self.newest is not None and self.newest.version == changes.version:
                    return self.newest
                complete = self._apply(changes)
            if complete:
                self._version = changes.version
                self.newest = self.picture(changes.version)
                return self.newest
            # What was applied is in no block, and will be found there and replaced.
            feed.embed_missing(self._namespace, roles)
        raise BankBusy(
            f"namespace {self._namespace!r} still has cases without vectors after {_ATTEMPTS} "
            "rounds of embedding: others add them faster than they are embedded; add with wait=True"
        )

    def wipe(self) -> bool:
        """Apply the removals alone; whether the namespace is still there."""
        roles = list(self._served.roles.values())
        with self._served.feed.changes(self._namespace, self._version, roles) as changes:
            if changes is None:
                return False
            if self._is_of_another_past(changes):
                self.start_over()
            elif len(changes.removed):
                # Before the rows retire: the block that shows them must not be what keeps them.
                self.newest = None
                self._retire(changes)
        return True

    def start_over(self) -> None:
        """Forget everything; what old blocks show is overwritten when they are let go."""
        self.newest = None
        self.table.clear(self._version + 1)
        self.table = Table(self._served.widths)
        self._version, self._origin = 0, None

    def picture(self, version: int) -> Block:
        """The table as it is now, as the block of a version."""
        keys = self._served.keys
        shown = self.table.picture(version)
        return Block(
            bank=self._served.feed.uid,
            namespace=self._namespace,
            version=version,
            ids=shown.ids,
            stamps=shown.stamps,
            live=shown.live,
            embeddings=shown.vectors.get("embeddings"),
            projections=shown.vectors.get("projections"),
            embeddings_key=keys.get("embeddings"),
            projections_key=keys.get("projections"),
            columns=shown.columns,
        )

    def save(self, snapshots: Snapshots) -> int:
        """Write the newest block, unless the file is of it."""
        with self.lock:
            block, origin = self.newest, self._origin
        if block is None or origin is None or block.version == self._saved:
            return 0
        if self._lost_rows(block, origin):
            return 0  # `block` first: what was removed must not get into a file
        size = snapshots.write(block, origin)
        if size and self._lost_rows(block, origin):
            # Removed while this was written, perhaps by a process that could not know of the file.
            snapshots.delete(self._namespace)
            return 0
        if size:
            self._saved = block.version
        return size

    def _restore(self) -> None:
        """Start from the snapshot, if this is the start and there is one that fits."""
        snapshots, served = self._served.snapshots, self._served
        if not self._untried or snapshots is None:
            return
        self._untried = False
        newest = served.feed.version(self._namespace)
        if newest is None or self._version:
            return
        restored = snapshots.read(
            self._namespace, served.feed.uid, served.keys, served.widths, newest
        )
        if restored is not None:
            self.table, self._version, self._origin = restored
            self._saved = restored.version

    def _is_of_another_past(self, changes: Changes) -> bool:
        """Whether what is in memory does not lead to these changes."""
        known = self._origin is not None
        return known and (changes.origin != self._origin or changes.version < self._version)

    def _apply(self, changes: Changes) -> bool:
        """Write the changes into the table; False where a vector lacks."""
        self._origin = changes.origin
        self._retire(changes)
        for batch in changes.batches:
            if any(vectors is None for vectors in batch.vectors):
                return False
            try:
                self.table.put(batch, changes.version)
            except FloatingPointError as error:
                raise EmbeddingFailed(
                    f"namespace {self._namespace!r} has vectors with values beyond 65504, which "
                    "float16 cannot hold; open the bank with vectors=float32"
                ) from error
        return True

    def _retire(self, changes: Changes) -> None:
        removed = self.table.retire(changes.removed, changes.version)
        if removed and self._saved is not None and self._served.snapshots is not None:
            # The file has them still, and may be of a process that knew nothing of the removal.
            try:
                self._served.snapshots.delete(self._namespace)
            except BankUnavailable as error:
                log.warning("%s", error)  # the purge itself says so to who asked for it
            self._saved = None

    def _lost_rows(self, block: Block, origin: int) -> bool:
        """Whether something in the block was removed since."""
        feed = self._served.feed
        with feed.changes(self._namespace, block.version, []) as changes:
            if changes is None or changes.origin != origin:
                return True
            return bool(np.isin(changes.removed, block.ids[block.live]).any())
