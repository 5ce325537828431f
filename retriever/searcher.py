"""`search(queries, k)` over a bank: the only place where cases, scorer and index meet.

Every call reads one immutable picture of the namespace, the newest acknowledged one; it never waits
for a writer, and a case added before the call is seen by it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from retriever import scan
from retriever.embedders import QueryEncoder, projection_key, query_key
from retriever.errors import IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.index import CosineIndex
from retriever.scorer import probabilities
from retriever.types import Block, Calibration, CaseSource, Floats, Hit

MODES = ("exact", "cosine")

#: A saved index is written again once the bank has grown by this share; on closing in any case.
SAVE_AT_GROWTH = 0.25

log = logging.getLogger(__name__)


class QueryScorer(Protocol):
    """The part of a scorer that a search needs."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector could."""
        ...

    @property
    def weight(self) -> Floats:
        """(D,)."""
        ...

    @property
    def offset(self) -> float:
        """Added to every logit."""
        ...

    @property
    def calibration(self) -> Calibration:
        """From logits to probabilities."""
        ...

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D)."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The hits of each query, best first, and the version of the bank they were read from."""

    hits: list[list[Hit]]
    version: int


class Searcher:
    """Search by the trained head (`exact`) or by query similarity (`cosine`). Safe for threads.

    Args:
        source: where cases come from; `memory.CaseBank` is one.
        scorer: the trained retriever.
        encoder: the untrained encoder of cosine mode; None switches that mode off.
        index_dir: where cosine indexes are kept between runs; None keeps none.
        device: where the index computes: auto | cpu | cuda | cuda:<index>.
    """

    def __init__(
        self,
        source: CaseSource,
        scorer: QueryScorer,
        encoder: QueryEncoder | None = None,
        *,
        index_dir: Path | None = None,
        device: str = "auto",
    ) -> None:
        calibration = scorer.calibration
        if not (math.isfinite(calibration.a) and math.isfinite(calibration.b)):
            raise NonFiniteScore(f"the scorer's {calibration} holds no numbers; export it again")
        self._source, self._scorer, self._encoder = source, scorer, encoder
        self._index_dir, self._device = index_dir, device
        if encoder is not None:
            CosineIndex(device)  # that the device is missing should not wait for the first search
        self._indexes: dict[str, CosineIndex] = {}
        self._lock = threading.Lock()
        self._modes: dict[str, Callable[[Block, Sequence[str], int], list[list[Hit]]]] = {
            "exact": self._exact,
            "cosine": self._cosine,
        }

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that can be used here."""
        return MODES if self._encoder is not None else ("exact",)

    def search(
        self,
        queries: Sequence[str],
        k: int,
        *,
        namespace: str = "default",
        mode: str = "exact",
        min_score: float | None = None,
    ) -> list[list[Hit]]:
        """The k best cases for each query, best first: Q queries -> Q lists of at most k hits.

        Ties go to the lower id; a bank of fewer cases gives fewer hits; an empty one, none.
        `min_score` drops hits whose `score` is below it: the probability in exact mode, the cosine
        in cosine mode.

        Raises:
            InvalidInput: no query, a blank one, k below 1, an unknown mode, a `min_score` that is
                no number.
            IndexUnavailable: the mode needs vectors that are not here.
            NonFiniteScore: a model or a stored vector is broken.
        """
        return self.answer(queries, k, namespace=namespace, mode=mode, min_score=min_score).hits

    def answer(
        self,
        queries: Sequence[str],
        k: int,
        *,
        namespace: str = "default",
        mode: str = "exact",
        min_score: float | None = None,
    ) -> Answer:
        """As `search`, with the version of the bank that was read."""
        _check(queries, k, mode, min_score)
        if mode == "cosine" and self._encoder is None:
            raise IndexUnavailable(
                "cosine mode needs an untrained encoder, and none was given; pass encoder= to "
                "Searcher (cosine_encoder=FOLDER when serving), or use mode='exact'"
            )
        block = self._source.block(namespace)
        hits = self._modes[mode](block, queries, k)
        if min_score is not None:
            hits = [[hit for hit in found if hit.score >= min_score] for found in hits]
        return Answer(hits, block.version)

    def close(self) -> None:
        """Save the indexes that grew since they were saved, so that the next start is quick."""
        with self._lock:
            for namespace, index in self._indexes.items():
                if index.unsaved:
                    self._save(namespace, index)

    def _exact(self, block: Block, queries: Sequence[str], k: int) -> list[list[Hit]]:
        projections = _projections(block, self._scorer)
        if not len(block.ids):
            return [[] for _ in queries]
        calibration = self._scorer.calibration
        logits = scan.logits(
            projections,
            self._scorer.query_projections(queries),
            self._scorer.weight,
            self._scorer.offset,
        )  # (Q, N)
        # By logit, for saturated sigmoids tie where logits do not; a calibration that falls with
        # the logit turns the order round with it.
        rising = calibration.a >= 0
        best = scan.top_k(logits if rising else -logits, block.ids, block.live, k)
        found = []
        for row, rows in zip(logits, best, strict=True):
            chosen = row[rows].astype(np.float64)
            chances = probabilities(chosen, calibration)
            found.append(
                [
                    Hit(int(identity), float(p), rank, logit=float(logit), probability=float(p))
                    for rank, (identity, p, logit) in enumerate(
                        zip(block.ids[rows], chances, chosen, strict=True), start=1
                    )
                ]
            )
        return found

    def _cosine(self, block: Block, queries: Sequence[str], k: int) -> list[list[Hit]]:
        assert self._encoder is not None
        expected = query_key(self._encoder.fingerprint)
        if block.embeddings is None or block.embeddings_key != expected:
            raise IndexUnavailable(
                f"namespace {block.namespace!r} has query embeddings of {block.embeddings_key!r}, "
                f"cosine mode needs {expected!r}; open the bank with QueryEmbedder(encoder) of the "
                "encoder that searches"
            )
        if not len(block.ids):
            return [[] for _ in queries]
        vectors = self._encoder.embed(queries)
        index = self._index(block)
        found = index.search(block, vectors, k)
        if index.unsaved >= SAVE_AT_GROWTH * len(block.ids):
            self._save(block.namespace, index)
        return [
            [
                Hit(int(identity), float(cosine), rank)
                for rank, (identity, cosine) in enumerate(
                    zip(block.ids[rows], cosines, strict=True), start=1
                )
            ]
            for rows, cosines in found
        ]

    def _index(self, block: Block) -> CosineIndex:
        with self._lock:
            index = self._indexes.get(block.namespace)
            if index is None:
                index = CosineIndex(self._device)
                if self._index_dir is not None:
                    index.load(_folder(self._index_dir, block.namespace), block)
                self._indexes[block.namespace] = index
            return index

    def _save(self, namespace: str, index: CosineIndex) -> None:
        if self._index_dir is None:
            return
        folder = _folder(self._index_dir, namespace)
        try:
            index.save(folder)
        except OSError as error:
            # A cache that cannot be kept costs the next start some time, not an answer.
            log.warning("the index could not be saved to %s: %s", folder, error)


def _folder(index_dir: Path, namespace: str) -> Path:
    # A namespace may hold any printable character; its digest is always a file name.
    return index_dir / hashlib.sha256(namespace.encode()).hexdigest()[:16]


def _projections(block: Block, scorer: QueryScorer) -> Floats:
    expected = projection_key(scorer.fingerprint)
    if block.projections is None or block.projections_key != expected:
        raise IndexUnavailable(
            f"namespace {block.namespace!r} has projections of {block.projections_key!r}, this "
            f"scorer needs {expected!r}; open the bank with CaseProjector(scorer) of the scorer "
            "that searches"
        )
    return block.projections


def _check(queries: Sequence[str], k: int, mode: str, min_score: float | None) -> None:
    if mode not in MODES:
        raise InvalidInput(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInput(f"k must be a whole number of at least 1, got {k!r}")
    if isinstance(queries, str):
        raise InvalidInput("queries must be a list of texts, got one text; wrap it in a list")
    if not len(queries):
        raise InvalidInput("queries is empty; give at least one")
    for index, query in enumerate(queries):
        if not isinstance(query, str):
            raise InvalidInput(f"queries[{index}] must be text, got {type(query).__name__}")
        if not query.strip():
            raise InvalidInput(f"queries[{index}] is blank; give words to search for")
    if min_score is not None and (isinstance(min_score, bool) or not math.isfinite(min_score)):
        raise InvalidInput(f"min_score must be a finite number or None, got {min_score!r}")
