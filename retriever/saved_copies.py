"""What is saved of indexes in one folder: nothing stays there that the bank no longer has.

A saved index holds vectors of cases. The process that purges deletes it; a purge by another process
is noticed here, from the ids and stamps beside each index, by the next search of whatever mode.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from retriever.errors import IndexUnavailable
from retriever.following import Contents
from retriever.saved_index import STAMP_FILE, contents_of
from retriever.types import Block

#: What the names of saved indexes begin with: those of cosine mode, and of ann mode.
COSINE, ANN = "", "ann-"
PREFIXES = (COSINE, ANN)

#: A temporary name of a saved index.
_LEFT_OVER = re.compile(r"\.(ann-)?[0-9a-f]{16}\.")

log = logging.getLogger(__name__)


class SavedCopies:
    """The saved indexes below one folder. Safe for threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._noticed: dict[str, int] = {}  # the newest version a namespace was looked at with
        # What each holds, by when it was written: a bank of ten million would be read otherwise.
        self._known: dict[Path, tuple[int, Contents]] = {}
        self._sweep()

    def notice(self, block: Block) -> None:
        """Delete what holds a case that the block does not, or cannot be read.

        Once for each version of the namespace. What cannot be deleted is logged, and tried again at
        the next.
        """
        with self._lock:
            if block.version <= self._noticed.get(block.namespace, -1):
                return
            try:
                for prefix in PREFIXES:
                    path = saved_path(self._folder, prefix, block.namespace)
                    if _is_there(path) and self._outdated(path, block):
                        self._known.pop(path, None)
                        _delete(self._folder, path)
            except IndexUnavailable as error:
                log.warning("%s", error)
            self._noticed[block.namespace] = block.version

    def delete(self, namespace: str) -> int:
        """Delete what is saved of a namespace, of whatever mode; how many there were.

        Raises:
            IndexUnavailable: one cannot be deleted; the others are.
        """
        return delete_all(self._folder, namespace)

    def _sweep(self) -> None:
        """Delete what a crash left of saving: nobody will ask for it, and it holds vectors."""
        for found in self._folder.glob(".*"):
            if _LEFT_OVER.match(found.name) and found.is_dir():
                shutil.rmtree(found, ignore_errors=True)

    def _outdated(self, path: Path, block: Block) -> bool:
        try:
            written = (path / STAMP_FILE).stat().st_mtime_ns
            when, contents = self._known.get(path, (None, None))
            if contents is None or when != written:
                contents = contents_of(path)
                self._known[path] = written, contents
        except Exception as error:  # whatever a damaged file makes a reader raise
            log.warning("saved index %s cannot be read, so it is to go: %s", path, error)
            return True
        # One of another bank is that bank's to look after.
        if (contents.bank, contents.namespace) != (block.bank, block.namespace):
            return False
        return contents.version <= block.version and contents.outlived(block)


def saved_path(folder: Path, prefix: str, namespace: str) -> Path:
    """Where an index of a namespace is saved."""
    # A namespace may hold any printable character; its digest is always a file name.
    return folder / f"{prefix}{hashlib.sha256(namespace.encode()).hexdigest()[:16]}"


def saved_of(folder: Path, namespace: str) -> Sequence[Path]:
    """What is saved of a namespace."""
    paths = (saved_path(folder, prefix, namespace) for prefix in PREFIXES)
    return [path for path in paths if _is_there(path)]


def delete_saved(folder: Path, prefix: str, namespace: str) -> None:
    """Delete one index of a namespace, and what a crash may have left of saving it.

    Raises:
        IndexUnavailable: it cannot be deleted.
    """
    _delete(folder, saved_path(folder, prefix, namespace))


def delete_all(folder: Path, namespace: str) -> int:
    """Delete what is saved of a namespace, of whatever mode; how many there were.

    Raises:
        IndexUnavailable: one cannot be deleted; the others are.
    """
    count, failed = len(saved_of(folder, namespace)), None
    for prefix in PREFIXES:
        try:
            delete_saved(folder, prefix, namespace)
        except IndexUnavailable as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return count


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _delete(folder: Path, path: Path) -> None:
    for found in (path, *folder.glob(f".{path.name}.*")):
        if found.is_symlink():
            raise IndexUnavailable(
                f"the saved index {found} is a symbolic link, which is not followed; delete it "
                f"and what it points to, {found.readlink()}, for that may hold vectors of cases "
                "that were forgotten"
            )
        try:
            if found.is_file():
                found.unlink()
            else:
                shutil.rmtree(found)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise IndexUnavailable(
                f"the saved index {found} cannot be deleted: {error.strerror or error}; delete "
                "the folder, for it may hold vectors of cases that were forgotten"
            ) from error
