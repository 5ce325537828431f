"""What the steps of the GPU check share: where they run, a bank of vectors, a clock, a twin."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retriever.device import Device
from retriever.head import Head
from retriever.kernels.torch_scan import TorchScanner
from retriever.types import Array, Bools, Floats, Ids

CHUNK = 16_384  # rows, as a bank holds them


class Skipped(Exception):
    """This machine cannot run the step; the message says what it lacks."""


class Wrong(Exception):
    """An answer differs from the twin's."""


@dataclass(frozen=True)
class Place:
    """Where the steps run, and how large."""

    device: torch.device
    quick: bool
    seed: int

    @property
    def on_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device.type == "cuda"

    @property
    def sizes(self) -> tuple[int, int]:
        """Cases of a usual and of a large bank."""
        return (600, 1500) if self.quick else (100_000, 1_000_000)

    @property
    def hidden(self) -> int:
        """D."""
        return 40 if self.quick else 512

    def rng(self, step: int) -> np.random.Generator:
        """Numbers of one step's own."""
        return np.random.default_rng([self.seed, step])

    def tidy(self) -> None:
        """Give back what a step leaves."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def medians(self, sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
        """Seconds of each side, by turns: the median, after one round that does not count."""
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, work in sides.items():
                seconds = self._seconds(work)
                if number:
                    times[name].append(seconds)
        return {name: statistics.median(found) for name, found in times.items()}

    def _seconds(self, work: Callable[[], object]) -> float:
        if not self.on_gpu:
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(start.elapsed_time(end)) / 1000


@dataclass(frozen=True, eq=False)
class Bank:
    """One namespace at one version: what the scanner reads of a block."""

    ids: Ids
    stamps: Ids
    live: Bools
    projections: tuple[Array, ...]
    version: int = 1
    bank: str = "made up"
    namespace: str = "default"
    projections_key: str = "random"
    embeddings: tuple[Array, ...] | None = None
    embeddings_key: str | None = "random"
    columns: Any = None


def scanner_of(place: Place, storage: str = "bank") -> TorchScanner:
    """A scanner of its own, there."""
    return TorchScanner(Device.parse(str(place.device)), storage)


def random_head(
    rng: np.random.Generator, hidden: int, *, bias: bool = False, rank: int = 0
) -> Head:
    """A head whose logits are of order 1."""
    weight = rng.standard_normal(hidden, dtype=np.float32) / np.float32(np.sqrt(hidden))
    return Head(weight, float(rng.normal()), bias, rank)


def random_bank(rng: np.random.Generator, head: Head, rows: int, dtype: str = "float32") -> Bank:
    """Normal values in chunks, every row live."""
    sizes = [min(CHUNK, rows - start) for start in range(0, rows, CHUNK)]
    chunks = tuple(
        rng.standard_normal((size, head.case_width), dtype=np.float32).astype(dtype, copy=False)
        for size in sizes
    )
    ids = np.arange(1, rows + 1, dtype=np.int64)
    return Bank(ids, np.ones(rows, np.int64), np.ones(rows, np.bool_), chunks)


def random_queries(rng: np.random.Generator, head: Head, count: int) -> Floats:
    """(Q, D + R)."""
    return rng.standard_normal((count, head.query_width), dtype=np.float32)


def true_logits(
    head: Head, chunks: Sequence[Array], queries: Floats, device: torch.device
) -> Tensor:
    """The formula in float64, straight from its definition: (Q, N) on the device."""
    weight = torch.from_numpy(head.weight.astype(np.float64)).to(device)
    asked = torch.from_numpy(queries.astype(np.float64)).to(device)
    parts = []
    for chunk in chunks:
        held = torch.from_numpy(np.array(chunk, np.float32)).to(device).double()  # (n, W)
        rows = []
        for query in asked:
            logit = torch.relu(held[:, : head.hidden] + query[: head.hidden]) @ weight
            if head.bias:
                logit = logit + held[:, head.hidden]
            if head.rank:
                logit = logit + held[:, -head.rank :] @ query[head.hidden :]
            rows.append(logit + head.offset)
        parts.append(torch.stack(rows))
    return torch.cat(parts, dim=1)


def true_best(logits: Tensor, eligible: Bools, k: int, rising: bool) -> NDArray[np.int64]:
    """The rows of the k best eligible: (Q, k); there are that many, and no two tie."""
    signed = logits if rising else -logits
    allowed = torch.from_numpy(eligible.copy()).to(logits.device)
    found: NDArray[np.int64] = (
        signed.masked_fill(~allowed, -torch.inf).topk(k, dim=1).indices.cpu().numpy()
    )
    return found
