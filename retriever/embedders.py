"""What the bank needs of the models to cache a case's vectors: its `Embedder` protocol, twice.

A case has two vectors: its query text by the untrained cosine encoder, and its whole text projected
by the trained head. `key` names everything that changes a vector, so that another model, or another
text format, never meets vectors of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from retriever.head import Head
from retriever.text import TEXT_FORMAT, query_text, record_text
from retriever.types import CaseLike, Floats


class TextProjector(Protocol):
    """The part of a scorer that this needs."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector could."""
        ...

    @property
    def head(self) -> Head:
        """What the projections are made for."""
        ...

    def project_texts(self, texts: Sequence[str]) -> Floats:
        """N rendered case texts -> (N, W), as the head reads them."""
        ...


class QueryEncoder(Protocol):
    """The part of an untrained text encoder that this needs."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector could."""
        ...

    @property
    def dim(self) -> int:
        """E, the length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Floats:
        """N texts -> (N, E), L2-normalised."""
        ...


def projection_key(fingerprint: str) -> str:
    """The key of the projections made by the scorer with this fingerprint."""
    return f"{fingerprint}:{TEXT_FORMAT}:projection"


def query_key(fingerprint: str, *, whole_turns: bool = False) -> str:
    """The key of the query embeddings made by the encoder with this fingerprint."""
    return f"{fingerprint}:{TEXT_FORMAT}:turn" if whole_turns else f"{fingerprint}:query"


class CaseProjector:
    """Case texts to the cached half of the head."""

    def __init__(self, scorer: TextProjector) -> None:
        self._scorer = scorer
        self.key = projection_key(scorer.fingerprint)
        self.dim = scorer.head.case_width

    def text(self, case: CaseLike) -> str:
        """The whole text of a case, as the model was trained to read it."""
        return record_text(case)

    def embed(self, texts: Sequence[str]) -> Floats:
        """N case texts -> (N, D) projections."""
        return self._scorer.project_texts(texts)


class QueryEmbedder:
    """Stored query texts to vectors of the untrained encoder.

    Args:
        encoder: the encoder.
        whole_turns: embed dialogue turns as `speaker (time): words` instead of the words alone.
            Questions about what somebody said name him, so that they are found far better; but a
            text is then less like the turn that says it, which a request to forget by meaning
            (`memory.ByText`) has to allow for with a lower threshold.
    """

    def __init__(self, encoder: QueryEncoder, *, whole_turns: bool = False) -> None:
        self._encoder, self._whole_turns = encoder, whole_turns
        self.key = query_key(encoder.fingerprint, whole_turns=whole_turns)
        self.dim = encoder.dim

    def text(self, case: CaseLike) -> str:
        """The query of a case, raw: cosine mode compares questions with questions."""
        if self._whole_turns and case.kind == "turn":
            return record_text(case)
        return query_text(case.query)

    def embed(self, texts: Sequence[str]) -> Floats:
        """N query texts -> (N, E), L2-normalised."""
        return self._encoder.embed(texts)
