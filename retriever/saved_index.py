"""A cosine index on disk: a crash leaves the old one, and one that does not fit is not believed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retriever.files import folder_written_atomically
from retriever.types import Block, Bools, Ids
from retriever.units import units, width
from retriever.vectors import block_rows

INDEX_FILE = "index.faiss"
ROWS_FILE = "rows.bin"
STAMP_FILE = "stamp.json"
FORMAT = "precedent-flat-2"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a saved index is of; the digests are of the two other files."""

    bank: str
    namespace: str
    version: int
    embeddings_key: str
    count: int
    sha256: str
    rows_sha256: str
    format: str = FORMAT


@dataclass(slots=True)
class Held:
    """What is in the index: a copy of its own, for a block would keep rows that are to go."""

    bank: str
    namespace: str
    version: int
    embeddings_key: str | None
    ids: Ids  # (N,)
    stamps: Ids  # (N,) -1 where the row is empty
    faiss: Any

    def agrees(self, block: Block) -> Bools:
        """Whether a row of the block is in the index as it is: (min(N, n),)."""
        count = min(len(self.ids), len(block.ids))
        same: Bools = self.ids[:count] == block.ids[:count]
        same &= self.stamps[:count] == block.stamps[:count]
        same &= block.live[:count]
        return same


def contents(block: Block) -> tuple[Ids, Ids]:
    """Ids and stamps of the rows, copied; (0, -1) where a row is not live."""
    return np.where(block.live, block.ids, 0), np.where(block.live, block.stamps, -1)


def same_store(held: Held, block: Block) -> bool:
    """Whether both are of the same vectors of the same tenant."""
    return (held.bank, held.namespace, held.embeddings_key) == (
        block.bank,
        block.namespace,
        block.embeddings_key,
    )


def write(folder: Path, held: Held, data: memoryview) -> None:
    """Replace the folder by this index; `data` is what FAISS serialised of it."""
    rows = np.stack([held.ids, held.stamps]).astype("<i8").tobytes()
    stamp = Stamp(
        bank=held.bank,
        namespace=held.namespace,
        version=held.version,
        embeddings_key=held.embeddings_key or "",
        count=len(held.ids),
        sha256=hashlib.sha256(data).hexdigest(),
        rows_sha256=hashlib.sha256(rows).hexdigest(),
    )
    with folder_written_atomically(folder) as fresh:
        (fresh / INDEX_FILE).write_bytes(data)
        (fresh / ROWS_FILE).write_bytes(rows)
        (fresh / STAMP_FILE).write_text(json.dumps(asdict(stamp), indent=2) + "\n")


def read(folder: Path, block: Block) -> Held:
    """The saved index, if it is of the block or of an earlier state of it.

    Raises:
        ValueError: the first point in which it does not match; other errors that reading raises
            (OSError, KeyError, TypeError, RuntimeError) mean damage as well.
    """
    import faiss

    stamp = Stamp(**json.loads((folder / STAMP_FILE).read_text(encoding="utf-8")))
    for name in ("bank", "namespace", "embeddings_key"):
        ours, theirs = getattr(block, name), getattr(stamp, name)
        if ours != theirs:
            raise ValueError(f"it is of {name} {theirs!r}, not {ours!r}")
    if stamp.format != FORMAT:
        raise ValueError(f"its format is {stamp.format!r}, this version reads {FORMAT!r}")
    if stamp.version > block.version:
        raise ValueError(f"it is of version {stamp.version}, the bank is at {block.version}")
    if not 0 < stamp.count <= len(block.ids):
        raise ValueError(f"it holds {stamp.count} cases, the bank {len(block.ids)}")
    data = (folder / INDEX_FILE).read_bytes()
    rows = (folder / ROWS_FILE).read_bytes()
    # Before FAISS parses a byte: its reader is not made for damaged files.
    for name, digest, content in (
        (INDEX_FILE, stamp.sha256, data),
        (ROWS_FILE, stamp.rows_sha256, rows),
    ):
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} is truncated or changed")
    index = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
    if index.ntotal != stamp.count or index.d != width(block):
        raise ValueError(f"it has shape ({index.ntotal}, {index.d}), not as stamped")
    ids, stamps = np.frombuffer(rows, "<i8").astype(np.int64).reshape(2, stamp.count)
    held = Held(
        stamp.bank, stamp.namespace, stamp.version, stamp.embeddings_key, ids, stamps, index
    )
    _check_vectors(held, block)
    return held


def _check_vectors(held: Held, block: Block) -> None:
    """That rows which should be those of the block are."""
    vectors = held.faiss.reconstruct_n(0, held.faiss.ntotal)
    rows = np.flatnonzero(held.agrees(block))
    if 2 * len(rows) < np.count_nonzero(block.live):
        raise ValueError(f"only {len(rows)} of its cases are where they were in the bank")
    size = block_rows(held.faiss.d)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        if not np.array_equal(units(block, part), vectors[part]):
            raise ValueError("its vectors are not those of the bank")
