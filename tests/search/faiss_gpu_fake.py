"""FAISS's classic GPU indexes without a GPU: the CPU's results under the GPU's limits (1.15).

At most 2,048 results; a filter is accepted and ignored; nothing is removed; the flat index refuses
ids and is not overwritten; two calls at once on one resource object are an error.
"""

import threading
import time

import faiss

MOST = 2048


class StandardGpuResources:
    """Counts itself, and notices two users at once."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self._user = threading.Lock()

    def used(self):
        if not self._user.acquire(blocking=False):
            raise RuntimeError("two calls at once on one StandardGpuResources")
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._user.release()


class GpuClonerOptions:
    useFloat16 = False


class GpuIndex:
    """A copy of a CPU index; only what the GPU's has."""

    def __init__(self, resources, device, index, options):
        if not isinstance(
            index, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexIVFScalarQuantizer
        ):
            raise RuntimeError("This index type is not implemented on GPU.")
        self._resources, self.device, self.half = resources, device, options.useFloat16
        with resources.used():
            self._index = faiss.clone_index(index)

    @property
    def ntotal(self):
        return self._index.ntotal

    @property
    def d(self):
        return self._index.d

    def add(self, vectors):
        with self._resources.used():
            self._index.add(vectors)

    def add_with_ids(self, vectors, ids):
        if isinstance(self._index, faiss.IndexFlat):
            raise RuntimeError("add_with_ids not implemented for this type of index")
        with self._resources.used():
            self._index.add_with_ids(vectors, ids)

    def remove_ids(self, _):
        raise RuntimeError("remove_ids not implemented for this type of index")

    def search(self, queries, k, *, params=None):
        if k > MOST:
            raise RuntimeError(f"GPU index only supports min/max-K selection up to {MOST}")
        nprobe = getattr(params, "nprobe", None)
        if nprobe is not None and nprobe > MOST:
            raise RuntimeError(f"nprobe is at most {MOST}")
        kept = None if nprobe is None else faiss.SearchParametersIVF(nprobe=nprobe)  # no `sel`
        with self._resources.used():
            time.sleep(0.002)  # long enough for another thread to come in
            return self._index.search(queries, k, params=kept)


def index_cpu_to_gpu(resources, device, index, options=None):
    return GpuIndex(resources, device, index, options or GpuClonerOptions())


def index_gpu_to_cpu(index):
    with index._resources.used():
        return faiss.clone_index(index._index)


def installed(monkeypatch, gpus=1):
    """Give the module `faiss` GPUs."""
    from retriever.tiers import gpu

    StandardGpuResources.made = 0
    monkeypatch.setattr(gpu, "_gpus", {})
    for name, value in {
        "StandardGpuResources": StandardGpuResources,
        "GpuClonerOptions": GpuClonerOptions,
        "index_cpu_to_gpu": index_cpu_to_gpu,
        "index_gpu_to_cpu": index_gpu_to_cpu,
        "get_num_gpus": lambda: gpus,
    }.items():
        monkeypatch.setattr(faiss, name, value, raising=False)
