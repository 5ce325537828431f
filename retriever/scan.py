"""The exact scan: every case of a bank scored for every query.

A `Scanner` is what a search holds: it reads a block, wherever and in whatever form its vectors are
kept, and gives the best rows. Scores are those of the vectors the bank holds, computed in float64
for the rows returned: they depend neither on the device, nor on the storage the scan reads, nor on
the other queries of a batch; equal cases tie, and ties go to the lower id.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from pathlib import Path

import numpy as np

from retriever.cores import granted_cores
from retriever.device import Device
from retriever.errors import DeviceUnavailable, InvalidInput
from retriever.head import Head
from retriever.kernels import reference
from retriever.kernels.numpy_scan import NumpyScanner
from retriever.kernels.reference import Doubles
from retriever.kernels.rescoring import Best as Best
from retriever.kernels.scanner import Scanner as Scanner
from retriever.types import Floats
from retriever.vectors import Vectors, block_rows

#: How the scan reads the vectors: as the bank holds them, or a copy of its own in fewer bits.
STORAGES = ("bank", "float16", "bfloat16", "int8")

log = logging.getLogger(__name__)


def open_scanner(
    device: str = "auto", storage: str = "bank", threads: int | None = None
) -> Scanner:
    """The best scanner for a device.

    Args:
        device: auto | cpu | cuda | cuda:<index>; `auto` takes a GPU where there is one that PyTorch
            can use.
        storage: what the scan reads: the `bank`'s own vectors, or a copy in `bfloat16` or `int8`
            (on a GPU, `float16` too), which costs memory and saves time where the scan waits for
            memory. The answers are the same.
        threads: of one search on the CPU; by default as many as cores are granted.

    Raises:
        InvalidInput: an unknown storage, or fewer than one thread.
        ConfigError: an unknown device.
        DeviceUnavailable: a GPU was named and cannot be used.
    """
    wanted = Device.parse(device)
    if storage not in STORAGES:
        raise InvalidInput(f"storage must be one of {', '.join(STORAGES)}, got {storage!r}")
    if threads is not None and (isinstance(threads, bool) or threads < 1):
        raise InvalidInput(f"threads must be at least 1, got {threads!r}")
    if wanted.kind == "cuda":
        return _torch_scanner(wanted, storage)
    reason = "asked for"
    if wanted.kind == "auto":
        found = _gpu_scanner(storage)
        if not isinstance(found, str):
            return found
        reason = found
    if storage == "float16":
        raise InvalidInput(
            "storage='float16' is a copy on a GPU; on the CPU open the bank with vectors=float16 "
            "and scan with storage='bank'"
        )
    scanner = _cpu_scanner(storage, threads or granted_cores())
    log.info("the scan runs on the CPU (%s): %s", reason, scanner.describe())
    return scanner


def logits(head: Head, cases: Vectors, queries: Floats) -> Floats:
    """Score every case for every query: (N, W), (Q, D + R) -> (Q, N) float32 logits.

    Equal cases score the same bits, wherever they lie, and a query the same alone or among others.
    Overflow is not hidden: it shows as infinity or NaN.
    """
    reference.check(head, cases, queries)
    if not _numba_is_missing():
        from retriever.kernels import cpu_scan

        found = cpu_scan.logits(cases, head, queries, granted_cores())
        if found is not None:
            return found
    return reference.logits(head, cases, queries)


def pair_logits(head: Head, cases: Floats, queries: Floats) -> Doubles:
    """Score n cases, each for its own query: (n, W), (n, D + R) -> (n,) exact logits.

    The same bits that a search gives for the same vectors.
    """
    reference.check(head, cases, queries)
    if len(cases) != len(queries):
        raise InvalidInput(f"{len(cases)} cases and {len(queries)} queries are not pairs")
    found = np.empty(len(cases))
    size = block_rows(head.case_width)
    for first in range(0, len(cases), size):
        part = slice(first, first + size)
        found[part] = reference.exact(head, cases[part], queries[part])
    return found


def _torch_scanner(device: Device, storage: str) -> Scanner:
    from retriever.kernels.torch_scan import TorchScanner

    return TorchScanner(device, storage, on_cpu=functools.partial(open_scanner, "cpu"))


def _cpu_scanner(storage: str, threads: int) -> Scanner:
    reason = _numba_is_missing()
    if reason:
        log.warning("the scan is slower than it could be: %s", reason)
        return NumpyScanner(reason)
    from retriever.kernels.cpu import CpuScanner

    return CpuScanner(storage, threads)


@functools.cache
def _numba_is_missing() -> str:
    """Why the compiled loops cannot be used; empty where they can."""
    try:
        from retriever.kernels import compiled as compiled
    except Exception as error:  # an installation can be broken in many ways
        return f"numba cannot be used ({type(error).__name__}: {error}); numpy scans instead"
    return ""


def _gpu_scanner(storage: str) -> Scanner | str:
    """The scanner of the first GPU, or why there is none; imports torch only where it may help."""
    if storage == "int8":
        return "int8 copies are the CPU's"
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return "no NVIDIA device"
    if importlib.util.find_spec("torch") is None:
        return "an NVIDIA device, but no PyTorch; install precedent-memory[gpu] to use it"
    try:
        scanner = _torch_scanner(Device("cuda"), storage)
    except (DeviceUnavailable, ImportError, OSError) as error:
        return f"the NVIDIA device cannot be used: {error}"
    log.info("the scan runs on the first NVIDIA GPU: %s", scanner.describe())
    return scanner
