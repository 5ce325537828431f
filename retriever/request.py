"""What a search may be asked: the checks of one call's values, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from retriever.errors import InvalidInput
from retriever.ranking.diversity import Mmr, Quota
from retriever.ranking.exploration import Exploration
from retriever.ranking.fusion import Fusion
from retriever.types import UNKNOWN_TIME, Block, Bools
from retriever.values import instance, is_number, shown

MODES = ("exact", "cosine", "ann", "lexical", "hybrid")

#: NUL, and half a surrogate pair: no bank stores them, so that no case could hold them.
_IN_NO_TEXT = re.compile("[\x00\ud800-\udfff]")


def check(queries: Sequence[str], k: int, mode: str, min_score: float | None) -> None:
    """Refuse what no search could answer."""
    if mode not in MODES:
        raise InvalidInput(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInput(f"k must be a whole number of at least 1, got {shown(k)}")
    if isinstance(queries, str):
        raise InvalidInput("queries must be a list of texts, got one text; wrap it in a list")
    if not isinstance(queries, Sequence | np.ndarray):
        raise InvalidInput(f"queries must be a list of texts, got {type(queries).__name__}")
    if not len(queries):
        raise InvalidInput("queries is empty; give at least one")
    for index, query in enumerate(queries):
        if not isinstance(query, str):
            raise InvalidInput(f"queries[{index}] must be text, got {type(query).__name__}")
        if not query.strip():
            raise InvalidInput(f"queries[{index}] is blank; give words to search for")
        bad = _IN_NO_TEXT.search(query)
        if bad is not None:
            raise InvalidInput(
                f"queries[{index}] holds {bad[0]!r} at character {bad.start()}, which no stored "
                "text has; take it out"
            )
    if min_score is not None and not is_number(min_score):
        raise InvalidInput(f"min_score must be a finite number or None, got {shown(min_score)}")


def check_options(fusion: object, mmr: object, quota: object, exploration: object) -> None:
    """Refuse what is not of the class that it should be."""
    instance("fusion", fusion, Fusion, "Fusion('zscore', weight=0.5)")
    instance("mmr", mmr, Mmr, "Mmr(weight=0.7)")
    instance("quota", quota, Quota, "Quota(positive=4, negative=4)")
    instance("exploration", exploration, Exploration, "Exploration('softmax', temperature=0.5)")


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
