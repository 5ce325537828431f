"""Texts in any number through an engine: tokenised once, in batches by length, in their own order.

Which runtime computes is `EngineOptions`; what it computes is named by its outputs. A number that
is not finite is refused, by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.artifact import TOKENIZER, Manifest
from retriever.batching import batches_by_length, pad, small_batches
from retriever.device import Device
from retriever.errors import InvalidInput, NonFiniteScore, RetrieverError
from retriever.tokens import TextTokenizer
from retriever.types import Floats

ENGINES = ("onnx", "torch")
PRECISIONS = ("auto", "fp32", "fp16", "bf16", "int8")
EMBEDDING = "text_embedding"
CASE_PROJECTION = "case_projection"
QUERY_PROJECTION = "query_projection"


class Engine(Protocol):
    """Padded token ids to arrays, on one device."""

    provider: str
    device: str
    precision: str

    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: tuple[str, ...]
    ) -> list[Floats]:
        """Ids and mask (B, L) -> the named outputs, each (B, *) float32."""
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which runtime computes, where, how precisely and with what; see `load`."""

    engine: str = "onnx"
    device: str = "auto"
    precision: str = "fp32"
    threads: int | None = None
    gpu_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("engine", ENGINES), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise InvalidInput(f"{name} = {getattr(self, name)!r}: one of {', '.join(allowed)}")
        for name in ("threads", "gpu_memory_bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            whole_number(name, value, "or None for none of its own")
            if self.engine != "onnx":
                raise InvalidInput(
                    f"{name} = {value} with engine = {self.engine!r}: only the ONNX engine takes "
                    "it; leave it out (torch has torch.set_num_threads and "
                    "torch.cuda.set_per_process_memory_fraction)"
                )

    def open(self, folder: Path, manifest: Manifest) -> Engine:
        """The engine over a verified artifact.

        Raises:
            RetrieverError: what the engine runs on is not installed.
        """
        device = Device.parse(self.device)
        if self.engine == "onnx":
            from retriever.engines.onnx import OnnxEngine

            return OnnxEngine(
                folder,
                device,
                precision=self.precision,
                threads=self.threads,
                gpu_memory_bytes=self.gpu_memory_bytes,
            )
        try:
            # The one door from the light side to torch; taken only by those who ask for it.
            from retriever.engines.torch import TorchEngine

            return TorchEngine(folder, manifest, device, precision=self.precision)
        except ModuleNotFoundError as error:
            raise RetrieverError(
                f"engine = 'torch' needs {error.name}, which is not installed; install "
                "precedent-memory[gpu] or [train], or use engine='onnx'"
            ) from error


class Texts:
    """Texts of any number and length through an engine, in the caller's order."""

    def __init__(self, tokenizer: TextTokenizer, engine: Engine, batch_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.engine = engine
        self.batch_tokens = batch_tokens
        self._batches = small_batches if engine.device == "cpu" else batches_by_length

    def run(self, texts: Sequence[str], output: str, width: int) -> Floats:
        """N texts -> (N, width) float32 of one output of the engine."""
        tokens = self.tokenizer.encode(texts)
        found = np.empty((len(tokens), width), dtype=np.float32)
        for batch in self._batches([len(one) for one in tokens], self.batch_tokens):
            ids, mask = pad([tokens[int(i)] for i in batch], self.tokenizer.pad_id)
            (found[batch],) = self.engine.run(ids, mask, (output,))
        refuse_non_finite(found, output)
        return found


def open_texts(
    folder: Path, manifest: Manifest, options: EngineOptions, batch_tokens: int
) -> Texts:
    """The tokenizer and the engine of a verified artifact.

    Raises:
        InvalidInput: a budget below one text of the maximum length.
    """
    longest = manifest.encoder.max_length
    whole_number("batch_tokens", batch_tokens, f"and {longest} or more here")
    if batch_tokens < longest:
        raise InvalidInput(
            f"batch_tokens = {batch_tokens}: a text of the maximum length ({longest} tokens) "
            f"would not fit; give at least {longest}"
        )
    tokenizer = TextTokenizer.from_file(
        folder / TOKENIZER, max_length=longest, pad_id=manifest.encoder.pad_id
    )
    return Texts(tokenizer, options.open(folder, manifest), batch_tokens)


def whole_number(name: str, value: object, otherwise: str) -> None:
    """Refuse what is not a whole number of at least 1; `otherwise` ends the message."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < 1:  # type: ignore[operator]  # a number, as just seen
        raise InvalidInput(f"{name} = {value!r}: a whole number of at least 1, {otherwise}")


def refuse_non_finite(values: Floats, what: str) -> None:
    """Raise `NonFiniteScore` where (N, ...) values hold what is no finite number."""
    if not np.isfinite(values).all():
        index = int(np.argwhere(~np.isfinite(values))[0][0])
        raise NonFiniteScore(
            f"the model gave a non-finite value in {what} for input {index}; its weights are "
            "damaged or overflow in this precision: export it again, or compare with "
            "engine='torch' on the CPU"
        )
