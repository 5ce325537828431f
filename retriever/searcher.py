"""`search(queries, k)` over a bank: the only place where cases, scorer and indexes meet.

Every call reads one immutable picture of the namespace, the newest acknowledged one; it never waits
for a writer, and a case added before the call is seen by it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retriever.embedders import QueryEncoder
from retriever.errors import BankChanging, IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.index import CandidateIndex, CosineIndex
from retriever.kept_indexes import KeptIndexes
from retriever.modes.cosine import Cosine
from retriever.modes.exact import Ann, Exact, QueryScorer
from retriever.modes.hybrid import Hybrid
from retriever.modes.lexical import ByWords
from retriever.modes.mode import Mode, Scope
from retriever.query_cache import CachedEncoder, CachedQueries
from retriever.ranking.choosing import Wanted, answered
from retriever.ranking.diversity import Mmr, Quota
from retriever.ranking.exploration import Exploration
from retriever.ranking.fusion import Fusion
from retriever.request import MODES, check, check_as_of, check_options, valid_rows
from retriever.saved_copies import ANN, COSINE, SavedCopies
from retriever.scan import Scanner, open_scanner
from retriever.tiers.settings import IndexSettings
from retriever.types import Block, CaseSource, Floats, Hit, Ids, Lexical

__all__ = ["MODES", "Answer", "Exploration", "Fusion", "Mmr", "Quota", "Searcher"]

#: How often a filter is tried again on a newer block before a search gives up.
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The hits of each query, best first, and the version of the bank they were read from."""

    hits: list[list[Hit]]
    version: int


class Searcher:
    """Search by the trained head, by query similarity, by words, or by both. Safe for threads.

    Args:
        source: where cases come from; `memory.CaseBank` is one.
        scorer: the trained retriever; None switches off what needs it (`exact`, `ann`).
        encoder: the untrained encoder of cosine mode; None switches that mode off.
        lexical: the full-text index over the same cases, such as the bank itself; None switches
            `lexical` and `hybrid` off.
        index: the indexes of `cosine` and `ann`.
        index_dir: where these are kept between runs; None keeps none.
        device: where the scan computes: auto | cpu | cuda | cuda:<index>.
        storage: how the scan reads projections: see `retriever.scan.STORAGES`.
        threads: of the scan on a CPU; None takes the cores granted.
        cached_queries: vectors of so many queries are kept, without their words; 0 keeps none.
    """

    def __init__(
        self,
        source: CaseSource,
        scorer: QueryScorer | None,
        encoder: QueryEncoder | None = None,
        *,
        lexical: Lexical | None = None,
        index: IndexSettings | None = None,
        index_dir: Path | None = None,
        device: str = "auto",
        storage: str = "bank",
        threads: int | None = None,
        cached_queries: int = 0,
    ) -> None:
        if cached_queries < 0:
            raise InvalidInput(f"cached_queries = {cached_queries}: at least 0")
        settings = index or IndexSettings()
        self._source = source
        self._saved = None if index_dir is None else SavedCopies(index_dir)
        self._calibration = None if scorer is None else scorer.calibration
        self._head = None if scorer is None else scorer.head
        self._scanner: Scanner | None = None
        self._nearest: KeptIndexes[CosineIndex] | None = None
        self._likely: KeptIndexes[CandidateIndex] | None = None
        self._caches: list[CachedQueries | CachedEncoder] = []
        self._modes: dict[str, Mode] = {}
        self._dense: dict[str, Exact | Cosine] = {}
        if scorer is not None:
            _refuse_no_numbers(scorer)
            head = scorer.head
            if cached_queries:
                scorer = CachedQueries(scorer, cached_queries)
                self._caches.append(scorer)
            self._scanner = open_scanner(device, storage, threads)
            self._dense["exact"] = Exact(scorer, self._scanner)
            if importlib.util.find_spec("faiss") is not None:
                self._likely = KeptIndexes(
                    lambda: CandidateIndex(head, settings), index_dir, ANN, source.block
                )
                self._modes["ann"] = Ann(
                    scorer, self._scanner, self._candidates, settings.candidates
                )
        if encoder is not None:
            CosineIndex(settings)  # that the device is missing should not wait for a search
            if cached_queries:
                encoder = CachedEncoder(encoder, cached_queries)
                self._caches.append(encoder)
            self._nearest = KeptIndexes(
                lambda: CosineIndex(settings), index_dir, COSINE, source.block
            )
            self._dense["cosine"] = Cosine(encoder, self._similar)
        self._modes.update(self._dense)
        self._words = None if lexical is None else ByWords(lexical)
        if self._words is not None:
            self._modes["lexical"] = self._words

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that can be used here."""
        return tuple(
            mode
            for mode in MODES
            if mode in self._modes or (mode == "hybrid" and self._words and self._dense)
        )

    def search(
        self,
        queries: Sequence[str],
        k: int,
        *,
        namespace: str = "default",
        mode: str = "exact",
        min_score: float | None = None,
        as_of: int | None = None,
        where: Any = None,
        fusion: Fusion | None = None,
        mmr: Mmr | None = None,
        quota: Quota | None = None,
        exploration: Exploration | None = None,
    ) -> list[list[Hit]]:
        """The k best cases for each query, best first: Q queries -> Q lists of at most k hits.

        Ties go to the lower id; a bank of fewer cases gives fewer hits; an empty one, none.

        Args:
            queries: the texts.
            k: how many hits a query, at most.
            namespace: where to look.
            mode: `exact` (the head, every case), `ann` (the head, candidates of an index),
                `cosine` (stored query texts), `lexical` (words) or `hybrid` (words and one of
                `exact` and `cosine`).
            min_score: leaves out hits whose `score` is below it: the probability in exact and ann
                mode, the cosine, BM25 (`ts_rank` on PostgreSQL), the fused score in hybrid mode.
                They are left out before a policy chooses.
            as_of: only cases that were valid at that moment, microseconds since 1970-01-01 UTC:
                `valid_from <= as_of < valid_to`, where an end that is not known is open.
            where: only cases that fulfil a filter of the source's own (`memory.CaseFilter`).
            fusion: of hybrid mode.
            mmr: unlike cases instead of much the same.
            quota: so many successes and failures.
            exploration: a policy that leaves something to chance; `propensity` says how much.

        Raises:
            InvalidInput: no query, a blank one, k below 1, an unknown mode, a `min_score` or an
                `as_of` that is no number, `fusion` in another mode.
            IndexUnavailable: the mode needs a model, vectors or an index that are not here.
            BankChanging: the namespace changed faster than a filter could be applied.
            NonFiniteScore: a model or a stored vector is broken.
        """
        return self.answer(
            queries,
            k,
            namespace=namespace,
            mode=mode,
            min_score=min_score,
            as_of=as_of,
            where=where,
            fusion=fusion,
            mmr=mmr,
            quota=quota,
            exploration=exploration,
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
        where: Any = None,
        fusion: Fusion | None = None,
        mmr: Mmr | None = None,
        quota: Quota | None = None,
        exploration: Exploration | None = None,
    ) -> Answer:
        """As `search`, with the version of the bank that was read."""
        check(queries, k, mode, min_score)
        check_as_of(as_of)
        check_options(fusion, mmr, quota, exploration)
        if fusion is not None and mode != "hybrid":
            raise InvalidInput(f"fusion is of mode='hybrid', got mode={mode!r}; leave it out")
        ranking = self._mode(mode, fusion)
        scope = self._scope(namespace, as_of, where)
        least = None if min_score is None else float(min_score)
        wanted = Wanted(int(k), least, mmr, quota, exploration)
        try:
            hits = answered(ranking, scope, queries, wanted, self._calibration)
        finally:
            # After it, so that a saved index is taken over and mended rather than made anew.
            self._notice(scope.block)
        return Answer(hits, scope.block.version)

    def warm_up(self) -> None:
        """Compile or load what the first search by the head would wait for."""
        if self._scanner is not None and self._head is not None:
            self._scanner.warm_up(self._head)

    def close(self) -> None:
        """Save the indexes that grew since they were saved, so that the next start is quick."""
        for kept in (self._nearest, self._likely):
            if kept is not None:
                kept.close()

    def drop(self, namespace: str) -> None:
        """Forget what is kept of a namespace beside the bank: indexes, in memory and on disk,
        copies of vectors, and vectors of queries.

        For a purge that is committed. Searches that began before it still answer from what they
        hold, but nothing of that gets into an index or a file any more.

        Raises:
            IndexUnavailable: a saved index cannot be deleted.
        """
        for cache in self._caches:
            cache.clear()
        if self._scanner is not None:
            self._scanner.drop(namespace)
        # Before their files: what is dropped is saved no more.
        kept = [indexes for indexes in (self._nearest, self._likely) if indexes is not None]
        for indexes in kept:
            indexes.drop(namespace)
        try:
            if self._saved is not None:  # also those of a run that had other models
                self._saved.delete(namespace)
        finally:
            version = self._source.block(namespace).version
            for indexes in kept:
                indexes.accept(namespace, version)
            if self._scanner is not None:
                self._scanner.accept(namespace, version)

    def _notice(self, block: Block) -> None:
        """Have indexes let go of what another process purged, whatever mode was searched."""
        for kept in (self._nearest, self._likely):
            if kept is not None:
                kept.notice(block)
        if self._saved is not None:
            self._saved.notice(block)

    def _mode(self, name: str, fusion: Fusion | None) -> Mode:
        if name == "hybrid":
            return self._hybrid(fusion or Fusion())
        if name not in self._modes:
            raise IndexUnavailable(_REMEDIES[name])
        return self._modes[name]

    def _hybrid(self, fusion: Fusion) -> Hybrid:
        name: str = fusion.dense or next(iter(self._dense), "exact")
        if self._words is None:
            raise IndexUnavailable(_REMEDIES["lexical"])
        if name not in self._dense:
            raise IndexUnavailable(_REMEDIES[name])
        return Hybrid(self._dense[name], name, self._words, fusion)

    def _scope(self, namespace: str, as_of: int | None, where: Any) -> Scope:
        for _ in range(_ATTEMPTS):
            block = self._source.block(namespace)
            eligible = valid_rows(block, as_of)
            if where is None:
                return Scope(block, eligible)
            fulfilled = self._source.eligible(block, where)
            if fulfilled is not None:
                return Scope(block, eligible & fulfilled, where)
        raise BankChanging(
            f"namespace {namespace!r} changed {_ATTEMPTS} times while a filter by tags or source "
            "was read; ask again, or write in larger batches"
        )

    def _similar(
        self, block: Block, queries: Floats, k: int, eligible: Any
    ) -> list[tuple[Ids, Floats]]:
        assert self._nearest is not None
        index = self._nearest.of(block)
        found = index.search(block, queries, k, eligible)
        self._nearest.keep(block, index)
        return found

    def _candidates(
        self, block: Block, queries: Floats, count: int, eligible: Any, *, rising: bool
    ) -> list[Ids | None]:
        assert self._likely is not None
        index = self._likely.of(block)
        found = index.candidates(block, queries, count, eligible, rising=rising)
        self._likely.keep(block, index)
        return found


_REMEDIES = {
    "exact": "exact mode needs a trained retriever, and none was given; pass scorer= to Searcher, "
    "or use another mode",
    "ann": "ann mode needs a trained retriever and FAISS; pass scorer= to Searcher and install "
    "precedent-memory[cpu] or precedent-memory[gpu], or use mode='exact'",
    "cosine": "cosine mode needs an untrained encoder, and none was given; pass encoder= to "
    "Searcher (cosine_encoder=FOLDER when serving), or use mode='exact'",
    "lexical": "lexical and hybrid mode need a full-text index, and none was given; pass "
    "lexical=bank to Searcher",
}


def _refuse_no_numbers(scorer: QueryScorer) -> None:
    calibration = scorer.calibration
    if not (math.isfinite(calibration.a) and math.isfinite(calibration.b)):
        raise NonFiniteScore(f"the scorer's {calibration} holds no numbers; export it again")
