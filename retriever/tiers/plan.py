"""Which index a bank of some size gets, and why.

The sizes are where the ways cross on two CPU cores (`benchmarks/tiers.py` measures them); they need
not be exact, for on either side of one both ways are about as quick.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from retriever.tiers.settings import IndexSettings

Mode: TypeAlias = Literal["cosine", "ann"]

#: Below this many rows the exact scan is as quick as candidates and rescoring: no index at all.
SCAN_ROWS = 50_000
#: The same on a GPU, whose scan reads a million rows in a fraction of a millisecond.
SCAN_ROWS_GPU = 4_000_000
#: Below this many, comparing with every candidate vector takes a few milliseconds.
FLAT_ROWS = 100_000
#: Cosine: below this many rows flat search, which is exact, takes a few tens of milliseconds.
COSINE_FLAT_ROWS = 500_000
COSINE_FLAT_ROWS_GPU = 10_000_000
#: Fewer rows than this are not worth lists or a graph, nor enough to train them.
LEAST_ROWS = 1_000
#: An index changes its kind once the bank is past a size by this factor: at the very size, one case
#: that comes and goes would have it built anew each time.
MARGIN = 1.2


class Plan(NamedTuple):
    """An index: its kind, `none` for no index at all; what inverted lists need; the reason."""

    kind: Literal["none", "flat", "ivf", "hnsw"]
    lists: int
    probes: int
    reason: str


def planned(
    settings: IndexSettings, mode: Mode, rows: int, gpu: bool, present: str | None = None
) -> Plan:
    """The index for a bank of `rows` rows.

    Args:
        settings: what was asked for.
        mode: what it is for.
        rows: how many cases it holds.
        gpu: whether it is on one.
        present: the kind that is there, which stays as long as the size is near one that has it.
    """
    kind, reason = _kind(settings, mode, rows, gpu)
    for near in (int(rows / MARGIN), int(np.ceil(rows * MARGIN))):
        other, _ = _kind(settings, mode, near, gpu)
        if other == present != kind:
            kind, reason = other, f"{reason}; {rows} rows are too near that to change"
    lists = settings.lists or round(np.sqrt(rows))
    lists = max(1, min(lists, settings.sample, rows))
    probes = settings.probes or max(8, lists // 8)
    return Plan(kind, lists, min(probes, lists), reason)


def _kind(
    settings: IndexSettings, mode: Mode, rows: int, gpu: bool
) -> tuple[Literal["none", "flat", "ivf", "hnsw"], str]:
    place = "a GPU" if gpu else "the CPU"
    if settings.kind != "auto":
        if settings.kind != "flat" and rows < LEAST_ROWS:
            return "flat", f"{settings.kind} was asked for, but {rows} rows are too few for it"
        return settings.kind, "asked for"  # type: ignore[return-value]  # checked by the settings
    if mode == "ann":
        scan = SCAN_ROWS_GPU if gpu else SCAN_ROWS
        if rows < scan:
            return "none", f"below {scan:,} rows on {place} scoring every case is as quick"
        if rows < FLAT_ROWS:
            return "flat", f"below {FLAT_ROWS:,} rows lists save little"
        return "ivf", f"from {max(scan, FLAT_ROWS):,} rows on {place} lists are quicker"
    flat = COSINE_FLAT_ROWS_GPU if gpu else COSINE_FLAT_ROWS
    if rows < flat:
        return "flat", f"below {flat:,} rows on {place} comparing every row is quick, and exact"
    return "ivf", f"from {flat:,} rows on {place} comparing every row is slow"
