"""What a follower of a bank reads: the changes of a namespace, in the order they were committed.

The bank fulfils this over its database. Asked twice for the same changes, a follower comes to the
same state, so that an attempt that broke off is simply made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np

from memory.types import Array, Bools, Embedder, Ids, Kinds, Outcomes, Times

#: Stands for a time that is not known. Earlier than every time a case may have.
UNKNOWN_TIME = int(np.iinfo(np.int64).min)


class Columns(NamedTuple):
    """What a search may filter by, one value a case: (N,) each.

    `outcome` is NaN where it is not known, `kind` an index into `memory.KINDS`; the times are
    microseconds since 1970-01-01 UTC, `UNKNOWN_TIME` where they are not known.
    """

    outcome: Outcomes
    kind: Kinds
    created_at: Times
    valid_from: Times
    valid_to: Times


class Batch(NamedTuple):
    """n cases that are new or changed, as they are now.

    `stamps` (n,) is the change in which a case got its present form, so that (id, stamp) names a
    content for ever. Where `live` is False (invalidated) the case leaves every block, and its
    vectors are not read: zeros will do. `vectors` has one (n, dim) array of finite values for each
    embedder asked for, float32 or float16; None where a live case of the batch lacks its vector.
    """

    ids: Ids
    stamps: Ids
    live: Bools
    columns: Columns
    vectors: tuple[Array | None, ...]


class Changes(NamedTuple):
    """Everything that changed in a namespace after some change, read in one snapshot.

    `version` is the namespace's last change in that snapshot. `origin` names this namespace among
    all of that name: made again after it was deleted, it has another. `removed` holds the ids of
    cases that are gone, whether or not the reader ever knew them; `batches` holds an id at most
    once, by change, then id.
    """

    version: int
    origin: int
    removed: Ids
    batches: Iterator[Batch]


class Feed(Protocol):
    """Where blocks come from."""

    @property
    def uid(self) -> str:
        """The bank's identity; another one after a backup was restored over it."""
        ...

    def version(self, namespace: str) -> int | None:
        """The last change of a namespace, None where there is none of that name.

        Never goes back, and never repeats for a namespace made again.
        """
        ...

    def changes(
        self, namespace: str, after: int, roles: Sequence[Embedder]
    ) -> AbstractContextManager[Changes | None]:
        """What changed after change `after`, with the vectors of `roles`; None: no such namespace.

        `after=0` gives every case. The batches can be read inside the `with` only.
        """
        ...

    def embed_missing(self, namespace: str, roles: Sequence[Embedder]) -> int:
        """Embed the cases that lack a vector of `roles`; how many there were."""
        ...
