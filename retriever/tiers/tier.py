"""One index over the rows of a block, and what every kind of it must do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.tiers.module import faiss_module
from retriever.tiers.settings import MOST_RESULTS
from retriever.types import Bools, Floats, Ids

#: Below this share of eligible rows FAISS is told which they are; above, the mask afterwards is
#: cheaper than a test at every row.
FEW = 0.8


class Tier(Protocol):
    """Vectors by the number of their row. For one thread at a time.

    What it proposes is not filtered for certain: whoever asks applies the mask again.
    """

    kind: str

    def add(self, start: int, vectors: Floats, live: Bools) -> None:
        """Append the rows from `start` on: (n, E), (n,); those that are not live are never found.

        What stands in them is zeros.
        """
        ...

    def put(self, rows: Ids, vectors: Floats, live: Bools) -> bool:
        """Overwrite rows: (n,), (n, E), (n,); one that is not live leaves no bytes behind.

        False, with nothing changed, where building anew is the better or the only way.
        """
        ...

    def search(self, queries: Floats, count: int, eligible: Bools) -> tuple[Floats, Ids]:
        """Rows of large inner product, best first: (Q, E) -> (Q, count) scores, rows; -1 for none.

        `count` is at most `settings.MOST_RESULTS`.
        """
        ...

    def state(self) -> tuple[Any, Mapping[str, NDArray[Any]]]:
        """FAISS's index, on the CPU, and the arrays beside it: all that a saved copy needs."""
        ...


class HostTier(Tier, Protocol):
    """A tier in main memory, whose contents can be looked at."""

    def stored(self, rows: Ids) -> Floats:
        """What the index holds of some rows, all of them live: (n,) -> (n, E)."""
        ...


def filtered(count: int, eligible: Bools, held: int) -> tuple[Any, int]:
    """FAISS's filter for these rows, and how many to ask for so that `count` are eligible.

    No filter where asking for more costs less. A filter holds a pointer to bits that live as long
    as it does.

    Args:
        count: how many are wanted.
        eligible: (N,) the rows that may be found.
        held: rows in the index, whether or not they may be found.
    """
    faiss = faiss_module()

    few = int(np.count_nonzero(eligible))
    fetch = _fetched(count, few, held)
    if few >= FEW * held and fetch <= MOST_RESULTS:
        return None, max(1, min(fetch, held))
    bits = np.packbits(eligible, bitorder="little")
    made = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
    made.bits = bits
    return made, max(1, min(count, few))


def unfiltered(count: int, eligible: Bools, nodes: int) -> int:
    """How many results to ask for where FAISS cannot filter, so that `count` should be eligible.

    Args:
        count: how many are wanted.
        eligible: (N,) the rows that may be found.
        nodes: what the index holds, with what is dead in it.
    """
    fetch = _fetched(count, int(np.count_nonzero(eligible)), nodes)
    return max(1, min(fetch, MOST_RESULTS, nodes))


def _fetched(count: int, eligible: int, nodes: int) -> int:
    share = max(1, eligible) / max(1, nodes)
    # A quarter more: among the best, eligible rows are not spread evenly.
    return count if share >= 1 else math.ceil(1.25 * count / share) + 16
