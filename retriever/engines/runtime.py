"""ONNX Runtime, imported in one place, without its telemetry.

Since 1.32 the official wheels for Linux send events to their maker, and write a device identifier
and a database of events below the user's cache folder, unless the environment says otherwise before
the module is loaded. See Privacy.md in the wheel.
"""

from __future__ import annotations

import os
from typing import Any

from retriever.errors import RetrieverError

TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"


def import_runtime() -> Any:
    """The module `onnxruntime`.

    Raises:
        RetrieverError: it is not installed.
    """
    refuse_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise RetrieverError(
            "the ONNX engine needs onnxruntime; install precedent-memory[cpu] or [gpu]"
        ) from error
    return onnxruntime


def refuse_telemetry() -> None:
    """Turn telemetry off for this process; who set the variable, to whatever value, is obeyed."""
    os.environ.setdefault(TELEMETRY_OFF, "1")
