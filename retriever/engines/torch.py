"""torch: the engine for GPUs, and the reference that the ONNX engine is compared with.

Attention is torch's scaled dot product where the encoder has it. In half precision the encoder
alone is narrowed; pooling and head stay in float32. Batches come sorted by length; the encoders of
the installed transformers read packed rows without padding only through packages for flash
attention that are no part of any of our installs, so what padding is left is computed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from retriever.artifact import Manifest
from retriever.device import Device
from retriever.errors import InvalidInput
from retriever.learning.devices import torch_device
from retriever.learning.model import CASE_PROJECTION, EMBEDDING, QUERY_PROJECTION, load_model, pool
from retriever.types import Floats

log = logging.getLogger(__name__)

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: The first GPUs whose matrix units compute in fp16 (Volta).
HALF_FROM = (7, 0)


class TorchEngine:
    """The model itself in evaluation mode.

    Args:
        folder: the artifact.
        manifest: its facts.
        device: where to compute.
        precision: fp32 | fp16 | bf16 | auto: fp16 on GPUs that are built for it, else fp32. Not
            bf16, whose 8 bits of mantissa change a ranking more (MiniLM, top 8 of 500 cases: fp16
            kept .998, bf16 .988); fp16 could overflow, but a number that is not finite is refused,
            never returned.

    Raises:
        InvalidInput: no precision of this engine.
        DeviceUnavailable: see `retriever.learning.devices`.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, device: Device, *, precision: str = "fp32"
    ) -> None:
        if precision not in (*TYPES, "auto"):
            raise InvalidInput(
                f"precision = {precision!r}: the torch engine has auto, {', '.join(TYPES)}; "
                "for int8 use engine='onnx'"
            )
        self._device = torch_device(device)
        self.precision = _chosen(self._device) if precision == "auto" else precision
        self._model = load_model(folder, manifest).to(self._device).eval()
        self._encoder: Any = self._model.encoder.to(TYPES[self.precision])
        self.device = str(self._device)
        self.provider = f"torch:{self._device.type}"
        attention = getattr(self._encoder.config, "_attn_implementation", "its own")
        log.info("torch on %s: %s, %s attention", self.device, self.precision, attention)

    @torch.inference_mode()
    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: tuple[str, ...]
    ) -> list[Floats]:
        """Ids and mask (B, L) -> the named outputs, each (B, H) or (B, D) float32."""
        read = torch.from_numpy(ids).to(self._device)
        attended = torch.from_numpy(mask).to(self._device)
        states = self._encoder(input_ids=read, attention_mask=attended).last_hidden_state
        embedding = pool(states.float(), attended, self._model.pooling)  # (B, H)
        head = self._model.head
        found = {EMBEDDING: embedding}
        if head is not None and CASE_PROJECTION in outputs:
            found[CASE_PROJECTION] = head.case(embedding)
        if head is not None and QUERY_PROJECTION in outputs:
            found[QUERY_PROJECTION] = head.query(embedding)
        return [found[name].cpu().numpy() for name in outputs]


def _chosen(device: torch.device) -> str:
    """What `auto` is on a device, said in the log."""
    half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= HALF_FROM
    chosen = "fp16" if half else "fp32"
    log.info("precision=auto: %s on %s", chosen, device)
    return chosen
