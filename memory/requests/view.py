"""A plain `RecordView` in memory: BM25, and the cosine too where vectors are given.

For tests, benchmarks and small banks. It follows its records on `add` and `remove`, and answers
from an inverted index of plain words.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from memory.errors import NotFound
from memory.requests.plan import Remembered
from memory.requests.words import content_stems, keys, words

_K1, _B = 1.2, 0.75  # the usual constants of BM25
_RANK_FUSION = 60.0  # Cormack et al. 2009

#: Texts (N) -> unit vectors (N, E).
Embed = Callable[[Sequence[str]], NDArray[np.float32]]


class PlainView:
    """Records of one namespace with lexical search, fused with cosine search given `embed`."""

    def __init__(self, records: Iterable[Remembered] = (), embed: Embed | None = None) -> None:
        self._embed = embed
        self._records: dict[int, Remembered] = {}
        self._vectors: dict[int, NDArray[np.float32]] = {}
        self._counts: dict[int, Counter[str]] = {}
        self._holders: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._plain: defaultdict[str, set[int]] = defaultdict(set)
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Remembered) -> None:
        """Take one more record; its id must be new."""
        counts = Counter(content_stems(record.text))
        self._records[record.id] = record
        self._counts[record.id] = counts
        for term, count in counts.items():
            self._holders[term][record.id] = count
        for word in _also_joined(record.text):
            self._plain[word].add(record.id)
        if self._embed is not None:
            self._vectors[record.id] = self._embed([record.text])[0]

    def remove(self, ids: Iterable[int]) -> int:
        """Drop these records; how many there were."""
        gone = [i for i in ids if i in self._records]
        for i in gone:
            record = self._records.pop(i)
            for term in self._counts.pop(i):
                del self._holders[term][i]
            for word in _also_joined(record.text):
                self._plain[word].discard(i)
            self._vectors.pop(i, None)
        return len(gone)

    def records(self) -> Iterable[Remembered]:
        """Every record, in the order of telling."""
        return list(self._records.values())

    def recent(self, count: int) -> Sequence[Remembered]:
        """The last `count` records, the latest last."""
        return list(self._records.values())[-count:] if count > 0 else []

    def having(self, words: Collection[str]) -> Iterable[Remembered]:
        """Every record that holds one of these words."""
        ids = set().union(*(self._plain.get(word, ()) for word in words))
        return [self._records[i] for i in sorted(ids)]

    def get(self, record_id: int) -> Remembered:
        """The record with this id.

        Raises:
            NotFound: there is none.
        """
        try:
            return self._records[record_id]
        except KeyError:
            raise NotFound(
                f"no record {record_id} in this view; ids come from its answers"
            ) from None

    def search(self, text: str, k: int) -> list[tuple[int, float]]:
        """The k nearest by BM25, or by reciprocal rank fusion of BM25 and cosine; ties by id."""
        lexical = self.lexical(text)
        if self._embed is None:
            return lexical[:k]
        return fused([lexical, self.semantic(text)])[:k]

    def lexical(self, text: str) -> list[tuple[int, float]]:
        """BM25 of every record that holds one of the words, best first."""
        total = len(self._records)
        mean = sum(map(Counter.total, self._counts.values())) / total if total else 0.0
        scores: defaultdict[int, float] = defaultdict(float)
        for term in sorted(set(content_stems(text))):
            holders = self._holders.get(term, {})
            rarity = math.log(1 + (total - len(holders) + 0.5) / (len(holders) + 0.5))
            for i, count in holders.items():
                length = 1 - _B + _B * self._counts[i].total() / mean
                scores[i] += rarity * count * (_K1 + 1) / (count + _K1 * length)
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))

    def semantic(self, text: str) -> list[tuple[int, float]]:
        """Cosine with every record, best first; nothing without an embedder."""
        if self._embed is None or not self._vectors:
            return []
        ids = list(self._vectors)
        cosines = np.stack([self._vectors[i] for i in ids]) @ self._embed([text])[0]  # (N,)
        order = np.lexsort((ids, -cosines))
        return [(ids[i], float(cosines[i])) for i in order]


def fused(rankings: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Reciprocal rank fusion of several rankings; ties by id."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (i, _) in enumerate(ranking, 1):
            scores[i] += 1 / (_RANK_FUSION + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def _also_joined(text: str) -> set[str]:
    """The text's keys, and digits written in groups as one: 415-555-0186 holds 4155550186, too."""
    held = keys(text)
    run = ""
    for word in [*words(text), ""]:
        if word.isdigit():
            run += word
            continue
        if run:
            held.update((run, run[-10:], run[-7:], run[-4:]))
        run = ""
    return held
