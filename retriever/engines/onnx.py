"""ONNX Runtime: the portable engine, and the fast one on CPUs. No torch.

On the CPU it uses the physical cores granted to the process, one operator at a time, and does not
spin while it waits. The int8 graph quantises activations by the largest value in the whole batch,
so it is run one text at a time and without padding: what a text gets never depends on others.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.artifact import ENCODER_INT8, ENCODER_ONNX
from retriever.cores import granted_cores
from retriever.device import Device
from retriever.encoding import whole_number
from retriever.engines.binding import cuda_options, run_bound
from retriever.engines.runtime import import_runtime
from retriever.errors import ArtifactNotFound, DeviceUnavailable, InvalidInput
from retriever.types import Floats

log = logging.getLogger(__name__)

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"

FILES = {"fp32": ENCODER_ONNX, "int8": ENCODER_INT8}


class OnnxEngine:
    """One inference session over an encoder's graph; `run` may be called from several threads.

    Args:
        folder: the artifact.
        device: where to compute; int8 runs on CPUs only, and takes one where the device is `auto`.
        precision: auto (fp32) | fp32 | int8.
        threads: how many work on one call; by default the physical cores granted.
        gpu_memory_bytes: the most the CUDA arena may take; None for no limit of its own.

    Raises:
        ArtifactNotFound: the artifact does not hold that graph.
        DeviceUnavailable: see `open_session`.
        InvalidInput: no precision of this engine, int8 on a GPU, or no thread.
    """

    def __init__(
        self,
        folder: Path,
        device: Device,
        *,
        precision: str = "fp32",
        threads: int | None = None,
        gpu_memory_bytes: int | None = None,
    ) -> None:
        self.precision = "fp32" if precision == "auto" else precision
        if self.precision not in FILES:
            raise InvalidInput(
                f"precision = {precision!r}: the ONNX engine has auto, {', '.join(FILES)}; "
                "for fp16 and bf16 use engine='torch'"
            )
        path = folder / FILES[self.precision]
        if not path.is_file():
            raise ArtifactNotFound(_missing(path, self.precision))
        if self.precision == "int8":
            device = _cpu_only(device)
        self._session = open_session(
            path, device, threads=threads, gpu_memory_bytes=gpu_memory_bytes
        )
        self.provider: str = self._session.get_providers()[0]
        self._gpu = device.index if self.provider == CUDA else None
        self.device = "cpu" if self._gpu is None else f"cuda:{self._gpu}"

    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: tuple[str, ...]
    ) -> list[Floats]:
        """Ids and mask (B, L) -> the named outputs, each (B, H) or (B, D) float32."""
        if self._gpu is not None:
            return run_bound(self._session, self._gpu, ids, mask, outputs)
        if self.precision != "int8":
            return self._run(ids, mask, outputs)
        rows = [
            self._run(ids[row : row + 1, :length], mask[row : row + 1, :length], outputs)
            for row, length in enumerate(_lengths(mask))
        ]
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    def _run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: tuple[str, ...]
    ) -> list[Floats]:
        found = self._session.run(list(outputs), {"input_ids": ids, "attention_mask": mask})
        return [np.asarray(array, dtype=np.float32) for array in found]


def open_session(
    path: Path,
    device: Device,
    *,
    threads: int | None = None,
    gpu_memory_bytes: int | None = None,
) -> Any:
    """An `InferenceSession` on the device asked for, and on no other.

    Raises:
        DeviceUnavailable: CUDA was named and ONNX Runtime cannot use it. (ONNX Runtime itself
            would fall back to the CPU without an error.)
        InvalidInput: `threads` is no whole number of at least 1.
    """
    if threads is not None:
        whole_number("threads", threads, "or None for the cores granted")
    runtime = import_runtime()
    if device.kind == "cpu":
        return _session(runtime, path, [CPU], threads)
    if CUDA in runtime.get_available_providers():
        preload = getattr(runtime, "preload_dlls", None)
        if preload is not None:
            preload()
        options = cuda_options(device.index, gpu_memory_bytes)
        session = _session(runtime, path, [(CUDA, options), CPU], threads)
        if session.get_providers()[0] == CUDA:
            log.info("device=%s: using %s:%d for ONNX", device, CUDA, device.index)
            return session
        reason = (
            "the CUDA provider is installed but could not start (driver, CUDA or cuDNN missing)"
        )
        remedy = ""
    else:
        reason = "this onnxruntime has no CUDA provider"
        remedy = (
            f" (it offers only {runtime.get_available_providers()}); "
            "install precedent-memory[gpu] instead of [cpu]"
        )
    if device.kind == "cuda":
        raise DeviceUnavailable(f"device={device}: {reason}{remedy}; or use device=cpu")
    log.info("device=auto: using the CPU for ONNX (%s)", reason)
    return _session(runtime, path, [CPU], threads)


def _session(runtime: Any, path: Path, providers: list[Any], threads: int | None) -> Any:
    options = runtime.SessionOptions()  # by default one operator at a time, all optimisations
    options.intra_op_num_threads = granted_cores(physical=True) if threads is None else threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads steal the time of whoever shares the machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(str(path), options, providers=providers)


def _lengths(mask: NDArray[np.int64]) -> list[int]:
    """(B, L) -> tokens of each row, for padding is at the tail; a row of nothing keeps one."""
    return [max(1, int(length)) for length in mask.sum(axis=1)]


def _cpu_only(device: Device) -> Device:
    if device.kind == "cuda":
        raise InvalidInput(
            f"precision = 'int8' with device = {device}: the quantised graph runs on CPUs only; "
            "on a GPU use engine='torch' with precision='fp16'"
        )
    return Device("cpu")


def _missing(path: Path, precision: str) -> str:
    if precision == "int8":
        return (
            f"{path} does not exist: this artifact holds no int8 encoder; make one with: "
            f"python -m retriever.learning.quantise {path.parent} --data LOG.jsonl  (it refuses "
            "where the ranking would suffer), or use precision='fp32'"
        )
    return (
        f"{path} does not exist: this artifact was exported without ONNX; load it with "
        "engine='torch', or train with export.onnx=true"
    )
