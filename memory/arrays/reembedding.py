"""Changing embedders while the bank serves: compute in the background, then swap at once.

Until the swap every search is answered under the old embedders; from then on under the new ones.
Vectors are stored as they are computed, so a job that was cancelled, or died with its process, has
only the rest to do when it is started again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

from memory.arrays.block import Blocks
from memory.arrays.following import DatabaseFeed
from memory.errors import BankError, EmbeddingFailed
from memory.types import Embedder

State: TypeAlias = Literal["running", "swapped", "cancelled", "failed"]


class _Cancelled(Exception):
    pass


class Reembedding:
    """A change of embedders under way; `CaseBank.reembed` starts one.

    Attributes:
        state: running | swapped | cancelled | failed.
        error: why it failed, else None.
    """

    def __init__(
        self,
        feed: DatabaseFeed,
        blocks: Blocks,
        namespaces: Callable[[], list[str]],
        embeddings: Embedder | None,
        projections: Embedder | None,
        swapped: Callable[[], None],
    ) -> None:
        self.state: State = "running"
        self.error: Exception | None = None
        self._feed, self._blocks, self._namespaces = feed, blocks, namespaces
        self._embeddings, self._projections = embeddings, projections
        self._swapped = swapped
        self._done = self._total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reembedding", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> tuple[int, int]:
        """How many of how many cases of the present namespace are embedded."""
        return self._done, self._total

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether the new embedders serve now.

        Raises:
            BankError: why the job failed; the old embedders go on serving.
        """
        self._thread.join(timeout_s)
        if self.error is not None:
            raise self.error
        return self.state == "swapped"

    def cancel(self) -> None:
        """Stop before the swap; what is computed is kept."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            roles = [r for r in (self._embeddings, self._projections) if r is not None]
            shelf = self._feed.shelf(roles)
            for namespace in self._namespaces():
                shelf.embed_missing(namespace, progress=self._note)
            self._check()
            prepared = self._blocks.prepare(
                self._embeddings, self._projections, self._blocks.namespaces()
            )
            self._check()
            self._blocks.swap(prepared)
            self._swapped()
            self.state = "swapped"
        except _Cancelled:
            self.state = "cancelled"
        except Exception as error:
            self.error = (
                error
                if isinstance(error, BankError)
                else EmbeddingFailed(f"re-embedding failed: {type(error).__name__}: {error}")
            )
            self.state = "failed"

    def _note(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Cancelled
