"""How a bank is opened. Durability is not an option: every acknowledged write is on disk."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memory.errors import InvalidInput

LEXICAL = ("words", "trigrams")
VECTOR_TYPES = ("float32", "float16")


@dataclass
class BankConfig:
    """Times, sizes and forms of a bank."""

    busy_timeout_s: float = 30.0  # how long a writer waits for the writers of other processes
    embed_batch: int = 256  # texts given to an embedder in one call
    import_batch: int = 1000  # cases of a file acknowledged together
    # How new vectors are stored and held: float16 halves both, at a relative error of 2^-11.
    vectors: str = "float32"
    # How the full-text index of a new bank cuts text: English words (stemmed), or trigrams, which
    # also find Chinese, Japanese and Korean. A bank keeps what it was made with.
    lexical: str = "words"
    snapshots: bool = True  # keep a snapshot of the arrays on closing, for a quick start
    snapshot_rows: int = 10_000  # from how many cases a namespace on
    snapshot_folder: str | None = None  # beside the database file unless given
    erase_timeout_s: float = 5.0  # how long a purge waits for old readers before `pending`
    idempotency_hours: float = 24.0  # how long a repeated request is known

    def __post_init__(self) -> None:
        for name in ("busy_timeout_s", "erase_timeout_s", "idempotency_hours"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"bank.{name} = {value!r}: give a time, 0 or more")
        for name in ("embed_batch", "import_batch", "snapshot_rows"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"bank.{name} = {getattr(self, name)!r}: at least 1")
        for name, known in (("vectors", VECTOR_TYPES), ("lexical", LEXICAL)):
            if getattr(self, name) not in known:
                raise InvalidInput(
                    f"bank.{name} = {getattr(self, name)!r}: one of {', '.join(known)}"
                )
