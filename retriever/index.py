"""Cosine search over the stored query texts: a FAISS flat index that follows a bank.

Promises: the same answer as a full sort by (cosine, then id), on any device; never an answer from
vectors that are not the bank's. The bank is the truth; the index and its saved copy are caches, and
one that does not match is logged and built again.

FAISS promises no order among ties, rounds by the place of a row, and ignores filters on a GPU. So
it only proposes rows, some more than asked for, and the order is made here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retriever.device import Device
from retriever.errors import DeviceUnavailable, IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.files import folder_written_atomically
from retriever.scan import top_k
from retriever.types import Block, Floats, Ids

INDEX_FILE = "index.faiss"
STAMP_FILE = "stamp.json"
FORMAT = "precedent-flat-1"

#: Past this many candidates a full scan is the better way: the classic GPU index returns at most
#: 2,048, and FAISS's result heaps get slow there on the CPU too.
MOST_CANDIDATES = 2048

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a saved index is of; `content` digests ids and vectors, `sha256` the index file."""

    bank: str
    namespace: str
    version: int
    embeddings_key: str
    count: int
    content: str
    sha256: str
    format: str = FORMAT


class CosineIndex:
    """A flat inner-product index over L2-normalised vectors, following one namespace of one bank.

    `device` is where FAISS computes: `auto` takes a GPU if FAISS sees one. Safe for threads.
    """

    def __init__(self, device: str = "auto") -> None:
        self.device = _resolve(device)
        #: Rows taken in since the index was last saved or loaded.
        self.unsaved = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._block: Block | None = None
        self._faiss: Any = None
        self._resources: Any = None  # of the GPU; not safe for two searches at once

    def search(self, block: Block, queries: Floats, k: int) -> list[tuple[Ids, Floats]]:
        """The k rows of `block` nearest to each query: (Q, E) -> Q pairs of (<=k,) rows, cosines.

        Best first, ties to the lower id, dead cases left out. The index first takes in what is new.

        Raises:
            IndexUnavailable: the block has no embeddings.
            InvalidInput: queries of another width, or k below 1.
            NonFiniteScore: a vector that holds NaN or infinity.
        """
        vectors = _vectors(block)
        if k < 1:
            raise InvalidInput(f"k must be at least 1, got {k}")
        if queries.ndim != 2 or (len(vectors) and queries.shape[1] != vectors.shape[1]):
            raise InvalidInput(
                f"queries {queries.shape} must be (Q, {vectors.shape[1]}), as wide as the bank's "
                "vectors; was the cosine encoder exchanged?"
            )
        queries = _normalised(queries)
        if not len(vectors):
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        with self._lock:
            proposed = self._propose(block, queries, k)
        whole = _normalised(vectors) if any(rows is None for rows in proposed) else None
        found = []
        for query, rows in zip(queries, proposed, strict=True):
            if rows is None:
                assert whole is not None
                found.append(_best(block, np.arange(len(vectors)), whole, query, k))
            else:
                found.append(_best(block, rows, _normalised(vectors[rows]), query, k))
        return found

    def follow(self, block: Block) -> str:
        """Take in `block`; returns `same`, `extended`, `rebuilt` or `older` (left alone)."""
        _vectors(block)
        with self._lock:
            return self._follow(block)

    def save(self, folder: Path) -> None:
        """Write index and stamp to `folder` so that a crash leaves the old ones, or none."""
        with self._saving:
            self._save(folder)

    def _save(self, folder: Path) -> None:
        import faiss

        with self._lock:
            block = self._block
            if block is None or self._faiss is None or not len(block.ids):
                return
            index = self._faiss if self._resources is None else faiss.index_gpu_to_cpu(self._faiss)
            data = faiss.serialize_index(index).tobytes()
            self.unsaved = 0  # also if writing fails: not tried again at every search
        count = len(block.ids)
        stamp = Stamp(
            bank=block.bank,
            namespace=block.namespace,
            version=block.version,
            embeddings_key=block.embeddings_key or "",
            count=count,
            content=_content(block, count),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        with folder_written_atomically(folder) as fresh:
            (fresh / INDEX_FILE).write_bytes(data)
            (fresh / STAMP_FILE).write_text(json.dumps(asdict(stamp), indent=2) + "\n")

    def load(self, folder: Path, block: Block) -> bool:
        """Take over a saved index if it is of `block` or of an earlier, shorter state of it.

        False, with the reason in the log, where there is none or it does not match in every point.
        """
        if not folder.exists():
            return False
        try:
            index = _read(folder, block)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            log.warning("saved index %s is not used and will be rebuilt: %s", folder, error)
            return False
        newer = _normalised(_vectors(block)[index.ntotal :])
        with self._lock:
            placed = self._place(index)
            if len(newer):
                placed.add(newer)
            self._faiss, self._block, self.unsaved = placed, block, len(newer)
        return True

    def _follow(self, block: Block) -> str:
        old = self._block
        if old is not None and self._faiss is not None and _same_store(old, block):
            if block.version == old.version:
                return "same"
            if block.version < old.version:
                return "older"
            known = len(old.ids)
            if _grew(old, block):
                self._faiss.add(_normalised(_vectors(block)[known:]))
                self._block = block
                self.unsaved += len(block.ids) - known
                return "extended"
        import faiss

        vectors = _vectors(block)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(_normalised(vectors))
        self._faiss, self._block = self._place(index), block
        self.unsaved = len(vectors)
        return "rebuilt"

    def _place(self, index: Any) -> Any:
        if self.device.kind != "cuda":
            return index
        import faiss

        if self._resources is None:
            self._resources = faiss.StandardGpuResources()
        return faiss.index_cpu_to_gpu(self._resources, self.device.index, index)

    def _propose(self, block: Block, queries: Floats, k: int) -> list[Ids | None]:
        """Rows among which the k best live ones certainly are, per query; None: all rows."""
        proposed: list[Ids | None] = [None] * len(queries)
        if self._follow(block) == "older":
            # A newer search was faster; its index may hold cases this snapshot does not know.
            return proposed
        # Two float32 dot products of unit vectors differ by at most 2 E u in exact arithmetic
        # (u = 2^-24); two of them compared, by twice that.
        margin = 4 * queries.shape[1] * 2.0**-24
        fetch, most = k + 16, min(MOST_CANDIDATES, len(block.ids))
        undecided = list(range(len(queries)))
        while undecided and fetch < most:
            scores, rows = self._faiss.search(queries[undecided], fetch)  # (U, fetch) both
            for number, found, row in zip(undecided, scores, rows, strict=True):
                alive = found[block.live[row]]
                if len(alive) >= k and alive[k - 1] - margin > found[-1]:
                    proposed[number] = row
            undecided = [number for number in undecided if proposed[number] is None]
            fetch *= 2
        return proposed


def _resolve(device: str) -> Device:
    """Where FAISS will compute, found out once."""
    wanted = Device.parse(device)
    if wanted.kind == "cpu":
        return wanted
    try:
        import faiss
    except ImportError as error:
        raise IndexUnavailable(
            "cosine search needs FAISS; install precedent-memory[cpu] or precedent-memory[gpu]"
        ) from error
    gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if wanted.kind == "auto":
        return Device("cuda" if gpus else "cpu")
    if wanted.index >= gpus:
        raise DeviceUnavailable(
            f"index device = {device!r}, but FAISS sees {gpus} GPUs; install "
            "precedent-memory[gpu] on a machine with a GPU, or choose cpu or auto"
        )
    return wanted


def _vectors(block: Block) -> Floats:
    if block.embeddings is None:
        raise IndexUnavailable(
            f"namespace {block.namespace!r} has no query embeddings; open the bank with a cosine "
            "encoder (cosine_encoder=FOLDER when serving), or search with mode='exact'"
        )
    return block.embeddings


def _normalised(vectors: Floats) -> Floats:
    """(N, E) -> (N, E) of length one; a zero vector stays zero, its cosine to anything is 0."""
    squares = np.einsum("ne,ne->n", vectors, vectors, dtype=np.float64)  # (N,)
    if not np.isfinite(squares).all():
        row = int(np.flatnonzero(~np.isfinite(squares))[0])
        raise NonFiniteScore(f"vector {row} holds NaN or infinity; embed its text again")
    lengths = np.where(squares == 0, 1.0, np.sqrt(squares))[:, None]
    unit = np.empty(vectors.shape, dtype=np.float32)
    return np.divide(vectors, lengths, out=unit, casting="same_kind")


def _best(block: Block, rows: Ids, candidates: Floats, query: Floats, k: int) -> tuple[Ids, Floats]:
    """Order the proposed rows (C,) by cosine, then id: candidates (C, E), query (E,)."""
    # einsum, not BLAS, whose rounding depends on a row's place: equal vectors must tie.
    cosines = np.einsum("ce,e->c", candidates, query)
    (best,) = top_k(cosines[None], block.ids[rows], block.live[rows], k)
    return rows[best], cosines[best]


def _same_store(old: Block, new: Block) -> bool:
    return (old.bank, old.namespace, old.embeddings_key) == (
        new.bank,
        new.namespace,
        new.embeddings_key,
    )


def _grew(old: Block, new: Block) -> bool:
    """Whether `new` begins with every row of `old`, unchanged."""
    count = len(old.ids)
    return (
        0 < count <= len(new.ids)
        and np.array_equal(old.ids, new.ids[:count])
        and np.array_equal(_vectors(old), _vectors(new)[:count])
    )


def _content(block: Block, count: int) -> str:
    """A digest of the first `count` ids and vectors."""
    digest = hashlib.sha256(np.ascontiguousarray(block.ids[:count], dtype="<i8").data)
    digest.update(np.ascontiguousarray(_vectors(block)[:count], dtype="<f4").data)
    return digest.hexdigest()


def _read(folder: Path, block: Block) -> Any:
    """The saved FAISS index; ValueError names the first point in which it does not match."""
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
    # Before FAISS parses a byte: its reader is not made for damaged files.
    if hashlib.sha256(data).hexdigest() != stamp.sha256:
        raise ValueError(f"{INDEX_FILE} is truncated or changed")
    if _content(block, stamp.count) != stamp.content:
        raise ValueError("its cases or vectors are not those of the bank")
    index = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
    if index.ntotal != stamp.count or index.d != _vectors(block).shape[1]:
        raise ValueError(f"it has shape ({index.ntotal}, {index.d}), not as stamped")
    return index
