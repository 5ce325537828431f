"""`search(queries, k)` over a bank: the only place where cases, scorer and index meet.

Every call reads one immutable picture of the namespace, the newest acknowledged one; it never waits
for a writer, and a case added before the call is seen by it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from retriever import scan
from retriever.embedders import QueryEncoder, projection_key, query_key
from retriever.errors import IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.head import Head
from retriever.index import CosineIndex
from retriever.ordering import top_k
from retriever.scorer import probabilities
from retriever.types import UNKNOWN_TIME, Array, Block, Bools, Calibration, CaseSource, Floats, Hit

MODES = ("exact", "cosine")

#: A saved index is written again once the bank has grown by this share; on closing in any case.
SAVE_AT_GROWTH = 0.25

log = logging.getLogger(__name__)


#: From block, queries, k and the rows that may be found to the hits of each query.
_Mode: TypeAlias = "Callable[[Block, Sequence[str], int, Bools], list[list[Hit]]]"


class QueryScorer(Protocol):
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
        """Q queries -> (Q, D + R), as the head reads them."""
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
        self._modes: dict[str, _Mode] = {
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
        as_of: int | None = None,
    ) -> list[list[Hit]]:
        """The k best cases for each query, best first: Q queries -> Q lists of at most k hits.

        Ties go to the lower id; a bank of fewer cases gives fewer hits; an empty one, none.
        `min_score` drops hits whose `score` is below it: the probability in exact mode, the cosine
        in cosine mode. `as_of` leaves the cases that were valid at that moment, microseconds since
        1970-01-01 UTC: `valid_from <= as_of < valid_to`, where an end that is not known is open.

        Raises:
            InvalidInput: no query, a blank one, k below 1, an unknown mode, a `min_score` or an
                `as_of` that is no number.
            IndexUnavailable: the mode needs vectors that are not here.
            NonFiniteScore: a model or a stored vector is broken.
        """
        return self.answer(
            queries, k, namespace=namespace, mode=mode, min_score=min_score, as_of=as_of
        ).hits

    def answer(
        self,
        queries: Sequence[str],
        k: int,
        *,
        namespace: str = "default",
        mode: str = "exact",
        min_score: float | None = None,
        as_of: int | None = None,
    ) -> Answer:
        """As `search`, with the version of the bank that was read."""
        _check(queries, k, mode, min_score)
        _check_as_of(as_of)
        if mode == "cosine" and self._encoder is None:
            raise IndexUnavailable(
                "cosine mode needs an untrained encoder, and none was given; pass encoder= to "
                "Searcher (cosine_encoder=FOLDER when serving), or use mode='exact'"
            )
        block = self._source.block(namespace)
        hits = self._modes[mode](block, queries, k, _eligible(block, as_of))
        if min_score is not None:
            hits = [[hit for hit in found if hit.score >= min_score] for found in hits]
        return Answer(hits, block.version)

    def close(self) -> None:
        """Save the indexes that grew since they were saved, so that the next start is quick."""
        with self._lock:
            for namespace, index in self._indexes.items():
                if index.unsaved:
                    self._save(namespace, index)

    def drop(self, namespace: str) -> None:
        """Forget what is kept of a namespace beside the bank: its index, in memory and on disk.

        For a purge that is committed. Searches that began before it still answer from what they
        hold, but nothing of that gets into an index or a file any more.

        Raises:
            IndexUnavailable: the saved index cannot be deleted.
        """
        with self._lock:
            if self._encoder is not None and namespace not in self._indexes:
                self._indexes[namespace] = CosineIndex(self._device)
            index = self._indexes.get(namespace)
        if index is not None:
            index.drop()
        self._delete(namespace)
        if index is not None:
            index.accept(self._source.block(namespace).version)

    def _exact(
        self, block: Block, queries: Sequence[str], k: int, eligible: Bools
    ) -> list[list[Hit]]:
        projections = _projections(block, self._scorer)
        if not len(block.ids):
            return [[] for _ in queries]
        calibration = self._scorer.calibration
        logits = scan.logits(
            self._scorer.head, projections, self._scorer.query_projections(queries)
        )  # (Q, N)
        # By logit, for saturated sigmoids tie where logits do not; a calibration that falls with
        # the logit turns the order round with it.
        rising = calibration.a >= 0
        best = top_k(logits if rising else -logits, block.ids, eligible, k)
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

    def _cosine(
        self, block: Block, queries: Sequence[str], k: int, eligible: Bools
    ) -> list[list[Hit]]:
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
        found = index.search(block, vectors, k, eligible)
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
            saved = index.save(folder)
        except OSError as error:
            # A cache that cannot be kept costs the next start some time, not an answer.
            log.warning("the index could not be saved to %s: %s", folder, error)
            return
        try:
            if saved is not None and not self._still_right(namespace, index, saved):
                self._delete(namespace)
        except Exception as error:
            log.warning("the index saved to %s could not be checked: %s", folder, error)
            self._delete(namespace)

    def _still_right(self, namespace: str, index: CosineIndex, saved: int) -> bool:
        """Whether all that was saved is still in the bank: another process may have purged some."""
        newest = self._source.block(namespace)
        return newest.version == saved or index.follow(newest) in ("same", "extended")

    def _delete(self, namespace: str) -> None:
        """Delete the saved index, and what a crash may have left of writing one."""
        if self._index_dir is None:
            return
        folder = _folder(self._index_dir, namespace)
        for path in (folder, *self._index_dir.glob(f".{folder.name}.*")):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise IndexUnavailable(
                    f"the saved index {path} cannot be deleted: {error.strerror or error}; delete "
                    "the folder, for it may hold vectors of cases that were forgotten"
                ) from error


def _folder(index_dir: Path, namespace: str) -> Path:
    # A namespace may hold any printable character; its digest is always a file name.
    return index_dir / hashlib.sha256(namespace.encode()).hexdigest()[:16]


def _eligible(block: Block, as_of: int | None) -> Bools:
    """Which rows may be found: (N,)."""
    if as_of is None:
        return block.live
    start, end = block.columns.valid_from, block.columns.valid_to
    # A start that is not known is earlier than every time.
    eligible: Bools = block.live & (start <= as_of) & ((as_of < end) | (end == UNKNOWN_TIME))
    return eligible


def _projections(block: Block, scorer: QueryScorer) -> Sequence[Array]:
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


def _check_as_of(as_of: int | None) -> None:
    if as_of is None:
        return
    whole = isinstance(as_of, int | np.integer) and not isinstance(as_of, bool)
    if not whole or not -(2**63) < as_of < 2**63:
        raise InvalidInput(
            f"as_of must be microseconds since 1970-01-01 UTC, a whole number, got {as_of!r}"
        )
