"""Hand-made banks and models for the search tests: tiny data, numbers in plain view."""

from dataclasses import dataclass, field

import numpy as np

from retriever.text import TEXT_FORMAT
from retriever.types import Calibration


@dataclass(frozen=True)
class TinyBlock:
    ids: np.ndarray
    live: np.ndarray
    embeddings: np.ndarray | None = None
    projections: np.ndarray | None = None
    version: int = 1
    bank: str = "b1"
    namespace: str = "default"
    embeddings_key: str | None = "cos:query"
    projections_key: str | None = f"model:{TEXT_FORMAT}:projection"


def block_of(vectors, *, ids=None, live=None, **more) -> TinyBlock:
    vectors = np.asarray(vectors, dtype=np.float32)
    ids = np.arange(1, len(vectors) + 1) if ids is None else np.asarray(ids)
    live = np.ones(len(vectors), bool) if live is None else np.asarray(live)
    return TinyBlock(ids=ids, live=live, embeddings=vectors, **more)


@dataclass
class TinySource:
    blocks: dict = field(default_factory=dict)

    def block(self, namespace):
        if namespace in self.blocks:
            return self.blocks[namespace]
        nothing = np.empty((0, 2), np.float32)
        return TinyBlock(
            np.empty(0, np.int64), np.empty(0, bool), nothing, nothing, 0, namespace=namespace
        )


@dataclass
class TinyScorer:
    """A query `x y` projects to (x, y); the head adds up what is positive."""

    weight: np.ndarray = field(default_factory=lambda: np.ones(2, np.float32))
    offset: float = 0.0
    calibration: Calibration = field(default_factory=Calibration)
    fingerprint: str = "model"

    def query_projections(self, queries):
        return np.array([[float(x) for x in query.split()] for query in queries], np.float32)


@dataclass
class TinyEncoder:
    fingerprint: str = "cos"

    def embed(self, texts):
        return np.array([[float(x) for x in text.split()] for text in texts], np.float32)
