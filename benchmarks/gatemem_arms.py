"""The memories that `benchmarks.gatemem` compares, each behind the same two calls.

All keep their turns in a `CaseBank` and search it alike: BM25, the cosine, or both fused by rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.datasets.gatemem import Turn
from memory import BankConfig, CaseBank, NewCase
from memory.conversation import BankRecords, Conversation
from memory.requests import Act, RuleResolver, recognise

Floats = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Floats]
NAMESPACE = "episode"


class Memory(Protocol):
    """What a checkpoint needs of a memory."""

    def hear(self, turn: Turn) -> None:
        """One more turn."""
        ...

    def retrieve(self, query: str, k: int) -> list[str]:
        """The k texts nearest to the query."""
        ...


class Queries:
    """The embedder of a bank of turns: what was said, and nothing else."""

    def __init__(self, embed: Embed, dim: int) -> None:
        self.key, self.dim = "gatemem:query", dim
        self._embed = embed

    def text(self, case: Any) -> str:
        """What was said."""
        return str(case.query)

    def embed(self, texts: Sequence[str]) -> Floats:
        """N texts -> (N, dim)."""
        return self._embed(texts)


class Store:
    """A bank of turns in a folder of its own."""

    def __init__(self, embed: Embed | None, mode: str, folder: Path) -> None:
        embeddings = None if embed is None else Queries(embed, embed(["a text"]).shape[1])
        self.bank = CaseBank.open(
            folder / "bank.db", embeddings=embeddings, config=BankConfig(snapshots=False)
        )
        self.records = BankRecords(self.bank, NAMESPACE)
        self._mode = mode

    def search(self, query: str, k: int) -> list[str]:
        """The k texts nearest to the query in the store's mode."""
        if self._mode == "bm25":
            hits = list(self.bank.search_text(query, k, namespace=NAMESPACE))
        elif self._mode == "cosine":
            similar = self.bank.similar(query, namespace=NAMESPACE)
            hits = sorted(similar.items(), key=lambda item: (-item[1], item[0]))[:k]
        else:
            hits = list(self.records.search(query, k))
        return [self.records.get(id_).text for id_, _ in hits]


class NeverForgets:
    """Stores every turn, requests too."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def hear(self, turn: Turn) -> None:
        """Store the turn."""
        self.store.bank.add([_case(turn)], namespace=NAMESPACE)

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
        elif (
            wish.act is Act.WISH or "request_noted" in wish.reasons
        ) and NAMESPACE in self.store.bank.namespaces():
            self.store.bank.delete_namespace(NAMESPACE)


class Ours(NeverForgets):
    """Hears requests in plain words and does what they ask, when they ask it."""

    acknowledged = True

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        key = store.bank.secret_for("requests", NAMESPACE)
        self.talk = Conversation(
            store.bank,
            namespace=NAMESPACE,
            resolver=RuleResolver(key, acknowledged=self.acknowledged),
            clock=None,
        )

    def hear(self, turn: Turn) -> None:
        """Tell it."""
        self.talk.tell(_case(turn))


class RequestsOnly(Ours):
    """Does what is asked, and takes no acknowledgement's word for what was meant."""

    acknowledged = False


ARMS: dict[str, type[NeverForgets]] = {
    "never_forgets": NeverForgets,
    "wipes_everything": WipesEverything,
    "ours": Ours,
    "requests_only": RequestsOnly,
}


def _case(turn: Turn) -> NewCase:
    return NewCase(
        turn.text, kind="turn", created_at=turn.told_at, metadata={"speaker": turn.speaker}
    )


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
