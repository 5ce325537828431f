"""The device asked for, as torch knows it."""

from __future__ import annotations

import logging

import torch

from retriever.device import Device
from retriever.errors import DeviceUnavailable

log = logging.getLogger(__name__)


def torch_device(device: Device) -> torch.device:
    """`auto` takes the first GPU if there is one.

    Raises:
        DeviceUnavailable: CUDA was named and torch cannot use it, or there is no such index.
    """
    if device.kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.kind == "auto":
        chosen = torch.device("cuda", 0) if count else torch.device("cpu")
        log.info("device=auto: torch uses %s", chosen)
        return chosen
    if not count:
        raise DeviceUnavailable(
            f"device={device}: torch {torch.__version__} sees no CUDA device; "
            "use device=cpu, or install precedent-memory[gpu] on a machine with a GPU"
        )
    if device.index >= count:
        raise DeviceUnavailable(
            f"device={device}: there are {count} CUDA devices, 0 to {count - 1}"
        )
    return torch.device("cuda", device.index)
