"""How like a text the cases of a namespace are, by the embeddings that the bank keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memory.arrays.block import Block
from memory.types import Embedder


@dataclass(frozen=True, slots=True)
class TextCase:
    """A text as an embedder wants it: a case that says it and nothing else."""

    query: str
    plan: None = None
    kind: str = "fact"
    created_at: None = None

    @property
    def metadata(self) -> dict[str, str]:
        """Nothing."""
        return {}


class BlockRanker:
    """Cosines of a text with the embedded queries of a namespace: a full scan, nothing missed."""

    def __init__(self, embedder: Embedder, block: Callable[[str], Block]) -> None:
        self._embedder = embedder
        self._block = block

    def similar(self, namespace: str, text: str, threshold: float) -> dict[int, float]:
        """Case ids with their cosine to a text, those at or above the threshold.

        Cases kept for history have no row in a search, so they are found by their words only.
        """
        block = self._block(namespace)
        chunks: Sequence[np.ndarray] = block.embeddings or ()
        if not len(block):
            return {}
        query = self._embedder.embed([self._embedder.text(TextCase(text))])[0].astype(np.float32)
        query /= max(float(np.linalg.norm(query)), 1e-12)
        cosines = np.concatenate([_cosines(chunk, query) for chunk in chunks])  # (N,)
        rows = np.flatnonzero(block.live & (cosines >= threshold))
        return {int(block.ids[row]): float(cosines[row]) for row in rows}


def _cosines(chunk: np.ndarray, query: np.ndarray) -> np.ndarray:
    """(n, E), (E,) -> (n,) cosines."""
    rows = chunk.astype(np.float32, copy=False)
    lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
    result: np.ndarray = (rows @ query) / lengths
    return result
