"""What a purge of the bank has to reach in a serving process: the index, and the artifact's log."""

from __future__ import annotations

from pathlib import Path

from memory import Gone
from retriever.artifact import Manifest, held_in_training, short_name
from retriever.searcher import Searcher
from retriever.text import record_text


class IndexSink:
    """What a searcher keeps beside the bank: indexes, in memory and on disk, and query vectors."""

    name = "search indexes and caches"

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    def purge(self, gone: Gone) -> int:
        """Nothing yet: an index follows the bank, and would take it in again before the commit."""
        return 0

    def settle(self, namespace: str) -> None:
        """Drop what is kept of the namespace; the next search makes it anew from what is left."""
        self._searcher.drop(namespace)


class ArtifactWitness:
    """A trained retriever: whether its training log held a case can be told, not undone."""

    def __init__(self, folder: Path, manifest: Manifest, fingerprint: str) -> None:
        self.name = f"artifact {short_name(fingerprint)}"
        self._folder, self._manifest = folder, manifest

    def holds(self, gone: Gone) -> bool:
        """Whether the log had one of the cases, as the model read it."""
        texts = (record_text(case) for case in gone.cases)
        return any(held_in_training(self._folder, self._manifest, text) for text in texts)
