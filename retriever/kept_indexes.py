"""One index for each namespace, in memory and, if there is a folder, between runs.

An index is a cache: one that cannot be saved or does not match costs time, never an answer. But it
holds vectors of cases, so what was purged must leave it, in memory and on disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from retriever.errors import RetrieverError
from retriever.saved_copies import delete_saved, saved_path
from retriever.types import Block

#: A saved index is written again once the bank has grown by this share; on closing in any case.
SAVE_AT_GROWTH = 0.25

log = logging.getLogger(__name__)


class FollowingIndex(Protocol):
    """What `CosineIndex` and `CandidateIndex` have in common."""

    @property
    def unsaved(self) -> int:
        """Rows taken in since it was last saved or loaded."""
        ...

    def follow(self, block: Block) -> str:
        """Take a block in: same | extended | updated | rebuilt | older."""
        ...

    def notice(self, block: Block) -> bool:
        """Let go of cases that the block does not hold; False where that has to wait."""
        ...

    def save(self, folder: Path) -> int | None:
        """Write it; the version of the bank that was saved, None if there was nothing."""
        ...

    def load(self, folder: Path, block: Block) -> bool:
        """Take a saved one over, if it is of the block or an earlier state of it."""
        ...

    def drop(self) -> None:
        """Empty it, and take nothing in until `accept`."""
        ...

    def accept(self, version: int) -> None:
        """Take blocks in again, from this version on."""
        ...


I = TypeVar("I", bound=FollowingIndex)  # noqa: E741  # as in Index


class KeptIndexes(Generic[I]):
    """The indexes of one kind. Safe for threads.

    Args:
        make: a new, empty one.
        folder: where they are kept between runs; None keeps none.
        prefix: of the names of what is kept there, for kinds share the folder.
        newest: the newest block of a namespace.
    """

    def __init__(
        self,
        make: Callable[[], I],
        folder: Path | None,
        prefix: str,
        newest: Callable[[str], Block],
    ) -> None:
        self._make, self._folder, self._prefix, self._newest = make, folder, prefix, newest
        self._indexes: dict[str, I] = {}
        self._noticed: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, block: Block) -> I:
        """The index of the block's namespace, from the folder at its first use."""
        with self._lock:
            index = self._indexes.get(block.namespace)
            if index is None:
                index = self._make()
                path = self._path(block.namespace)
                if path is not None:
                    index.load(path, block)
                self._indexes[block.namespace] = index
            return index

    def keep(self, block: Block, index: I) -> None:
        """Save the index of the block's namespace if it grew enough."""
        if index.unsaved >= max(1.0, SAVE_AT_GROWTH * len(block.ids)):
            self._save(block.namespace, index)

    def close(self) -> None:
        """Save what grew since it was saved, so that the next start is quick."""
        with self._lock:
            for namespace, index in self._indexes.items():
                if index.unsaved:
                    self._save(namespace, index)

    def notice(self, block: Block) -> None:
        """Let go of what the namespace's index, if it is in memory, holds and the block does not.

        Once for each version; an index that is behind by additions alone stays so until it is used.
        """
        with self._lock:
            index = self._indexes.get(block.namespace)
            if index is None or block.version <= self._noticed.get(block.namespace, -1):
                return
        try:
            done = index.notice(block)
        except RetrieverError as error:  # it is empty now; a search by it will say the same
            log.warning("an index of %r was emptied: %s", block.namespace, error)
            done = True
        if done:
            with self._lock:
                noticed = max(block.version, self._noticed.get(block.namespace, -1))
                self._noticed[block.namespace] = noticed

    def drop(self, namespace: str) -> None:
        """Forget what is in memory of a namespace, and take nothing in until `accept`.

        What is on disk is the caller's to delete, after this.
        """
        with self._lock:
            index = self._indexes.get(namespace)
            if index is None:
                # A search under way would make one that knew nothing of this.
                index = self._indexes[namespace] = self._make()
        index.drop()

    def accept(self, namespace: str, version: int) -> None:
        """Blocks from this version on may be taken in again."""
        with self._lock:
            index = self._indexes.get(namespace)
        if index is not None:
            index.accept(version)

    def _path(self, namespace: str) -> Path | None:
        return None if self._folder is None else saved_path(self._folder, self._prefix, namespace)

    def _save(self, namespace: str, index: I) -> None:
        path = self._path(namespace)
        if path is None:
            return
        try:
            saved = index.save(path)
        except OSError as error:
            # A cache that cannot be kept costs the next start some time, not an answer.
            log.warning("the index could not be saved to %s: %s", path, error)
            return
        try:
            if saved is not None and not self._still_right(namespace, index, saved):
                self._delete(namespace)
        except Exception as error:
            log.warning("the index saved to %s could not be checked: %s", path, error)
            self._delete(namespace)

    def _delete(self, namespace: str) -> None:
        if self._folder is not None:
            delete_saved(self._folder, self._prefix, namespace)

    def _still_right(self, namespace: str, index: I, saved: int) -> bool:
        """Whether all that was saved is still in the bank: another process may have purged some."""
        newest = self._newest(namespace)
        return newest.version == saved or index.follow(newest) in ("same", "extended")
