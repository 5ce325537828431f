"""Copies of a bank's vectors in another form (an index, int8, a GPU) that follow the bank.

A block's rows change under the same number: a slot is reused, a case is updated, one is forgotten.
(id, stamp) names a content for ever, so a copy that remembers both for every row knows what to
overwrite. The bank is the truth: a copy that cannot be brought up to date is made anew.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from retriever.types import Block, Bools, Ids

#: `older`: the block is of an earlier version than the copy, which was left alone. `unbuilt`: the
#: copy would have to be made anew, and the caller would not wait for that.
Followed: TypeAlias = Literal["same", "extended", "updated", "rebuilt", "older", "unbuilt"]


@dataclass(slots=True)
class Contents:
    """What is in a copy: arrays of its own, for a block would keep rows that are to go."""

    bank: str
    namespace: str
    version: int
    key: str | None  # of the embedder whose vectors they are
    ids: Ids  # (N,) 0 where the row is empty
    stamps: Ids  # (N,) -1 where the row is empty

    @classmethod
    def of(cls, block: Block, key: str | None) -> Contents:
        """Of every row of a block."""
        ids = np.where(block.live, block.ids, 0)
        stamps = np.where(block.live, block.stamps, -1)
        return cls(block.bank, block.namespace, block.version, key, ids, stamps)

    def same_store(self, block: Block, key: str | None) -> bool:
        """Whether both are of the same vectors of the same tenant."""
        return (self.bank, self.namespace, self.key) == (block.bank, block.namespace, key)

    def agrees(self, block: Block) -> Bools:
        """Whether a row of the block is in the copy as it is: (min(N, n),)."""
        count = min(len(self.ids), len(block.ids))
        same: Bools = self.ids[:count] == block.ids[:count]
        same &= self.stamps[:count] == block.stamps[:count]
        same &= block.live[:count]
        return same

    def outlived(self, block: Block) -> bool:
        """Whether a row of the copy is in the block no more, at whatever place."""
        rest = self.stamps >= 0
        same = self.agrees(block)
        rest[: len(same)] &= ~same
        if not rest.any():
            return False
        held = np.flatnonzero(block.live)
        if not len(held):
            return True
        held = held[np.argsort(block.ids[held])]
        ids = block.ids[held]
        places = np.minimum(np.searchsorted(ids, self.ids[rest]), len(ids) - 1)
        found = (ids[places] == self.ids[rest]) & (block.stamps[held[places]] == self.stamps[rest])
        return not bool(found.all())

    def stale(self, block: Block) -> Ids:
        """The rows of the copy that differ from the block's, which has no fewer rows."""
        differs = ~self.agrees(block)
        differs &= block.live[: len(self.ids)] | (self.stamps >= 0)
        return np.flatnonzero(differs).astype(np.int64)


class Copy(Protocol):
    """A form that the vectors of one namespace are kept in; row i of it is row i of the block."""

    def build(self, block: Block) -> None:
        """Begin anew with every live row of the block."""
        ...

    def patch(self, block: Block, stale: Ids, start: int) -> bool:
        """Overwrite the rows `stale`, or empty those that are not live; append those from `start`.

        False, with nothing changed, where building anew is the better way.
        """
        ...

    def clear(self) -> None:
        """Let go of everything."""
        ...


class Follower:
    """Keeps a copy in step with the blocks of one namespace. Safe for threads.

    Args:
        copy: the form; used with the lock held.
        role: whose vectors they are, `embeddings` or `projections`.
    """

    def __init__(self, copy: Copy, role: Literal["embeddings", "projections"]) -> None:
        self.contents: Contents | None = None
        #: Rows taken in since the caller last set this to 0.
        self.changed = 0
        #: Whether the copy is being made anew; whoever cannot wait reads the bank.
        self.building = False
        self._copy, self._role = copy, role
        self._lock = threading.RLock()
        self._last: weakref.ref[Block] | None = None  # the block that the contents are of
        self._floor = 0.0  # blocks of older versions are not taken in

    @contextmanager
    def held(self, block: Block, *, build: bool = True) -> Iterator[Followed]:
        """Take the block in, and keep the copy as it is until the `with` ends.

        On `older` the copy may hold what this block does not know, or miss what it shows; on
        `unbuilt` it is empty, or is being made: read the block itself instead.

        Args:
            block: what to follow.
            build: False only empties the copy where it would have to be made anew, for it may hold
                what is to be forgotten, and does not wait where another thread is at it.
        """
        if not build and not self._acquired_unless_building():
            yield "unbuilt"
            return
        if build:
            self._lock.acquire()
        try:
            yield self._follow(block, build)
        finally:
            self._lock.release()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the copy as it is until the `with` ends."""
        with self._lock:
            yield

    def adopt(self, contents: Contents) -> None:
        """The copy was read from a file and holds this; with the lock held.

        Raises:
            ValueError: the copy takes in nothing as old as this.
        """
        if contents.version < self._floor:
            raise ValueError(f"version {contents.version} is from before the copy was emptied")
        self.contents, self._last, self.changed = contents, None, 0

    def forget(self) -> None:
        """Empty the copy; the next block is taken in anew."""
        with self._lock:
            self.contents = self._last = None
            self.changed = 0
            self._copy.clear()

    def drop(self) -> None:
        """Empty the copy, and take nothing in until `accept`."""
        with self._lock:
            self.forget()
            self._floor = float("inf")

    def accept(self, version: int) -> None:
        """Take in blocks again, from this version on."""
        with self._lock:
            self._floor = version

    def _acquired_unless_building(self) -> bool:
        """Take the lock; False, without it, once another thread has begun to build under it."""
        while not self._lock.acquire(timeout=0.005):
            if self.building:
                return False
        return True

    def _follow(self, block: Block, build: bool) -> Followed:
        if self._last is not None and self._last() is block:
            return "same"
        if block.version < self._floor:
            return "older"
        key = getattr(block, f"{self._role}_key")
        held = self.contents
        if held is not None and not held.same_store(block, key):
            held = None
        if held is not None and block.version < held.version:
            return "older"
        try:
            done = None if held is None else self._patch(held, block)
            if done is None and not build:
                self.forget()
                return "unbuilt"
            if done is None:
                self._build(block)
                done = "rebuilt"
        except BaseException:
            # Half of a change is worse than none: the next search begins anew.
            self.forget()
            raise
        self.contents = Contents.of(block, key)
        self._last = weakref.ref(block)
        return done

    def _build(self, block: Block) -> None:
        self.building = True
        try:
            self._copy.build(block)
        finally:
            self.building = False
        self.changed += len(block.ids)

    def _patch(self, held: Contents, block: Block) -> Followed | None:
        count = len(held.ids)
        if not 0 < count <= len(block.ids):
            return None
        stale, added = held.stale(block), len(block.ids) - count
        if len(stale) > count // 2 or not self._copy.patch(block, stale, count):
            return None
        self.changed += len(stale) + added
        return "updated" if len(stale) else "extended" if added else "same"
