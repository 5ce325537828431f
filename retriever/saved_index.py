"""An index on disk: a crash leaves the old one, and one that does not fit is not believed."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.files import folder_written_atomically
from retriever.following import Contents
from retriever.tiers.module import faiss_module
from retriever.types import Block, Ids

INDEX_FILE = "index.faiss"
ROWS_FILE = "rows.bin"
ARRAYS_FILE = "arrays.npz"
STAMP_FILE = "stamp.json"
FORMAT = "precedent-tier-1"

#: Rows whose vectors are compared with the bank's when an index is read: all, or this many of them.
COMPARED = 65_536


@dataclass(frozen=True, slots=True)
class Form:
    """What an index is, beside the vectors it was made of."""

    kind: str
    storage: str
    space: str  # which vectors: units, or a head's
    trained_at: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a saved index is of; the digests are of the three other files."""

    bank: str
    namespace: str
    version: int
    embedder: str
    kind: str
    storage: str
    space: str
    trained_at: int
    count: int
    sha256: str
    rows_sha256: str
    arrays_sha256: str
    format: str = FORMAT


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved index whose bytes are as they were written, of a bank that it may be of.

    `compared` are rows that should be the bank's, for the reader to look at.
    """

    contents: Contents
    form: Form
    index: Any
    arrays: Mapping[str, NDArray[Any]]
    compared: Ids


def write(
    folder: Path,
    contents: Contents,
    form: Form,
    data: memoryview,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Replace the folder by this index; `data` is what FAISS serialised of it."""
    rows = np.stack([contents.ids, contents.stamps]).astype("<i8").tobytes()
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    stamp = Stamp(
        bank=contents.bank,
        namespace=contents.namespace,
        version=contents.version,
        embedder=contents.key or "",
        **asdict(form),
        count=len(contents.ids),
        sha256=hashlib.sha256(data).hexdigest(),
        rows_sha256=hashlib.sha256(rows).hexdigest(),
        arrays_sha256=hashlib.sha256(packed.getbuffer()).hexdigest(),
    )
    if folder.is_symlink():
        raise FileExistsError(f"{folder} is a symbolic link; delete it, and what it points to")
    with folder_written_atomically(folder) as fresh:
        (fresh / INDEX_FILE).write_bytes(data)
        (fresh / ROWS_FILE).write_bytes(rows)
        (fresh / ARRAYS_FILE).write_bytes(packed.getbuffer())
        (fresh / STAMP_FILE).write_text(json.dumps(asdict(stamp), indent=2) + "\n")


def read(folder: Path, block: Block, key: str | None, storage: str, space: str) -> Saved:
    """The saved index, if it is of the block or of an earlier state of it.

    Args:
        folder: where it is.
        block: what it must be of.
        key: of the embedder of the block's vectors.
        storage: how the index should hold them.
        space: which vectors it should hold.

    Raises:
        ValueError: the first point in which it does not match; errors of any other kind mean
            damage as well.
    """
    faiss = faiss_module()

    stamp = _stamp(folder)
    wanted = {
        "format": FORMAT,
        "bank": block.bank,
        "namespace": block.namespace,
        "embedder": key,
        "storage": storage,
        "space": space,
    }
    for name, ours in wanted.items():
        if getattr(stamp, name) != ours:
            raise ValueError(f"its {name} is {getattr(stamp, name)!r}, not {ours!r}")
    if stamp.version > block.version:
        raise ValueError(f"it is of version {stamp.version}, the bank is at {block.version}")
    if stamp.count > len(block.ids):
        raise ValueError(f"it holds {stamp.count} cases, the bank {len(block.ids)}")
    # Before FAISS parses a byte: its reader is not made for damaged files.
    data = _unchanged(folder / INDEX_FILE, stamp.sha256)
    packed = _unchanged(folder / ARRAYS_FILE, stamp.arrays_sha256)
    contents = _contents(folder, stamp)
    index = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
    with np.load(io.BytesIO(packed), allow_pickle=False) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}
    form = Form(stamp.kind, stamp.storage, stamp.space, stamp.trained_at)
    return Saved(contents, form, index, arrays, _compared(contents, block))


def contents_of(folder: Path) -> Contents:
    """Which rows a saved index holds, without reading their vectors.

    Raises:
        Exception: of any kind, where it is damaged.
    """
    return _contents(folder, _stamp(folder))


def _contents(folder: Path, stamp: Stamp) -> Contents:
    rows = _unchanged(folder / ROWS_FILE, stamp.rows_sha256)
    ids, stamps = np.frombuffer(rows, "<i8").astype(np.int64).reshape(2, stamp.count)
    key = stamp.embedder or None
    return Contents(stamp.bank, stamp.namespace, stamp.version, key, ids, stamps)


def _stamp(folder: Path) -> Stamp:
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError("it is no folder, or a symbolic link, which is not followed")
    given = json.loads((folder / STAMP_FILE).read_text(encoding="utf-8"))
    stamp = Stamp(**given)
    for known in fields(Stamp):
        value = getattr(stamp, known.name)
        # Annotations are strings here; a truth value is an int to Python.
        if type(value).__name__ != known.type:
            raise ValueError(f"its {known.name} is {value!r}, not of type {known.type}")
    if stamp.count < 1:
        raise ValueError(f"it holds {stamp.count} cases")
    if not 1 <= stamp.trained_at <= stamp.count:
        raise ValueError(f"it was trained at {stamp.trained_at} of its {stamp.count} rows")
    return stamp


def _unchanged(path: Path, digest: str) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path.name} is truncated or changed")
    return content


def _compared(contents: Contents, block: Block) -> Ids:
    """Rows that should be those of the block, evenly spread."""
    rows = np.flatnonzero(contents.agrees(block)).astype(np.int64)
    if 2 * len(rows) < np.count_nonzero(block.live):
        raise ValueError(f"only {len(rows)} of its cases are where they were in the bank")
    return rows[:: -(-len(rows) // COMPARED) or 1]
