"""A bank's changes without a database: a log in plain Python, and what a block should hold."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from memory.arrays.feed import UNKNOWN_TIME, Batch, Changes, Columns
from tests.memory.embedders import Digests


@dataclass
class Entry:
    """A case: the words its vectors come from, and the change that made it what it is."""

    words: str
    stamp: int
    live: bool = True
    embedded: bool = True
    valid_from: int = UNKNOWN_TIME
    outcome: float = float("nan")


@dataclass
class Space:
    origin: int
    version: int = 0
    cases: dict = field(default_factory=dict)
    removed: list = field(default_factory=list)  # of (change, id)


class FakeFeed:
    """Keeps everything; `batch` cases at a time, `dtype` as stored."""

    def __init__(self, *, batch=7, dtype=np.float32, uid="bank-1"):
        self.uid, self.batch, self.dtype = uid, batch, dtype
        self.spaces = {}
        self.sequence = self.made = 0
        self.read, self.embedded = [], []  # batches given out, calls of embed_missing
        self.lock = threading.RLock()  # a change is seen whole or not at all

    def _change(self, namespace):
        self.sequence += 1
        if namespace not in self.spaces:
            self.made += 1
            self.spaces[namespace] = Space(self.made)
        self.spaces[namespace].version = self.sequence
        return self.spaces[namespace]

    def put(self, cases, namespace="default", **more):
        """Add or overwrite: {id: words}."""
        with self.lock:
            space = self._change(namespace)
            for id_, words in cases.items():
                space.cases[id_] = Entry(words, self.sequence, **more)

    def remove(self, *ids, namespace="default"):
        with self.lock:
            space = self._change(namespace)
            for id_ in ids:
                space.cases.pop(id_, None)
                space.removed.append((self.sequence, id_))

    def delete(self, namespace="default"):
        self.sequence += 1
        del self.spaces[namespace]

    def version(self, namespace):
        with self.lock:
            return self.spaces[namespace].version if namespace in self.spaces else None

    @contextmanager
    def changes(self, namespace, after, roles):
        if namespace not in self.spaces:
            yield None
            return
        with self.lock:
            space = self.spaces[namespace]
            version, origin = space.version, space.origin
            newer = [(e.stamp, id_, e) for id_, e in space.cases.items() if e.stamp > after]
            removed = [id_ for change, id_ in space.removed if change > after]
        newer.sort(key=lambda row: row[:2])
        batches = self._batches(newer, roles)
        yield Changes(version, origin, np.array(removed, np.int64), batches)

    def _batches(self, rows, roles):
        for start in range(0, len(rows), self.batch):
            part = rows[start : start + self.batch]
            self.read.append(len(part))
            entries = [entry for _, _, entry in part]
            count = len(part)
            columns = Columns(
                np.array([e.outcome for e in entries], np.float32),
                np.zeros(count, np.uint8),
                np.arange(count, dtype=np.int64),
                np.array([e.valid_from for e in entries], np.int64),
                np.full(count, UNKNOWN_TIME, np.int64),
            )
            lacks = any(e.live and not e.embedded for e in entries)
            vectors = tuple(
                None
                if lacks
                else np.stack([role.vector(e.words) for e in entries]).astype(self.dtype)
                for role in roles
            )
            yield Batch(
                np.array([id_ for _, id_, _ in part], np.int64),
                np.array([stamp for stamp, _, _ in part], np.int64),
                np.array([e.live for e in entries]),
                columns,
                vectors,
            )

    def embed_missing(self, namespace, roles):
        lacking = [e for e in self.spaces[namespace].cases.values() if not e.embedded]
        for entry in lacking:
            entry.embedded = True
        self.embedded.append(len(lacking))
        return len(lacking)


def roles(first=2, second=3):
    return Digests("q", first), Digests("w", second)


def assert_holds(block, feed, embedders, *, dtype=np.float32):
    """Every row against the slow way: one case, one vector at a time."""
    space = feed.spaces[block.namespace]
    expected = {id_: entry for id_, entry in space.cases.items() if entry.live}
    rows = np.flatnonzero(block.live)
    assert sorted(block.ids[rows].tolist()) == sorted(expected)
    assert block.version == space.version
    for chunks, embedder in zip((block.embeddings, block.projections), embedders, strict=True):
        whole = np.concatenate(chunks)
        assert len(whole) == len(block) == len(block.stamps)
        assert whole.dtype == dtype
        for row in rows:
            entry = expected[int(block.ids[row])]
            np.testing.assert_array_equal(whole[row], embedder.vector(entry.words).astype(dtype))
            assert block.stamps[row] == entry.stamp
            assert block.columns.valid_from[row] == entry.valid_from
