"""The exact scan on a GPU: a copy of the projections stays on the device and follows the bank.

The device proposes, the bank decides. Kernels give float32 scores with a proven bound on how far
they may be off, by rounding or by the fewer bits of the copy; every row that might be among the k
best by that bound is then scored in float64 from the bank's own vectors. So the answer is the CPU's
to the last bit, with every storage. Triton's kernels run where there is a CUDA device (or its
interpreter, TRITON_INTERPRET=1), else their twins in plain torch.

What is forgotten is overwritten in device memory by the next search, or at once by `drop`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retriever.device import Device
from retriever.errors import DeviceUnavailable, IndexUnavailable, InvalidInput
from retriever.following import Follower
from retriever.head import Head
from retriever.kernels import reference, torch_candidates, torch_kernels
from retriever.kernels.numpy_scan import NumpyScanner
from retriever.kernels.rescoring import Best, ranked
from retriever.kernels.scanner import Scanner
from retriever.kernels.torch_candidates import Search
from retriever.kernels.torch_kernels import GROUP, TILE, Prepared
from retriever.kernels.torch_resident import Resident, too_large
from retriever.types import Block, Bools, Floats, Ids
from retriever.vectors import Vectors, block_rows, taken

#: How the copy holds the vectors: with the bank's own bits, or in sixteen.
STORAGES = ("bank", "float16", "bfloat16")

#: Bytes of the device that vectors leave to everything else.
HEADROOM = 1 << 29

#: Times that Triton may fail to read or write a file, as its cache of compiled code is one, before
#: it is left alone for good: such a failure may pass, but every try compiles anew.
FILE_FAILURES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Namespace:
    copy: Resident
    follower: Follower


class TorchScanner:
    """Fulfils `scan.Scanner` with the projections resident on a device. Safe for threads.

    Namespaces are scanned side by side, the searches of one in turn.

    Args:
        device: auto takes the first GPU if there is one, else the CPU.
        storage: bank keeps the bank's own bits; float16 and bfloat16 read half the bytes of a
            float32 bank, and look at a few more candidates for it.
        max_bytes: of vectors on the device, all namespaces together; None for what is free.
        on_cpu: opens what scans blocks that the copy is ahead of; once, at the first of them.

    Attributes:
        device: where it scans, as torch knows it.

    Raises:
        InvalidInput: another storage.
        DeviceUnavailable: CUDA was named and torch sees no such device.
    """

    def __init__(
        self,
        device: Device,
        storage: str = "bank",
        *,
        max_bytes: int | None = None,
        on_cpu: Callable[[], Scanner] = NumpyScanner,
    ) -> None:
        if storage not in STORAGES:
            raise InvalidInput(
                f"storage = {storage!r}: one of {', '.join(STORAGES)} on a GPU; int8 is of the CPU"
            )
        self.device = _device(device)
        self._storage, self._max_bytes = storage, max_bytes
        self._namespaces: dict[str, _Namespace] = {}
        self._lock = threading.Lock()
        self._kernels: Any = triton_kernels(self.device)
        self._file_failures = 0
        self._open_cpu = on_cpu
        self._cpu: Scanner | None = None

    def top_k(
        self,
        block: Block,
        head: Head,
        queries: Floats,
        eligible: Bools,
        k: int,
        *,
        rising: bool = True,
    ) -> list[Best]:
        """See `scan.Scanner`.

        Raises:
            IndexUnavailable: the namespace does not fit on the device.
        """
        vectors = reference.projections(block, head, queries, k)
        if not len(queries) or not eligible.any():
            return [Best(np.empty(0, np.int64), np.empty(0)) for _ in queries]
        here = self._namespace(block.namespace)
        near: list[Ids] | None = None
        with self._current(), self._room_for_scores(), here.follower.held(block) as state:
            if state != "older":
                search = Search(self._run, here.copy, block, eligible)
                near = search.near(head, queries, k, rising)
        if near is None:
            return self._on_cpu().top_k(block, head, queries, eligible, k, rising=rising)
        return _in_order(vectors, block.ids, head, queries, near, k, rising)

    def logits(self, block: Block, head: Head, queries: Floats) -> Floats:
        """See `scan.Scanner`."""
        reference.projections(block, head, queries)
        out = np.empty((len(queries), len(block.ids)), np.float32)
        if not out.size:
            return out
        here = self._namespace(block.namespace)
        with self._current(), self._room_for_scores(), here.follower.held(block) as state:
            tiles = here.copy.tiles
            if state == "older" or tiles is None:
                return self._on_cpu().logits(block, head, queries)
            step = max(1, torch_candidates.SCORES // out.shape[1])
            for start in range(0, len(queries), step):
                query = Prepared.of(head, queries[start : start + step], True, self.device)
                found = self._run("scores", tiles, query, None, out.shape[1], 0)
                out[start : start + step] = found.cpu().numpy()
        return out

    def drop(self, namespace: str) -> None:
        """See `scan.Scanner`: device memory is overwritten before this returns."""
        with self._current():
            self._namespace(namespace).follower.drop()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    def accept(self, namespace: str, version: int) -> None:
        """See `scan.Scanner`."""
        self._namespace(namespace).follower.accept(version)

    def warm_up(self, head: Head) -> None:
        """See `scan.Scanner`: compiles the kernels for one query and for many."""
        kept = (torch.float32, torch.float16) if self._storage == "bank" else ()
        with self._current():
            for dtype in kept or (getattr(torch, self._storage),):
                tiles = torch.zeros(1, head.case_width, TILE, dtype=dtype, device=self.device)
                live = torch.ones(TILE, dtype=torch.uint8, device=self.device)
                groups = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
                for count in (1, 2):
                    queries = np.zeros((count, head.query_width), np.float32)
                    query = Prepared.of(head, queries, True, self.device)
                    for group in (1, GROUP):
                        self._run("scores", tiles, query, live, TILE, group)
                    self._run("picked", tiles, query, live, TILE, groups.expand(count, 1))

    def describe(self) -> str:
        """See `scan.Scanner`."""
        cuda = self.device.type == "cuda"
        name = f" ({torch.cuda.get_device_name(self.device)})" if cuda else ""
        kernels = f"torch {torch.__version__}"
        if self._kernels is not None:
            kernels = f"triton {self._kernels.triton.__version__}"
        return f"{kernels} on {self.device}{name}, storage {self._storage}"

    def resident(self, namespace: str) -> Resident:
        """The copy of a namespace; its follower's lock is not held: for those who measure."""
        return self._namespace(namespace).copy

    def _namespace(self, name: str) -> _Namespace:
        with self._lock:
            if name not in self._namespaces:
                copy = Resident(self.device, self._storage, self._room)
                self._namespaces[name] = _Namespace(copy, Follower(copy, "projections"))
            return self._namespaces[name]

    def _room(self, need: int) -> None:
        """Raise IndexUnavailable where there is no room for so many bytes of vectors."""
        free = None
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            free += torch.cuda.memory_reserved(self.device)
            free -= torch.cuda.memory_allocated(self.device) + HEADROOM
        if self._max_bytes is not None:
            held = [n.copy.tiles for n in list(self._namespaces.values())]
            used = sum(tiles.nbytes for tiles in held if tiles is not None)
            limit = self._max_bytes - used
            free = limit if free is None else min(free, limit)
        if free is not None and need > free:
            raise IndexUnavailable(too_large(need, free))

    def _run(self, kernel: str, *arguments: Any) -> Tensor:
        """A Triton kernel, or where it fails its plain twin."""
        kernels = self._kernels
        if kernels is not None:
            try:
                found: Tensor = getattr(kernels, kernel)(*arguments)
                return found
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._failed(error)
        plain: Tensor = getattr(torch_kernels, kernel)(*arguments)
        return plain

    def _failed(self, error: Exception) -> None:
        """Leave Triton alone after a failure to compile or launch, or some of the file system."""
        with self._lock:
            if self._kernels is None:
                return  # another thread's failure was first, and said so
            self._file_failures += isinstance(error, OSError)
            passing = isinstance(error, OSError) and self._file_failures < FILE_FAILURES
            if not passing:
                self._kernels = None
        log.warning(
            "scanning in plain torch%s: triton failed: %s",
            " this once" if passing else "",
            _first_line(error),
        )

    @contextmanager
    def _room_for_scores(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise IndexUnavailable(
                f"what a scan needs does not fit on {self.device} ({_first_line(error)}); ask "
                "fewer queries at once, use a larger device, or scan with device=cpu"
            ) from error

    def _current(self) -> AbstractContextManager[Any]:
        """Triton launches on the thread's current device."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _on_cpu(self) -> Scanner:
        if self._cpu is None:
            self._cpu = self._open_cpu()
        return self._cpu


def _in_order(
    vectors: Vectors,
    ids: Ids,
    head: Head,
    queries: Floats,
    near: list[Ids],
    k: int,
    rising: bool,
) -> list[Best]:
    """The k best of each query's rows by their exact logits, all queries in one pass."""
    ends = np.cumsum([len(rows) for rows in near])
    rows = np.concatenate(near)
    numbers = np.repeat(np.arange(len(near)), np.diff(ends, prepend=0))
    exact = np.empty(len(rows))
    size = block_rows(head.case_width)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        exact[part] = reference.exact(head, taken(vectors, rows[part]), queries[numbers[part]])
    fit = np.abs(exact) <= np.finfo(np.float32).max
    if not fit.all():
        number = int(numbers[fit.argmin()])
        own = numbers == number
        ranked(exact[own], rows[own], ids, k, rising, number=number)  # raises
    order = np.lexsort((ids[rows], -exact if rising else exact, numbers))
    rows, exact = rows[order], exact[order]
    found = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        best = slice(start, min(start + k, end))
        found.append(Best(rows[best], exact[best]))
    return found


def _device(device: Device) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.kind == "cpu" or (device.kind == "auto" and not count):
        return torch.device("cpu")
    if device.index >= count:
        raise DeviceUnavailable(
            f"device={device}: torch {torch.__version__} sees {count} CUDA devices; use device=cpu"
        )
    return torch.device("cuda", device.index)


def triton_kernels(device: torch.device) -> Any:
    """The module with Triton's kernels, or None where they cannot run; the log says why."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from retriever.kernels import triton_scan
    except Exception as error:
        log.warning("scanning in plain torch: triton cannot be used: %s", _first_line(error))
        return None
    return triton_scan


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
