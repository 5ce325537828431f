"""The memories that `benchmarks.gatemem` compares, each behind the same three calls.

`Store` is a plain store in memory; a bank can take its place with the same methods.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.datasets.gatemem import Turn
from memory.requests import (
    Act,
    Listener,
    PlainView,
    Remembered,
    RuleResolver,
    current_ids,
    recognise,
)
from memory.requests.view import fused

Floats = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Floats]
_KEY = b"the benchmark has nothing to hide"


class Memory(Protocol):
    """What a checkpoint needs of a memory."""

    def hear(self, turn: Turn) -> None:
        """One more turn."""
        ...

    def retrieve(self, query: str, k: int) -> list[str]:
        """The k texts nearest to the query."""
        ...


class Store:
    """Texts with ids: add, forget, search."""

    def __init__(self, embed: Embed | None, mode: str) -> None:
        self.view = PlainView(embed=embed)
        self._mode = mode
        self._next = 0

    def record(self, text: str, turn: Turn) -> Remembered:
        """A record that is not stored yet."""
        self._next += 1
        return Remembered(self._next, text, turn.speaker, turn.told_at, self._next)

    def add(self, record: Remembered) -> None:
        """Store it."""
        self.view.add(record)

    def forget(self, ids: Sequence[int]) -> int:
        """Drop these records."""
        return self.view.remove(ids)

    def search(self, query: str, k: int) -> list[str]:
        """The k texts nearest to the query in the store's mode."""
        if self._mode == "bm25":
            hits = self.view.lexical(query)
        elif self._mode == "cosine":
            hits = self.view.semantic(query)
        else:
            hits = fused([self.view.lexical(query), self.view.semantic(query)])
        return [self.view.get(i).text for i, _ in hits[:k]]


class NeverForgets:
    """Stores every turn, requests too."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def hear(self, turn: Turn) -> None:
        """Store the turn."""
        self.store.add(self.store.record(turn.text, turn))

    def retrieve(self, query: str, k: int) -> list[str]:
        """The k nearest texts."""
        return self.store.search(query, k)


class WipesEverything(NeverForgets):
    """Drops all it has on every request."""

    def hear(self, turn: Turn) -> None:
        """Store the turn, or wipe."""
        wish = recognise(turn.text)
        if wish is None:
            super().hear(turn)
        elif wish.act is Act.WISH or "request_noted" in wish.reasons:
            self.store.forget([record.id for record in self.store.view.records()])


class Ours(NeverForgets):
    """Hears requests in plain words and does what they ask, when they ask it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.listener = Listener(RuleResolver(_KEY), _KEY)
        self.log: list[tuple[str, str, tuple[str, ...], tuple[int, ...]]] = []

    def hear(self, turn: Turn) -> None:
        """Decide about the turn, carry out what is due, store what is told."""
        record = self.store.record(turn.text, turn)
        heard = self.listener.hear(record, self.store.view)
        for plan in heard.plans:
            ids = current_ids(plan, self.store.view)
            self.store.forget(ids)
            self.log.append((turn.turn_id, heard.why, plan.strings, ids))
            if plan.replacement is not None:
                self.store.add(self.store.record(plan.replacement.query, turn))
        if heard.besides is not None:
            self.store.add(self.store.record(heard.besides.query, turn))
        if heard.store:
            self.store.add(record)
        elif not heard.plans:
            self.log.append((turn.turn_id, heard.why, (), ()))


class RequestsOnly(Ours):
    """Does what is asked, and takes no acknowledgement's word for what was meant."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.listener = Listener(RuleResolver(_KEY, acknowledged=False), _KEY)


ARMS: dict[str, type[NeverForgets]] = {
    "never_forgets": NeverForgets,
    "wipes_everything": WipesEverything,
    "ours": Ours,
    "requests_only": RequestsOnly,
}


class CachedEmbedder:
    """Embeds each text once; the vectors lie in one file that the next run reads.

    The file's name carries the encoder's fingerprint, so that no other encoder's vectors are read.
    """

    def __init__(self, embed: Embed, fingerprint: str, folder: Path) -> None:
        self._embed = embed
        self._path = folder / f"gatemem-{fingerprint[:16]}.npz"
        self._vectors: dict[str, Floats] = {}
        self._fresh = 0
        if self._path.is_file():
            with np.load(self._path, allow_pickle=False) as stored:
                self._vectors = dict(zip(stored["keys"].tolist(), stored["vectors"], strict=True))

    def __call__(self, texts: Sequence[str]) -> Floats:
        """N texts -> (N, E)."""
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {k: t for k, t in zip(keys, texts, strict=True) if k not in self._vectors}
        if missing:
            vectors = self._embed(list(missing.values()))
            self._vectors.update(zip(missing, vectors, strict=True))
            self._fresh += len(missing)
        return np.stack([self._vectors[key] for key in keys])

    def save(self) -> None:
        """Write the file anew if there is something new; the old one stays until then."""
        if not self._fresh:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".tmp.npz")
        np.savez(
            beside,
            keys=np.array(list(self._vectors)),
            vectors=np.stack(list(self._vectors.values())),
        )
        beside.replace(self._path)
        self._fresh = 0
