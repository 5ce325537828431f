"""ONNX Runtime: the portable engine, and the fast one on CPUs. No torch."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.artifact import ENCODER_ONNX
from retriever.device import Device
from retriever.errors import ArtifactNotFound, DeviceUnavailable, RetrieverError
from retriever.types import Floats

log = logging.getLogger(__name__)

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


class OnnxEngine:
    """One inference session over `encoder.onnx`; `run` may be called from several threads."""

    def __init__(self, folder: Path, device: Device) -> None:
        path = folder / ENCODER_ONNX
        if not path.is_file():
            raise ArtifactNotFound(
                f"{path} does not exist: this artifact was exported without ONNX; load it with "
                "engine='torch', or train with export.onnx=true"
            )
        self._session = open_session(path, device)
        self.provider: str = self._session.get_providers()[0]
        self.device = f"cuda:{device.index}" if self.provider == CUDA else "cpu"

    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: tuple[str, ...]
    ) -> list[Floats]:
        """Ids and mask (B, L) -> the named outputs, each (B, H) or (B, D) float32."""
        found = self._session.run(list(outputs), {"input_ids": ids, "attention_mask": mask})
        return [np.asarray(array, dtype=np.float32) for array in found]


def open_session(path: Path, device: Device) -> Any:
    """An `InferenceSession` on the device asked for, and on no other.

    Raises:
        DeviceUnavailable: CUDA was named and ONNX Runtime cannot use it. (ONNX Runtime itself
            would fall back to the CPU without an error.)
    """
    runtime = _import_runtime()
    if device.kind == "cpu":
        return _session(runtime, path, [CPU])
    if CUDA in runtime.get_available_providers():
        preload = getattr(runtime, "preload_dlls", None)
        if preload is not None:
            preload()
        session = _session(runtime, path, [(CUDA, {"device_id": device.index}), CPU])
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
    return _session(runtime, path, [CPU])


def _session(runtime: Any, path: Path, providers: list[Any]) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads steal the time of whoever shares the machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(str(path), options, providers=providers)


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise RetrieverError(
            "the ONNX engine needs onnxruntime; install precedent-memory[cpu] or [gpu]"
        ) from error
    return onnxruntime
