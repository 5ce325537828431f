"""Vectors of queries asked before: the encoder is most of a search's time, and agents ask again.

A cache stands where a scorer or an encoder stands and answers the same, but for the last bits in
which a text's float32 vector may depend on the texts of its batch: the vector computed first is the
one given again. It holds no words: a key is
a digest, salted per cache, of the model's fingerprint, the text format and the text. `clear` drops
everything, also what searches that are under way would put in.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retriever.embedders import QueryEncoder
from retriever.errors import InvalidInput
from retriever.head import Head
from retriever.text import TEXT_FORMAT
from retriever.types import Calibration, Floats

#: 10,000 projections of 512 float32 are 20 MB.
ENTRIES = 10_000


class Scores(Protocol):
    """The part of a scorer that a search needs."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector could."""
        ...

    @property
    def head(self) -> Head:
        """From the vectors of case and query to a logit."""
        ...

    @property
    def calibration(self) -> Calibration:
        """From logits to probabilities."""
        ...

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D + R)."""
        ...


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Texts found and not found since the cache was made, and vectors held now."""

    hits: int
    misses: int
    entries: int


class VectorCache:
    """The `entries` vectors used last, by text. Safe for threads.

    Two threads that miss the same text both compute it: waiting for one another would tie a search
    to the slowest of the others.

    Raises:
        InvalidInput: `entries` below 1.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        if isinstance(entries, bool) or not isinstance(entries, int) or entries < 1:
            raise InvalidInput(f"entries = {entries!r}: a whole number of at least 1")
        self._entries = entries
        self._salt = secrets.token_bytes(16)
        self._vectors: OrderedDict[bytes, Floats] = OrderedDict()
        self._hits = self._misses = self._cleared = 0
        self._lock = threading.Lock()

    def vectors(
        self, model: str, texts: Sequence[str], compute: Callable[[Sequence[str]], Floats]
    ) -> Floats:
        """N texts -> (N, W) float32, of which `compute` makes those not held, each text once.

        Args:
            model: the fingerprint of what computes.
            texts: in any number, also none, which is left to `compute` as everything invalid is;
                a generator is read once.
            compute: M texts -> (M, W).
        """
        if isinstance(texts, Iterator):  # it can be read once, and is read twice here
            texts = list(texts)
        try:
            keys = [self._key(model, text) for text in texts]
        except (AttributeError, TypeError, UnicodeEncodeError):
            keys = []  # not texts: the model's own message is the better one
        if not keys or isinstance(texts, str):
            return compute(texts)
        with self._lock:
            held = {key: self._vectors[key] for key in set(keys) if key in self._vectors}
            for key in held:
                self._vectors.move_to_end(key)
            found = sum(key in held for key in keys)
            self._hits += found
            self._misses += len(keys) - found
            cleared = self._cleared
        lacking = {key: text for key, text in zip(keys, texts, strict=True) if key not in held}
        if lacking:
            made = np.asarray(compute(list(lacking.values())), dtype=np.float32)
            held.update(zip(lacking, made, strict=True))
            self._keep(dict(zip(lacking, made, strict=True)), cleared)
        return np.stack([held[key] for key in keys])

    def clear(self) -> None:
        """Drop every vector; what is being computed now is not kept either."""
        with self._lock:
            self._vectors.clear()
            self._cleared += 1

    def counts(self) -> CacheCounts:
        """Hits, misses and entries."""
        with self._lock:
            return CacheCounts(self._hits, self._misses, len(self._vectors))

    def _key(self, model: str, text: str) -> bytes:
        named = f"{model}\0{TEXT_FORMAT}\0".encode()
        return hashlib.sha256(self._salt + named + text.encode()).digest()

    def _keep(self, made: dict[bytes, Floats], cleared: int) -> None:
        with self._lock:
            if self._cleared != cleared:
                return
            for key, vector in made.items():
                # A copy: a row would keep the whole array of its batch alive.
                self._vectors[key] = vector.copy()
                self._vectors.move_to_end(key)
            while len(self._vectors) > self._entries:
                self._vectors.popitem(last=False)


class CachedQueries:
    """A scorer whose query projections are kept: a search takes it for the scorer itself."""

    def __init__(self, scorer: Scores, entries: int = ENTRIES) -> None:
        self._scorer = scorer
        self._cache = VectorCache(entries)

    @property
    def fingerprint(self) -> str:
        """The scorer's."""
        return self._scorer.fingerprint

    @property
    def head(self) -> Head:
        """The scorer's."""
        return self._scorer.head

    @property
    def calibration(self) -> Calibration:
        """The scorer's."""
        return self._scorer.calibration

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D + R); each distinct query that is not held is encoded once."""
        return self._cache.vectors(
            self._scorer.fingerprint, queries, self._scorer.query_projections
        )

    def clear(self) -> None:
        """Drop every vector, as a request to forget a query wants."""
        self._cache.clear()

    def counts(self) -> CacheCounts:
        """Hits, misses and entries."""
        return self._cache.counts()


class CachedEncoder:
    """An untrained encoder whose query vectors are kept: a search takes it for the encoder."""

    def __init__(self, encoder: QueryEncoder, entries: int = ENTRIES) -> None:
        self._encoder = encoder
        self._cache = VectorCache(entries)

    @property
    def fingerprint(self) -> str:
        """The encoder's."""
        return self._encoder.fingerprint

    @property
    def dim(self) -> int:
        """E, the length of a vector."""
        return self._encoder.dim

    def embed(self, texts: Sequence[str]) -> Floats:
        """N texts -> (N, E), L2-normalised; each distinct text that is not held is encoded once."""
        return self._cache.vectors(self._encoder.fingerprint, texts, self._encoder.embed)

    def clear(self) -> None:
        """Drop every vector, as a request to forget a query wants."""
        self._cache.clear()

    def counts(self) -> CacheCounts:
        """Hits, misses and entries."""
        return self._cache.counts()
