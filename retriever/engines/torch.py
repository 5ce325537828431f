"""torch: the engine for GPUs, and the reference that the ONNX engine is compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from retriever.artifact import Manifest
from retriever.device import Device
from retriever.learning.devices import torch_device
from retriever.learning.model import load_model
from retriever.types import Floats


class TorchEngine:
    """The model itself in evaluation mode."""

    def __init__(self, folder: Path, manifest: Manifest, device: Device) -> None:
        self._device = torch_device(device)
        self._model = load_model(folder, manifest).to(self._device).eval()
        self.device = str(self._device)
        self.provider = f"torch:{self._device.type}"

    @torch.inference_mode()
    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: tuple[str, ...]
    ) -> list[Floats]:
        """Ids and mask (B, L) -> the named outputs, each (B, H) or (B, D) float32."""
        found = self._model.views(
            torch.from_numpy(ids).to(self._device), torch.from_numpy(mask).to(self._device)
        )
        return [found[name].float().cpu().numpy() for name in outputs]
