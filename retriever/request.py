"""What a search may be asked: the checks of one call's values, each with its remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from retriever.errors import InvalidInput
from retriever.types import UNKNOWN_TIME, Block, Bools

MODES = ("exact", "cosine", "ann", "lexical", "hybrid")


def check(queries: Sequence[str], k: int, mode: str, min_score: float | None) -> None:
    """Refuse what no search could answer."""
    if mode not in MODES:
        raise InvalidInput(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInput(f"k must be a whole number of at least 1, got {k!r}")
    if isinstance(queries, str):
        raise InvalidInput("queries must be a list of texts, got one text; wrap it in a list")
    if not len(queries):
        raise InvalidInput("queries is empty; give at least one")
    for index, query in enumerate(queries):
        if not isinstance(query, str):
            raise InvalidInput(f"queries[{index}] must be text, got {type(query).__name__}")
        if not query.strip():
            raise InvalidInput(f"queries[{index}] is blank; give words to search for")
    if min_score is not None and (isinstance(min_score, bool) or not math.isfinite(min_score)):
        raise InvalidInput(f"min_score must be a finite number or None, got {min_score!r}")


def check_as_of(as_of: int | None) -> None:
    """Refuse what is no moment."""
    if as_of is None:
        return
    whole = isinstance(as_of, int | np.integer) and not isinstance(as_of, bool)
    if not whole or not -(2**63) < as_of < 2**63:
        raise InvalidInput(
            f"as_of must be microseconds since 1970-01-01 UTC, a whole number, got {as_of!r}"
        )


def valid_rows(block: Block, as_of: int | None) -> Bools:
    """The live rows that were valid at a moment: (N,)."""
    if as_of is None:
        return block.live
    start, end = block.columns.valid_from, block.columns.valid_to
    # A start that is not known is earlier than every time.
    valid: Bools = block.live & (start <= as_of) & ((as_of < end) | (end == UNKNOWN_TIME))
    return valid
