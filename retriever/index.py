"""The FAISS indexes of a namespace: cosine search, and candidates for the exact score.

Both follow a bank. The bank is the truth; an index and its saved copy are caches, and one that does
not match is logged and built again. FAISS promises no order among ties, rounds by the place of a
row, and filters on a GPU not at all. So it only proposes rows: every mask is applied again here,
every order is made of the bank's own vectors, and where FAISS gives too few, all rows are looked
at.

Flat cosine search in float32 gives the answer of a full sort by (cosine, then id), on any device;
every other index may miss a row, never shows a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retriever.errors import InvalidInput, NonFiniteScore
from retriever.following import Followed
from retriever.head import Head
from retriever.ordering import top_k
from retriever.tiers.settings import MOST_RESULTS, IndexSettings
from retriever.tiers.space import HeadSpace, UnitSpace
from retriever.tiers.tier_index import TierIndex
from retriever.types import Block, Bools, Floats, Ids
from retriever.units import normalised, scanned, units, width

#: Under a filter that FAISS does not apply itself, fewer candidates than were asked for are good
#: enough down to this part of them; below it, so few rows may be found that a scan reads little.
LEAST_SHARE = 8


class CosineIndex:
    """The cases whose query texts are nearest, in one namespace of one bank. Safe for threads.

    Raises:
        IndexUnavailable: a GPU is asked for, or `auto`, and there is no FAISS.
        DeviceUnavailable: the GPU that was named is not there.
    """

    def __init__(self, settings: IndexSettings | None = None) -> None:
        self.settings = settings or IndexSettings()
        self._tier = TierIndex(UnitSpace(), self.settings)
        self.device = self._tier.device

    def search(
        self, block: Block, queries: Floats, k: int, eligible: Bools | None = None
    ) -> list[tuple[Ids, Floats]]:
        """The k rows of `block` nearest to each query: (Q, E) -> Q pairs of (<=k,) rows, cosines.

        Best first, ties to the lower id. The index first takes in what is new; a large one is built
        in a thread of its own, and until then every row is read.

        Args:
            block: where to search.
            queries: their vectors.
            k: how many rows, at most.
            eligible: (N,) the rows that may be found, a part of the live ones; all of them if None.

        Raises:
            IndexUnavailable: the block has no embeddings.
            InvalidInput: queries of another width, or k below 1.
            NonFiniteScore: a query's vector, or that of an eligible case, holds NaN or infinity.
        """
        wide = width(block)
        eligible = block.live if eligible is None else eligible
        if k < 1:
            raise InvalidInput(f"k must be at least 1, got {k}")
        if queries.ndim != 2 or (len(block.ids) and queries.shape[1] != wide):
            raise InvalidInput(
                f"queries {queries.shape} must be (Q, {wide}), as wide as the bank's vectors; was "
                "the cosine encoder exchanged?"
            )
        queries = normalised(queries, None)
        proposed = self._proposed(block, queries, k, eligible)
        undecided = [number for number, rows in enumerate(proposed) if rows is None]
        scans = scanned(block, queries[undecided], eligible) if undecided else queries[:0]
        every = iter(scans)  # (N,) of each undecided query
        found = []
        for query, rows in zip(queries, proposed, strict=True):
            if rows is None:
                cosines = next(every)
                (best,) = top_k(cosines[None], block.ids, eligible, k)
                found.append((best, cosines[best]))
            else:
                # einsum, as in the scan: both ways round alike, whatever FAISS does.
                cosines = np.einsum("ce,e->c", units(block, rows), query)
                (best,) = top_k(cosines[None], block.ids[rows], eligible[rows], k)
                found.append((rows[best], cosines[best]))
        return found

    @property
    def unsaved(self) -> int:
        """Rows taken in since the index was last saved or loaded."""
        return self._tier.unsaved

    def follow(self, block: Block) -> Followed:
        """Take in `block`.

        Returns:
            `same`, `extended` (rows were added), `updated` (rows were overwritten or emptied, too),
            `rebuilt`, or `older` (left alone).
        """
        return self._tier.follow(block)

    def notice(self, block: Block) -> bool:
        """Let go of cases that the block does not hold; False where a build has to end first.

        An index that is behind by additions alone stays so.
        """
        return self._tier.notice(block)

    def save(self, folder: Path) -> int | None:
        """Write the index to `folder` so that a crash leaves the old one, or none.

        Returns:
            The version of the bank that was saved; None if there was nothing to save.
        """
        return self._tier.save(folder)

    def load(self, folder: Path, block: Block) -> bool:
        """Take over a saved index if it is of `block` or of an earlier state of it.

        False, with the reason in the log, where there is none or it does not match in every point.
        """
        return self._tier.load(folder, block)

    def drop(self) -> None:
        """Empty the index, and take nothing in until `accept`; searches then scan.

        A save in progress is waited for. What was saved is the caller's to delete.
        """
        self._tier.drop()

    def accept(self, version: int) -> None:
        """Take in blocks again, from this version on."""
        self._tier.accept(version)

    def _proposed(self, block: Block, queries: Floats, k: int, eligible: Bools) -> list[Ids | None]:
        """Eligible rows among which the k best are, per query; None: every row has to be read."""
        if np.count_nonzero(eligible) <= k:
            with self._tier.held(block):
                pass
            rows = np.flatnonzero(eligible).astype(np.int64)
            return [rows for _ in queries]
        with self._tier.held(block) as ready:
            plan = self._tier.copy.plan
            if not ready or plan is None:
                # A newer search was faster; its index may hold cases this snapshot does not know.
                return [None for _ in queries]
            self._tier.copy.refuse_broken(block, eligible)
            if plan.kind == "flat" and self.settings.storage == "float32":
                return self._certain(block, queries, k, eligible)
            count = max(self.settings.candidates, 4 * k)
            if count > MOST_RESULTS:
                return [None for _ in queries]
            _, found = self._tier.copy.search(queries, count, eligible)
        return list(_enough(found, k, eligible))

    def _certain(self, block: Block, queries: Floats, k: int, eligible: Bools) -> list[Ids | None]:
        """Rows among which the k best eligible ones certainly are; None where that is not known."""
        proposed: list[Ids | None] = [None] * len(queries)
        # Two float32 dot products of unit vectors differ by at most 2 E u in exact arithmetic
        # (u = 2^-24); two of them compared, by twice that.
        margin = 4 * queries.shape[1] * 2.0**-24
        fetch, most = k + 16, min(MOST_RESULTS, len(block.ids))
        undecided = list(range(len(queries)))
        while undecided and fetch < most:
            scores, found = self._tier.copy.search(queries[undecided], fetch, eligible)
            for number, score, row in zip(undecided, scores, found, strict=True):
                good = (row >= 0) & eligible[row]
                kept = score[good]
                if len(kept) >= k and kept[k - 1] - margin > score[-1]:
                    proposed[number] = row[good]
            undecided = [number for number in undecided if proposed[number] is None]
            fetch *= 2
        return proposed


class CandidateIndex:
    """Rows that may be the head's best, in one namespace of one bank; the caller scores them.

    Approximate: the head is no inner product, and `retriever.tiers.linear_form` says what is
    searched instead. Safe for threads.

    Raises:
        IndexUnavailable: a GPU is asked for, or `auto`, and there is no FAISS.
        DeviceUnavailable: the GPU that was named is not there.
    """

    def __init__(self, head: Head, settings: IndexSettings | None = None) -> None:
        self.settings = settings or IndexSettings()
        self._head = head
        self._space = HeadSpace(head, self.settings.width)
        self._tier = TierIndex(self._space, self.settings)
        self.device = self._tier.device

    def candidates(
        self,
        block: Block,
        queries: Floats,
        count: int | None = None,
        eligible: Bools | None = None,
        *,
        rising: bool = True,
    ) -> list[Ids | None]:
        """Eligible rows to score for each query, each once: (Q, D + R) -> Q arrays (C,).

        About as many as are asked for; under a filter that FAISS does not apply, a graph's or a
        GPU's, down to an eighth of them. None where every row has to be scored: the bank is so
        small that this is as quick, the block is older than the index, the index is being built, or
        it gave fewer. The index first takes in what is new; a large one is built in a thread of its
        own.

        Args:
            block: where to search.
            queries: their vectors, as the head reads them.
            count: how many candidates; the settings' number if None. Four times what will be shown
                is the least that makes sense.
            eligible: (N,) the rows that may be found, a part of the live ones; all of them if None.
            rising: False for the lowest logits (a calibration that falls with the logit).

        Raises:
            IndexUnavailable: the block has no projections, or those of another head.
            InvalidInput: queries of another width, or a count below 1.
            NonFiniteScore: a query's vector, or that of an eligible case, holds NaN or infinity.
        """
        self._space.check(block)
        count = self.settings.candidates if count is None else count
        eligible = block.live if eligible is None else eligible
        _check_queries(queries, self._head.query_width, count)
        if np.count_nonzero(eligible) <= count:
            with self._tier.held(block):
                pass
            rows = np.flatnonzero(eligible).astype(np.int64)
            return [rows for _ in queries]
        if count > MOST_RESULTS:
            return [None for _ in queries]
        with self._tier.held(block) as ready:
            form = self._space.form
            if not ready or form is None or self._tier.copy.tier is None:
                return [None for _ in queries]
            self._tier.copy.refuse_broken(block, eligible)
            wanted = form.query_vectors(queries)
            _, found = self._tier.copy.search(wanted if rising else -wanted, count, eligible)
        return list(_enough(found, max(1, count // LEAST_SHARE), eligible))

    @property
    def unsaved(self) -> int:
        """Rows taken in since the index was last saved or loaded; 0 where there is no index."""
        return self._tier.unsaved

    def follow(self, block: Block) -> Followed:
        """As `CosineIndex.follow`."""
        return self._tier.follow(block)

    def notice(self, block: Block) -> bool:
        """As `CosineIndex.notice`."""
        return self._tier.notice(block)

    def save(self, folder: Path) -> int | None:
        """As `CosineIndex.save`."""
        return self._tier.save(folder)

    def load(self, folder: Path, block: Block) -> bool:
        """As `CosineIndex.load`."""
        return self._tier.load(folder, block)

    def drop(self) -> None:
        """As `CosineIndex.drop`."""
        self._tier.drop()

    def accept(self, version: int) -> None:
        """As `CosineIndex.accept`."""
        self._tier.accept(version)


def _enough(found: Ids, least: int, eligible: Bools) -> Iterator[Ids | None]:
    """Of each query's rows the eligible ones; None where they are fewer than `least`."""
    for rows in found:
        good = rows[rows >= 0]
        good = good[eligible[good]]
        yield good if len(good) >= least else None


def _check_queries(queries: Floats, width: int, count: int) -> None:
    if count < 1:
        raise InvalidInput(f"count must be at least 1, got {count}")
    if queries.ndim != 2 or queries.shape[1] != width:
        raise InvalidInput(
            f"queries {queries.shape} must be (Q, {width}), as the head reads them; are they of "
            "another scorer?"
        )
    broken = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if len(broken):
        raise NonFiniteScore(
            f"the vector of query {broken[0]} holds NaN or infinity; load another artifact"
        )
