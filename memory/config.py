"""How a bank is opened. Durability is not an option: every acknowledged write is on disk."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memory.errors import InvalidInput


@dataclass
class BankConfig:
    """Times and sizes of a bank."""

    busy_timeout_s: float = 30.0  # how long a writer waits for the writers of other processes
    embed_batch: int = 256  # texts given to an embedder in one call
    import_batch: int = 1000  # cases of a file acknowledged together

    def __post_init__(self) -> None:
        if not (math.isfinite(self.busy_timeout_s) and self.busy_timeout_s >= 0):
            raise InvalidInput(
                f"bank.busy_timeout_s = {self.busy_timeout_s!r}: give seconds, 0 or more"
            )
        for name in ("embed_batch", "import_batch"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"bank.{name} = {getattr(self, name)!r}: at least 1")
