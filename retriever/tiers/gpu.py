"""FAISS on a GPU, behind the limits of its classic indexes (FAISS 1.15).

They return at most 2,048 results, accept a filter and ignore it, cannot remove or overwrite, the
flat one refuses ids, and one `StandardGpuResources` must not serve two searches at once. So more is
fetched and masked by whoever asks, a bank that changed under the index is indexed anew (appending
is not that), and every index of a device shares one resource object behind a lock: it reserves up
to 1.5 GiB.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.device import Device
from retriever.errors import DeviceUnavailable
from retriever.tiers.ivf import probes_for
from retriever.tiers.module import faiss_module
from retriever.tiers.settings import MOST_RESULTS
from retriever.tiers.tier import unfiltered
from retriever.types import Bools, Floats, Ids


@dataclass(frozen=True, slots=True)
class _Gpu:
    resources: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


_gpus: dict[int, _Gpu] = {}
_opening = threading.Lock()


class GpuTier:
    """A flat or IVF index on one GPU.

    Args:
        kind: flat | ivf.
        index: of the CPU, trained; empty, or of `rows` rows.
        device: where it goes.
        half: whether flat vectors are held in float16.
        probes: of ivf: lists that one search visits.
    """

    def __init__(self, kind: str, index: Any, device: Device, half: bool, probes: int) -> None:
        faiss = faiss_module()

        self.kind, self._probes = kind, probes
        self._lists = index.nlist if kind == "ivf" else 0
        self._gpu = _opened(device.index)
        options = faiss.GpuClonerOptions()
        options.useFloat16 = half
        with self._gpu.lock:
            self._index = faiss.index_cpu_to_gpu(self._gpu.resources, device.index, index, options)

    def add(self, start: int, vectors: Floats, live: Bools) -> None:
        """See `Tier.add`."""
        with self._gpu.lock:
            if self.kind == "flat":
                assert start == self._index.ntotal, "rows are appended in order"
                # Not NaN, which what stands in a dead row may be.
                self._index.add(np.where(live[:, None], vectors, np.float32(0)))
            elif live.any():
                rows = start + np.flatnonzero(live).astype(np.int64)
                self._index.add_with_ids(np.ascontiguousarray(vectors[live]), rows)

    def put(self, rows: Ids, vectors: Floats, live: Bools) -> bool:
        """See `Tier.put`: nothing on a GPU can be overwritten."""
        return not len(rows)

    def search(self, queries: Floats, count: int, eligible: Bools) -> tuple[Floats, Ids]:
        """See `Tier.search`."""
        faiss = faiss_module()

        fetch = unfiltered(count, eligible, len(eligible))
        params = None
        if self.kind == "ivf":
            probes = probes_for(self._probes, eligible, min(self._lists, MOST_RESULTS))
            params = faiss.SearchParametersIVF(nprobe=probes)
        with self._gpu.lock:
            scores, rows = self._index.search(queries, fetch, params=params)
        return scores, rows

    def state(self) -> tuple[Any, Mapping[str, NDArray[Any]]]:
        """See `Tier.state`."""
        faiss = faiss_module()

        with self._gpu.lock:
            return faiss.index_gpu_to_cpu(self._index), {}


def resolved(device: Device) -> Device:
    """Where FAISS will compute: a GPU if it is asked for, or if `auto` finds one.

    Raises:
        IndexUnavailable: there is no FAISS.
        DeviceUnavailable: the GPU that was named is not there.
    """
    if device.kind == "cpu":
        return device
    faiss = faiss_module()
    gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if device.kind == "auto":
        return Device("cuda" if gpus else "cpu")
    if device.index >= gpus:
        raise DeviceUnavailable(
            f"index device = {str(device)!r}, but FAISS sees {gpus} GPUs; install "
            "precedent-memory[gpu] on a machine with a GPU, or choose cpu or auto"
        )
    return device


def _opened(index: int) -> _Gpu:
    faiss = faiss_module()

    with _opening:
        if index not in _gpus:
            _gpus[index] = _Gpu(faiss.StandardGpuResources())
        return _gpus[index]
