"""An index that follows one namespace of a bank, and is saved and loaded: what both modes share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from retriever.device import Device
from retriever.errors import IndexUnavailable
from retriever.following import Contents, Followed, Follower
from retriever.saved_index import Form, Saved, read, write
from retriever.tiers.gpu import resolved
from retriever.tiers.module import faiss_module
from retriever.tiers.settings import IndexSettings
from retriever.tiers.space import Space
from retriever.tiers.tier_copy import Abandoned, TierCopy
from retriever.types import Block

#: From so many rows on, a second or more of work, an index is built in a thread of its own.
BUILT_LATER_ROWS = 50_000

log = logging.getLogger(__name__)


class TierIndex:
    """A tier over one space of one namespace. Safe for threads.

    Args:
        space: what is indexed.
        settings: how.

    Attributes:
        device: where FAISS computes.
        copy: the tier; to be used while `follower` holds it.
        follower: keeps it in step with the bank.
    """

    def __init__(self, space: Space, settings: IndexSettings) -> None:
        # A graph stays on the CPU, whatever there is.
        wanted = "cpu" if settings.kind == "hnsw" else settings.device
        self.device: Device = resolved(Device.parse(wanted))
        self.settings, self.space = settings, space
        self.copy = TierCopy(space, settings, self.device)
        self.follower = Follower(self.copy, space.role)
        self._saving = threading.Lock()
        self._builder: threading.Thread | None = None
        self._unbuildable: int | None = None  # version whose build failed: not tried again

    @property
    def unsaved(self) -> int:
        """Rows taken in since the index was last saved or loaded; 0 where there is no index."""
        return 0 if self.copy.tier is None else self.follower.changed

    def follow(self, block: Block) -> Followed:
        """Take a block in, however long that takes."""
        try:
            return self._follow(block)
        except Abandoned:
            return "older"  # as it is for every block until `accept`

    @contextmanager
    def held(self, block: Block) -> Iterator[bool]:
        """Whether the copy is of the block, and stays so until the `with` ends.

        Nobody waits for a large index to be built: a thread of its own does that, and until it is
        done the answer is False, as it is for an older block.
        """
        self.space.check(block)
        if self.follower.building:
            yield False
            return
        later = len(block.ids) >= BUILT_LATER_ROWS
        try:
            with self.follower.held(block, build=not later) as done:
                if done == "unbuilt":
                    self._build_later(block)
                yield done not in ("older", "unbuilt")
        except Abandoned:  # on the way in, never by what runs inside
            yield False

    def notice(self, block: Block) -> bool:
        """Let go of cases that the block does not hold; False where a build has to end first."""
        if self.follower.building or self._builder is not None:
            return False  # what is being built may hold some
        contents = self.follower.contents
        if contents is None or contents.version >= block.version or not contents.outlived(block):
            return True
        try:
            with self.held(block):
                pass
        except BaseException:
            self.follower.forget()
            raise
        return self._builder is None

    def save(self, folder: Path) -> int | None:
        """Write the index so that a crash leaves the old one, or none; its version, or None."""
        with self._saving:
            taken = self._taken()
            if taken is None:
                return None
            contents, form, data, arrays = taken
            write(folder, contents, form, data, arrays)
            return contents.version

    def load(self, folder: Path, block: Block) -> bool:
        """Take over a saved index; False, with the reason in the log, where it does not fit."""
        if not (folder.exists() or folder.is_symlink()):
            return False
        self.space.check(block)
        key = block.embeddings_key if self.space.role == "embeddings" else block.projections_key
        try:
            saved = read(folder, block, key, self.settings.storage, self.space.name)
            with self.follower.locked():
                self._restore(block, saved)
        except IndexUnavailable:  # no FAISS: nothing is wrong with the file
            raise
        except Exception as error:
            # Every way of being damaged: numpy, zipfile, json and FAISS raise a dozen kinds.
            reason = str(error) or type(error).__name__
            log.warning("saved index %s is not used and will be rebuilt: %s", folder, reason)
            return False
        with self.held(block):
            return True

    def drop(self) -> None:
        """Empty the index, and take nothing in until `accept`; a save in progress is waited for."""
        self.copy.abandon = True
        try:
            with self._saving:
                self.follower.drop()
        finally:
            self.copy.abandon = False

    def accept(self, version: int) -> None:
        """Take in blocks again, from this version on."""
        self.follower.accept(version)

    def _follow(self, block: Block) -> Followed:
        self.space.check(block)
        with self.follower.held(block) as done:
            return done

    def _build_later(self, block: Block) -> None:
        """Follow the block in another thread; with the follower's lock held."""
        if self._builder is not None or block.version == self._unbuildable:
            return
        self._builder = threading.Thread(target=self._build, args=(block,), name="precedent-index")
        self._builder.start()

    def _build(self, block: Block) -> None:
        try:
            began = time.perf_counter()
            self._follow(block)
            log.info("index of %d rows: %.1f s", len(block.ids), time.perf_counter() - began)
        except Abandoned as error:
            log.info("an index was not finished: %s", error)
        except Exception as error:
            # Searches go on by scanning, and meet the same error if it concerns them.
            self._unbuildable = block.version
            log.warning("an index of %d rows could not be built: %s", len(block.ids), error)
        finally:
            self._builder = None

    def _restore(self, block: Block, saved: Saved) -> None:
        self.follower.forget()
        try:
            self.copy.restore(block, saved)
            self.follower.adopt(saved.contents)
        except BaseException:
            self.follower.forget()
            raise

    def _taken(self) -> tuple[Contents, Form, Any, Mapping[str, NDArray[Any]]] | None:
        """What a file has to hold, copied while nothing changes."""
        faiss = faiss_module()

        with self.follower.locked():
            contents, plan, state = self.follower.contents, self.copy.plan, self.copy.state()
            if contents is None or plan is None or state is None:
                return None
            index, arrays = state
            form = Form(plan.kind, self.settings.storage, self.space.name, self.copy.trained_at)
            data = faiss.serialize_index(index).data
            self.follower.changed = 0  # also if writing fails: not tried again at every search
        return contents, form, data, arrays
