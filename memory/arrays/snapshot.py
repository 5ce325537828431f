"""A block as a file, for a quick start: written whole or not at all, believed if all of it fits.

It is a cache. Whatever does not match (another bank, namespace, embedder or format, a version that
the database has not reached, a byte that changed) is logged with its reason and not used. The file
holds numbers only: no text of a case, no name of a namespace, nothing that is executed on reading.

    magic | section after section, raw | footer (JSON) | its length, its CRC-32, magic

A section is one array of all rows, with a CRC-32 of its own: 1.8 GB/s where it was measured, while
SHA-256 had 1.0 and BLAKE2b 0.4. It tells damage, not forgery: who can write this file can write the
database too.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import sys
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory.arrays.table import FIELDS, Table, Widths
from memory.drafts import sync_folder
from memory.errors import BankUnavailable, InvalidInput, shown

if TYPE_CHECKING:
    from memory.arrays.block import Block

FORMAT = 1
SUFFIX = ".block"

_MAGIC = b"PRCDBLK\n"
_TAIL = struct.Struct("<QI8s")
#: Rows gathered at a time, so that writing needs no second copy of the block.
_ROWS = 4096
_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")

log = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a file gave: the rows of a namespace at `version`, `origin` as in `feed.Changes`."""

    table: Table
    version: int
    origin: int


class Snapshots:
    """A folder of snapshot files, one a namespace. Safe for threads and for several processes.

    Args:
        folder: made when the first file is written.
        name: the file name of a namespace, without a suffix: letters, digits, `-` and `_`. Make it
            a digest, for the names of namespaces do not belong in a folder.
    """

    def __init__(self, folder: Path, name: Callable[[str], str]) -> None:
        self.folder = folder
        self._name = name
        self._lock = threading.Lock()
        self._deletions: Counter[str] = Counter()

    def path(self, namespace: str) -> Path:
        """Where the file of a namespace lies, if there is one."""
        name = self._name(namespace)
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"snapshot name {shown(name)}: letters, digits, - and _ only")
        return self.folder / f"{name}{SUFFIX}"

    def write(self, block: Block, origin: int) -> int:
        """Write the live rows of a block in place of the older file; how many bytes it has.

        0, with the reason in the log, where it could not be written: the older file is left. 0 also
        where the file was deleted meanwhile, for what is written would be what had to go.
        """
        path = self.path(block.namespace)
        with self._lock:
            deletions = self._deletions[path.name]
        temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb", buffering=0) as file:
                _write(file, block, origin, path.stem)
                size = file.tell()
                os.fsync(file.fileno())
            with self._lock:
                if self._deletions[path.name] != deletions:
                    return 0
                temporary.replace(path)
            sync_folder(self.folder)
        except OSError as error:
            log.warning("snapshot %s could not be written: %s", path, error.strerror or error)
            return 0
        finally:
            _unlink(temporary)
        return size

    def read(
        self, namespace: str, bank: str, keys: Mapping[str, str], widths: Widths, newest: int
    ) -> Restored | None:
        """The rows of a namespace as the file holds them; None where there is none that fits.

        Args:
            namespace: whose file.
            bank: the bank's identity.
            keys: the embedders' keys by role.
            widths: dimension and dtype by role.
            newest: the namespace's version in the database.
        """
        path = self.path(namespace)
        try:
            with path.open("rb", buffering=0) as file:
                expected = {"bank": bank, "namespace": path.stem, "keys": dict(keys)}
                return _read(file, expected, widths, newest)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("snapshot %s is not used, the block is rebuilt: %s", path, error)
            return None

    def delete(self, namespace: str) -> int:
        """Delete the file of a namespace, and what was being written of it; how many files.

        Raises:
            BankUnavailable: a file cannot be deleted.
        """
        path = self.path(namespace)
        return self._delete(path.name, [path, *self.folder.glob(f".{path.stem}.*.part")])

    def _delete(self, name: str, paths: list[Path]) -> int:
        try:
            with self._lock:
                self._deletions[name] += 1
                gone = sum(_unlink(path) for path in paths)
            if gone:
                sync_folder(self.folder)
        except OSError as error:
            raise BankUnavailable(
                f"snapshot {self.folder / name} cannot be deleted: {error.strerror or error}; "
                "check the folder's permissions, and forget again"
            ) from error
        return gone


class _Sink:
    """Counts and sums what goes into a file."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        self.crc = 0
        self.bytes = 0

    def add(self, values: NDArray[Any]) -> None:
        if not values.size:
            return
        data = np.ascontiguousarray(values).data.cast("B")
        self.crc = zlib.crc32(data, self.crc)
        self.bytes += len(data)
        _write_all(self.file, data)


def _write(file: FileIO, block: Block, origin: int, namespace: str) -> None:
    _write_all(file, memoryview(_MAGIC))
    rows = np.flatnonzero(block.live)
    sections = []
    for name, chunks in _arrays(block).items():
        sink = _Sink(file)
        for part in _gathered(chunks, rows):
            sink.add(part)
        first = chunks[0]
        width = first.shape[1] if first.ndim == 2 else 1
        sections.append(
            {"name": name, "dtype": first.dtype.str, "width": width}
            | {"bytes": sink.bytes, "crc32": sink.crc}
        )
    keys = {"embeddings": block.embeddings_key, "projections": block.projections_key}
    footer = {
        "format": FORMAT,
        "byteorder": sys.byteorder,
        "bank": block.bank,
        "namespace": namespace,
        "version": block.version,
        "origin": origin,
        "rows": len(rows),
        "keys": {role: key for role, key in keys.items() if key is not None},
        "sections": sections,
    }
    data = json.dumps(footer).encode()
    _write_all(file, memoryview(data + _TAIL.pack(len(data), zlib.crc32(data), _MAGIC)))


def _arrays(block: Block) -> dict[str, tuple[NDArray[Any], ...]]:
    """Every array of a block by the name of its section, in chunks."""
    fields: tuple[NDArray[Any], ...] = (block.ids, block.stamps, *block.columns)
    arrays: dict[str, tuple[NDArray[Any], ...]] = {
        name: (field,) for name, field in zip(FIELDS, fields, strict=True)
    }
    for role in ("embeddings", "projections"):
        chunks = getattr(block, role)
        if chunks is not None:
            arrays[role] = chunks
    return arrays


def _gathered(chunks: tuple[NDArray[Any], ...], rows: NDArray[np.intp]) -> Iterator[NDArray[Any]]:
    """The rows asked for, ascending, in parts."""
    start = 0
    for chunk in chunks:
        own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(chunk))] - start
        for first in range(0, len(own), _ROWS):
            part = own[first : first + _ROWS]
            whole = part[-1] - part[0] == len(part) - 1
            yield chunk[part[0] : part[-1] + 1] if whole else chunk[part]
        start += len(chunk)


def _read(file: FileIO, expected: Mapping[str, Any], widths: Widths, newest: int) -> Restored:
    footer = _footer(file)
    own = {"format": FORMAT, "byteorder": sys.byteorder, **expected}
    for name, value in own.items():
        if footer[name] != value:
            raise ValueError(f"its {name} is {shown(footer[name])}, not {shown(value)}")
    rows, version, origin = (_count(footer, name) for name in ("rows", "version", "origin"))
    if version > newest:
        raise ValueError(f"it is of version {version}, the database is at {newest}")
    forms = {name: (1, np.dtype(dtype)) for name, dtype in FIELDS.items()} | dict(widths)
    crcs = {}
    for section, (name, (width, dtype)) in zip(footer["sections"], forms.items(), strict=True):
        size = rows * width * dtype.itemsize
        form = {"name": name, "dtype": dtype.str, "width": width, "bytes": size}
        for key, value in form.items():
            if section[key] != value:
                raise ValueError(f"{name}: {key} is {shown(section[key])}, not {shown(value)}")
        crcs[name] = section["crc32"]
    found = dict.fromkeys(forms, 0)

    def read_into(name: str, target: NDArray[Any]) -> None:
        if target.size:
            view = target.data.cast("B")
            _read_all(file, view)
            found[name] = zlib.crc32(view, found[name])

    table = Table(widths)
    file.seek(len(_MAGIC))
    table.restore(rows, read_into)
    damaged = [name for name in forms if found[name] != crcs[name]]
    if damaged:
        raise ValueError(f"the bytes of {', '.join(damaged)} are not those that were written")
    return Restored(table, version, origin)


def _footer(file: FileIO) -> dict[str, Any]:
    """The footer, if the file begins, ends and is as long as it should be."""
    size = file.seek(0, os.SEEK_END)
    least = len(_MAGIC) + _TAIL.size
    if size < least:
        raise ValueError(f"it has {size} bytes, a snapshot at least {least}")
    head = bytearray(len(_MAGIC))
    file.seek(0)
    _read_all(file, memoryview(head))
    tail = bytearray(_TAIL.size)
    file.seek(size - len(tail))
    _read_all(file, memoryview(tail))
    length, crc, magic = _TAIL.unpack(tail)
    if not head == magic == _MAGIC or length > size - least:
        raise ValueError("it is no snapshot, or its end is missing")
    data = bytearray(length)
    file.seek(size - len(tail) - length)
    _read_all(file, memoryview(data))
    if zlib.crc32(data) != crc:
        raise ValueError("its footer is damaged")
    footer = json.loads(data)
    if not isinstance(footer, dict):
        raise ValueError("its footer is no object")
    held = sum(section["bytes"] for section in footer["sections"])
    if held != size - least - length:
        raise ValueError(f"its sections should have {held} bytes, not {size - least - length}")
    return footer


def _count(footer: Mapping[str, Any], name: str) -> int:
    value = footer[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"its {name} is {shown(value)}, no count")
    return value


def _read_all(file: FileIO, target: memoryview) -> None:
    """Fill `target`; one call reads 2 GiB at most, and may read less."""
    done = 0
    while done < len(target):
        count = file.readinto(target[done:])
        if not count:
            raise ValueError("it ends too early")
        done += count


def _write_all(file: FileIO, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += file.write(data[done:])


def _unlink(path: Path) -> bool:
    """Whether there was a file to delete."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
