"""Hand-made banks and models for the search tests: tiny data, numbers in plain view."""

from dataclasses import dataclass, field, replace

import numpy as np

from retriever.head import Head
from retriever.text import TEXT_FORMAT
from retriever.types import UNKNOWN_TIME, Calibration


@dataclass(frozen=True)
class TinyColumns:
    outcome: np.ndarray
    valid_from: np.ndarray
    valid_to: np.ndarray


@dataclass(frozen=True)
class TinyBlock:
    ids: np.ndarray
    live: np.ndarray
    embeddings: tuple | None = None
    projections: tuple | None = None
    version: int = 1
    bank: str = "b1"
    namespace: str = "default"
    embeddings_key: str | None = "cos:query"
    projections_key: str | None = f"model:{TEXT_FORMAT}:projection"
    stamps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    columns: TinyColumns | None = None


def block_of(
    vectors,
    *,
    ids=None,
    live=None,
    stamps=None,
    valid=None,
    outcomes=None,
    cuts=(),
    dtype=np.float32,
    **more,
) -> TinyBlock:
    """A block of these vectors, cut into chunks at rows `cuts`; `valid` is (start, end) a row."""
    vectors = np.asarray(vectors, dtype=dtype)
    count = len(vectors)
    ids = np.arange(1, count + 1) if ids is None else np.asarray(ids)
    live = np.ones(count, bool) if live is None else np.asarray(live)
    stamps = np.ones(count, np.int64) if stamps is None else np.asarray(stamps)
    spans = [(None, None)] * count if valid is None else valid
    start, end = (
        (
            np.array([UNKNOWN_TIME if t is None else t for t in times], np.int64)
            for times in zip(*spans, strict=True)
        )
        if count
        else (np.empty(0, np.int64),) * 2
    )
    return TinyBlock(
        ids=ids,
        live=live,
        stamps=stamps,
        columns=TinyColumns(
            np.full(count, np.nan) if outcomes is None else np.asarray(outcomes, float), start, end
        ),
        embeddings=tuple(np.split(vectors, cuts)),
        **more,
    )


def changed(block, **more):
    """The block with other vectors, or fewer rows, or whatever is named."""
    given = {"vectors": vectors_of(block)} | {
        name: getattr(block, name) for name in ("ids", "live", "stamps")
    }
    kept = ("version", "bank", "namespace", "embeddings_key", "projections_key")
    return block_of(**(given | {name: getattr(block, name) for name in kept} | more))


def first(block, count, **more):
    """Its first rows."""
    given = {name: getattr(block, name)[:count] for name in ("ids", "live", "stamps")}
    return changed(block, vectors=vectors_of(block)[:count], **(given | more))


def vectors_of(block):
    return np.concatenate(block.embeddings)


def source_of(vectors, **more):
    """A source of one block whose projections are its embeddings."""
    block = block_of(vectors, **more)
    return TinySource({block.namespace: replace(block, projections=block.embeddings)})


def ids_of(found):
    """The ids of each query's hits."""
    return [[hit.id for hit in hits] for hits in found]


@dataclass
class TinySource:
    """Its filter is a set of ids."""

    blocks: dict = field(default_factory=dict)

    def block(self, namespace):
        if namespace in self.blocks:
            return self.blocks[namespace]
        nothing = block_of(np.empty((0, 2)), version=0, namespace=namespace)
        return replace(nothing, projections=nothing.embeddings)

    def eligible(self, block, where):
        return np.isin(block.ids, list(where))


@dataclass
class TinyLexical:
    """For every query the same (id, score), best first; `where` is a set of ids."""

    scores: dict
    asked: list = field(default_factory=list)

    def search_text(self, query, k, *, namespace, where=None):
        self.asked.append((query, k, namespace, where))
        kept = [pair for pair in self.scores.items() if where is None or pair[0] in where]
        return sorted(kept, key=lambda pair: (-pair[1], pair[0]))[:k]

    def text_scores(self, query, ids, *, namespace):
        return {id_: self.scores[id_] for id_ in ids if id_ in self.scores}


@dataclass
class TinyScorer:
    """A query `x y` projects to (x, y); the head adds up what is positive."""

    head: Head = field(default_factory=lambda: Head(np.ones(2, np.float32), 0.0))
    calibration: Calibration = field(default_factory=Calibration)
    fingerprint: str = "model"

    def query_projections(self, queries):
        return np.array([[float(x) for x in query.split()] for query in queries], np.float32)


@dataclass
class TinyEncoder:
    fingerprint: str = "cos"

    def embed(self, texts):
        return np.array([[float(x) for x in text.split()] for text in texts], np.float32)
