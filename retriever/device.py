"""One spelling for where to compute, obeyed everywhere: `auto`, `cpu`, `cuda`, `cuda:<index>`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retriever.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """A request for a device; whether it exists is found out by the engine that uses it."""

    kind: str  # auto | cpu | cuda
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Device:
        """Read `auto`, `cpu`, `cuda` or `cuda:1`.

        Raises:
            ConfigError: any other spelling.
        """
        match = re.fullmatch(r"(auto|cpu|cuda)(?::([0-9]+))?", str(text))
        if match is None or (match[2] is not None and match[1] != "cuda"):
            raise ConfigError(f"device = {text!r}: one of auto, cpu, cuda, cuda:<index>")
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else self.kind
