"""ONNX Runtime on CUDA: inputs to the device once, outputs back once, memory kept within bounds.

Tested against a fake that enforces the order of calls, names, shapes and devices; it has never run
on hardware.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.engines.runtime import import_runtime
from retriever.types import Floats

#: Lengths are padded to a multiple of this: every new shape is planned, and its memory kept, anew.
LENGTH_STEP = 16


def cuda_options(index: int, memory_bytes: int | None) -> dict[str, str]:
    """Options of the CUDA provider.

    Its arena takes what is asked for instead of the next power of two, which it would never give
    back. Products of float32 are computed in float32: by default the provider rounds what goes into
    them to TF32's 10 bits of mantissa, and a fingerprint of fp32 promises the vectors of every
    other machine.
    """
    options = {
        "device_id": str(index),
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
    }
    if memory_bytes is not None:
        options["gpu_mem_limit"] = str(memory_bytes)
    return options


def run_bound(
    session: Any,
    index: int,
    ids: NDArray[np.int64],
    mask: NDArray[np.int64],
    outputs: tuple[str, ...],
) -> list[Floats]:
    """Ids and mask (B, L) -> the named outputs, each (B, H) or (B, D) float32, on device `index`.

    A binding of its own for every call: sessions are safe for threads, bindings are not.
    """
    value = import_runtime().OrtValue
    short = -ids.shape[1] % LENGTH_STEP
    binding = session.io_binding()
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        padded = np.ascontiguousarray(np.pad(array, ((0, 0), (0, short))))  # the mask's zeros rule
        binding.bind_ortvalue_input(name, value.ortvalue_from_numpy(padded, "cuda", index))
    for name in outputs:
        binding.bind_output(name, "cuda", index)  # allocated there, by the run
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return [np.asarray(array, dtype=np.float32) for array in binding.copy_outputs_to_cpu()]
