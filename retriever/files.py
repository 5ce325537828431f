"""Writing so that a crash leaves the old file, or none: temporary name, flush, fsync, rename."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = 1 << 20


def sha256_of_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_text_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) at once; parents are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a report is as readable as its neighbours.
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync(path.parent)


@contextmanager
def folder_written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to fill; on success it takes the name `path`.

    An older folder of that name stays whole until the new one is complete, and is removed after;
    whether it may be removed is the caller's to check.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        for path_below in sorted(temporary.rglob("*")):
            if path_below.is_file() or path_below.is_dir():
                _fsync(path_below)
        _fsync(temporary)
        temporary.chmod(0o755)
        _swap(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _fsync(path.parent)


def _swap(temporary: Path, path: Path) -> None:
    if not path.exists():
        temporary.rename(path)
        return
    # Two renames, not one: POSIX cannot replace a folder that is not empty.
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / path.name)
    try:
        temporary.rename(path)
    except OSError:
        (old / path.name).rename(path)
        raise
    finally:
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    """Bytes of a file, or names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
