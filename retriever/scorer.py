"""A trained retriever in use: texts to embeddings and projections, pairs to probabilities.

With the ONNX engine nothing here needs torch. Texts are tokenised once, sorted by length into
batches bounded by padded tokens, and come back in the order they were given. A non-finite number
is never returned. One scorer may be used from several threads.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from retriever.artifact import (
    HEAD,
    RETRIEVER,
    UNTRAINED,
    Manifest,
    fingerprint_at,
    read_manifest,
    verify,
)
from retriever.batching import chunks
from retriever.encoding import (
    CASE_PROJECTION,
    EMBEDDING,
    QUERY_PROJECTION,
    EngineOptions,
    Texts,
    open_texts,
    refuse_non_finite,
)
from retriever.errors import ArtifactCorrupt, ArtifactForeign, InvalidInput
from retriever.head import Head
from retriever.scan import pair_logits
from retriever.text import case_text, query_text, record_text
from retriever.types import Calibration, CaseLike, Floats, Pair, Plan

_PAIRS_AT_ONCE = 8192
_HEAD_TENSORS = ("case_weight", "query_weight", "case_bias", "output_weight", "output_bias")
#: What a row of a case file may hold. Only question and plan are read here, but a key beyond these
#: is a slip that would drop one of them.
_ROW_KEYS = (
    *("query", "plan", "outcome", "kind", "id", "tags", "source"),
    *("created_at", "valid_from", "valid_to", "derived_from", "metadata"),
)

#: A case as callers have it: question, (question, plan), {"query": ..., "plan": ...} or record.
CaseInput = str | tuple[str, Plan] | Mapping[str, Any] | CaseLike
PairInput = Pair | tuple[str, str] | tuple[str, str, Plan]

T = TypeVar("T")


def load(
    path: str | os.PathLike[str],
    engine: str = "onnx",
    device: str = "auto",
    *,
    precision: str = "fp32",
    threads: int | None = None,
    gpu_memory_bytes: int | None = None,
    batch_tokens: int = 16_384,
) -> Scorer:
    """Open and verify the artifact at `path`.

    Args:
        path: the artifact's folder.
        engine: `onnx` (no torch needed) or `torch`.
        device: `auto`, `cpu`, `cuda` or `cuda:<index>`; what was used is in `Scorer.provider`.
        precision: `fp32`; with onnx also `int8`, where the artifact holds an encoder that passed
            its gate (CPU only); with torch also `fp16` and `bf16`; `auto` is fp16 with torch on a
            GPU, fp32 elsewhere. Vectors of different precisions do not mix: `Scorer.fingerprint`
            tells them apart, and a bank embeds its cases anew.
        threads: of the ONNX engine on one call; by default the physical cores granted.
        gpu_memory_bytes: the most that ONNX Runtime's memory pool on a GPU may take; of no effect
            where the engine computes on a CPU.
        batch_tokens: padded tokens of one engine call; bounds memory. CPUs take smaller batches,
            with which they are faster.

    Raises:
        ArtifactNotFound, ArtifactForeign, ArtifactCorrupt: see `retriever.artifact`.
        ArtifactError: this user may not read a file; or one of the above.
        DeviceUnavailable: CUDA was named and cannot be used; there is no silent fall-back.
        InvalidInput: an engine, a precision or a number that does not exist, or an option that
            the engine does not take.
        RetrieverError: the runtime of the engine is not installed; or one of the above.
    """
    folder = Path(path)
    manifest = read_manifest(folder, kind=RETRIEVER)
    verify(folder, manifest)
    options = EngineOptions(engine, device, precision, threads, gpu_memory_bytes)
    texts = open_texts(folder, manifest, options, batch_tokens)
    return Scorer(manifest, texts, _load_head(folder / HEAD, manifest))


def load_encoder(
    path: str | os.PathLike[str],
    engine: str = "onnx",
    device: str = "auto",
    *,
    precision: str = "fp32",
    threads: int | None = None,
    gpu_memory_bytes: int | None = None,
    batch_tokens: int = 16_384,
) -> TextEncoder:
    """Open and verify an exported untrained encoder, as cosine mode uses it; see `load`."""
    folder = Path(path)
    manifest = read_manifest(folder, kind=UNTRAINED)
    verify(folder, manifest)
    options = EngineOptions(engine, device, precision, threads, gpu_memory_bytes)
    return TextEncoder(manifest, open_texts(folder, manifest, options, batch_tokens))


class TextEncoder:
    """An untrained encoder: texts (N) -> unit vectors (N, E)."""

    def __init__(self, manifest: Manifest, texts: Texts) -> None:
        self.manifest = manifest
        self.precision = texts.engine.precision
        self.fingerprint = fingerprint_at(manifest, manifest.encoder.fingerprint, self.precision)
        self.dim = manifest.encoder.hidden_size
        self.max_length = manifest.encoder.max_length
        self.provider = texts.engine.provider
        self.device = texts.engine.device
        self._texts = texts

    def embed(self, texts: Sequence[str]) -> Floats:
        """N texts -> (N, E) float32 of length 1; no texts -> (0, E)."""
        vectors = self._texts.run(texts, EMBEDDING, self.dim)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens the model reads of each text, special tokens included, after truncation."""
        return self._texts.tokenizer.count(texts)

    @property
    def truncated(self) -> int:
        """How many texts were cut at `max_length` so far."""
        return self._texts.tokenizer.truncated


class Scorer:
    """A trained retriever: see the module."""

    def __init__(self, manifest: Manifest, texts: Texts, head: dict[str, Floats]) -> None:
        self.manifest = manifest
        self.calibration: Calibration = manifest.calibration
        self.precision = texts.engine.precision
        self.fingerprint = fingerprint_at(manifest, manifest.fingerprint, self.precision)
        self.dim = manifest.encoder.hidden_size
        self.projection_size = manifest.projection_size
        self.max_length = manifest.encoder.max_length
        self.provider = texts.engine.provider
        self.device = texts.engine.device
        self.head = Head(head["output_weight"], float(head["output_bias"][0]))
        self._texts = texts

    def embed(self, texts: Sequence[str]) -> Floats:
        """N texts -> (N, H) float32 of the fine-tuned encoder, as pooled, not normalised."""
        return self._texts.run(texts, EMBEDDING, self.dim)

    def project(self, cases: Sequence[CaseInput]) -> Floats:
        """N cases -> (N, D): the cached half of the head (`P_c` of the score)."""
        return self.project_texts([as_case_text(case) for case in _listed(cases, "cases")])

    def project_texts(self, texts: Sequence[str]) -> Floats:
        """N case texts as `retriever.text` renders them -> (N, D)."""
        return self._texts.run(texts, CASE_PROJECTION, self.projection_size)

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D): the other half (`a_q`)."""
        return self._texts.run(
            [query_text(query) for query in _listed(queries, "queries")],
            QUERY_PROJECTION,
            self.projection_size,
        )

    def logits(self, pairs: Sequence[PairInput]) -> Floats:
        """N (query, case[, plan]) pairs -> (N,) logits; each distinct text is encoded once."""
        read = [as_pair(pair, index) for index, pair in enumerate(_listed(pairs, "pairs"))]
        queries, query_of = _distinct([query_text(pair.query) for pair in read])
        cases, case_of = _distinct([case_text(pair.case, pair.plan) for pair in read])
        asked = self._texts.run(queries, QUERY_PROJECTION, self.projection_size)
        shown = self._texts.run(cases, CASE_PROJECTION, self.projection_size)
        logits = np.empty(len(read), dtype=np.float32)
        for part in chunks(len(read), _PAIRS_AT_ONCE):
            with np.errstate(over="ignore", invalid="ignore"):  # refused below, by place
                logits[part] = pair_logits(self.head, shown[case_of[part]], asked[query_of[part]])
        refuse_non_finite(logits, "logits")
        return logits

    def score(self, pairs: Sequence[PairInput]) -> Floats:
        """N pairs -> (N,) calibrated chances that a run succeeds given that the case was shown."""
        return probabilities(self.logits(pairs), self.calibration)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens the model reads of each text, special tokens included, after truncation."""
        return self._texts.tokenizer.count(texts)

    @property
    def truncated(self) -> int:
        """How many texts were cut at `max_length` so far."""
        return self._texts.tokenizer.truncated


def probabilities(logits: NDArray[np.floating], calibration: Calibration) -> Floats:
    """sigmoid(a * logit + b), of any shape, without overflow."""
    z = calibration.a * logits.astype(np.float64) + calibration.b
    e = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1.0, e) / (1.0 + e), dtype=np.float32)


def as_case_text(case: CaseInput) -> str:
    """The model's text of a case in any of the accepted forms.

    Raises:
        InvalidInput: something else, a question that is not text, or an object with a key that
            rows of cases do not have.
    """
    if isinstance(case, str):
        return case_text(_text(case, "case"))
    if isinstance(case, tuple) and len(case) == 2:
        return case_text(_text(case[0], "case"), case[1])
    if isinstance(case, Mapping):
        _refuse_unknown_keys(case)
        if "query" not in case:
            raise InvalidInput(f"a case given as an object needs 'query', got {list(case)}")
        return case_text(_text(case["query"], "case['query']"), case.get("plan"))
    if hasattr(case, "query") and hasattr(case, "kind"):
        return record_text(case)
    raise InvalidInput(
        "a case must be text, (query, plan), an object or a record, "
        f"got {type(case).__name__}: {case!r}"
    )


def as_pair(pair: PairInput, index: int) -> Pair:
    """A pair in any of the accepted forms.

    Raises:
        InvalidInput: neither a `Pair` nor a tuple of two or three.
    """
    if isinstance(pair, Pair):
        read = pair
    elif isinstance(pair, tuple | list) and len(pair) in (2, 3):
        read = Pair(*pair)
    else:
        raise InvalidInput(
            f"pairs[{index}] must be a Pair, (query, case) or (query, case, plan), got {pair!r}"
        )
    _text(read.query, f"pairs[{index}].query")
    _text(read.case, f"pairs[{index}].case")
    return read


def _load_head(path: Path, manifest: Manifest) -> dict[str, Floats]:
    try:
        head = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactCorrupt(f"{path} cannot be read: {error}; export again") from error
    unknown = sorted(set(head) - set(_HEAD_TENSORS))
    if unknown:  # scores without them would be wrong
        raise ArtifactForeign(
            f"{path} holds {', '.join(unknown)}, which this version does not know (it reads "
            f"{', '.join(_HEAD_TENSORS)}); use the version that wrote it, or export again"
        )
    size = manifest.projection_size
    shapes = {name: array.shape for name, array in head.items()}
    if shapes.get("output_weight") != (size,) or shapes.get("output_bias") != (1,):
        raise ArtifactCorrupt(f"{path} does not hold a head of {size} hidden units, but {shapes}")
    return {name: np.asarray(array, dtype=np.float32) for name, array in head.items()}


def _distinct(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct texts in order of first appearance, and for each text its place among them."""
    place: dict[str, int] = {}
    where = np.fromiter(
        (place.setdefault(text, len(place)) for text in texts), dtype=np.int64, count=len(texts)
    )
    return list(place), where


def _listed(items: Sequence[T], name: str) -> Sequence[T]:
    """`items`; a text or a single item where a list is expected is refused, not read letterwise."""
    if isinstance(items, str | bytes | Mapping | Pair) or not isinstance(items, Iterable):
        raise InvalidInput(
            f"{name} must be a list, got {type(items).__name__}: {items!r}; wrap it in a list"
        )
    return items


def _refuse_unknown_keys(case: Mapping[str, Any]) -> None:
    for key in case:
        if key not in _ROW_KEYS:
            near = difflib.get_close_matches(str(key), _ROW_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_ROW_KEYS)}"
            raise InvalidInput(f"a case given as an object has an unknown key {key!r}; {hint}")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, got {type(value).__name__}: {value!r}")
    return value
