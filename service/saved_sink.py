"""What a purge by a process without a search engine reaches: the saved indexes of a service."""

from __future__ import annotations

from pathlib import Path

from memory import Gone


class SavedIndexSink:
    """The saved indexes below a folder. The retriever is imported once something goes."""

    name = "saved indexes"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def purge(self, gone: Gone) -> int:
        """How many will be deleted: after the commit, for until then a service may save them."""
        from retriever.saved_copies import saved_of

        return len(saved_of(self._folder, gone.namespace))

    def settle(self, namespace: str) -> None:
        """Delete them, and what a crash left of saving them."""
        from retriever.saved_copies import delete_all

        delete_all(self._folder, namespace)
