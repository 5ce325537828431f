"""Writing so that a crash leaves the old file, or none: temporary name, flush, fsync, rename.

What a killed process leaves under a temporary name, the next writer of the same name deletes: a
temporary is locked as long as its writer lives. A folder is replaced in two renames; what a crash
between them leaves is put back by `restore_interrupted`, which every writer calls too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Replace `path` by `text` (UTF-8) at once; parents are made.

    The file is as readable to others as the umask makes an ordinary one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked_folder(path.parent):
        _sweep(path)
        temporary = _free_name(path, "")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        _lock(descriptor)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync(path.parent)


@contextmanager
def folder_written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to fill; on success it takes the name `path`.

    An older folder of that name stays whole until the new one is complete, and is removed after;
    whether it may be removed is the caller's to check. Everything below gets the mode that the
    umask gives ordinary files and folders, whoever wrote it: some libraries write private files.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_interrupted(path)
    with _temporary_folder(path, "") as temporary:
        yield temporary
        for path_below in sorted(temporary.rglob("*")):
            if path_below.is_file() or path_below.is_dir():
                _fsync(path_below)
        _fsync(temporary)
        _open_to_others(temporary)
        _swap(temporary, path)
    _fsync(path.parent)


def restore_interrupted(path: Path) -> bool:
    """Put the folder `path` back where a crash moved it aside and brought no other; whether it did.

    A writer that lives is left alone. Where it cannot be put back (a read-only file system), it
    stays aside.
    """
    path = path.absolute()
    with suppress(OSError), _locked_folder(path.parent):
        for aside in _left_over(path, old=True):
            if path.exists() or path.is_symlink():
                break
            if (aside / path.name).is_dir() and not _is_locked(aside):
                (aside / path.name).rename(path)
                return True
    return False


def _swap(temporary: Path, path: Path) -> None:
    if not path.exists():
        temporary.rename(path)
        return
    # Two renames, not one: POSIX cannot replace a folder that is not empty.
    with _temporary_folder(path, "old.") as old:
        path.rename(old / path.name)
        try:
            temporary.rename(path)
        except OSError:
            (old / path.name).rename(path)
            raise


@contextmanager
def _temporary_folder(path: Path, infix: str) -> Iterator[Path]:
    """A locked sibling of `path`, deleted on leaving unless it was renamed."""
    with _locked_folder(path.parent):
        _sweep(path)
        temporary = _free_name(path, infix)
        temporary.mkdir()
        descriptor = os.open(temporary, os.O_RDONLY)
        _lock(descriptor)
    try:
        yield temporary
    finally:
        # Never what could not be put back: it may be the only whole one.
        if not infix or path.exists():
            shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def _sweep(path: Path) -> None:
    """Delete what dead writers of `path` left; the folder around is locked.

    What was moved aside stays as long as nothing stands in its place.
    """
    for left in _left_over(path, old=False):
        if not _is_locked(left):
            _delete(left)
    if path.exists():
        for left in _left_over(path, old=True):
            if not _is_locked(left):
                _delete(left)


def _free_name(path: Path, infix: str) -> Path:
    """A temporary's name beside `path`. Not tempfile's: what that makes is private."""
    return path.with_name(f".{path.name}.{infix}{secrets.token_hex(4)}")


def _left_over(path: Path, *, old: bool) -> list[Path]:
    """The temporaries of `path` in its folder: eight characters after its name."""
    infix = r"old\." if old else ""
    name = re.compile(rf"\.{re.escape(path.name)}\.{infix}[a-z0-9_]{{8}}")
    try:
        return sorted(p for p in path.parent.iterdir() if name.fullmatch(p.name))
    except OSError:  # a folder that may be written to, but not listed
        return []


def _delete(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Making a temporary and locking it are one step to those who look for dead ones."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: nothing is swept there, see below
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(path: Path) -> bool:
    """Whether its writer lives; also where that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_to_others(folder: Path) -> None:
    """Give everything below a new folder the mode of ordinary files and folders."""
    of_folder = stat.S_IMODE(folder.stat().st_mode)  # as the umask made it
    of_file = of_folder & 0o666
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        wanted = of_folder if path.is_dir() else of_file
        if stat.S_IMODE(path.stat().st_mode) != wanted:
            # A hard link to another user's file keeps that user's mode.
            with suppress(PermissionError):
                path.chmod(wanted)


def _fsync(path: Path) -> None:
    """Bytes of a file, or names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
