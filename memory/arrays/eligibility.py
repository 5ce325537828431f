"""Which rows of a block a filter lets through: what `CaseFilter.condition` says, over arrays.

Kinds, outcomes and times are in the block. Tags and sources are not: they are looked up in the
database, in one read that also says whether the namespace is still as the block shows it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from sqlalchemy import select

from memory.arrays.feed import UNKNOWN_TIME, Columns
from memory.case import KINDS
from memory.errors import InvalidInput, shown
from memory.filters import CaseFilter
from memory.schema import cases
from memory.storage.namespaces import namespace_state
from memory.storage.store import Store
from memory.types import Bools, Ids


class BlockLike(Protocol):
    """What is read of a block; `memory.arrays.block.Block` has it."""

    @property
    def bank(self) -> str:
        """The bank's identity."""
        ...

    @property
    def namespace(self) -> str:
        """The tenant."""
        ...

    @property
    def version(self) -> int:
        """The namespace's last change that is in the block."""
        ...

    @property
    def ids(self) -> Ids:
        """(N,) unique among live rows."""
        ...

    @property
    def live(self) -> Bools:
        """(N,) whether a search may return the row."""
        ...

    @property
    def columns(self) -> Any:
        """`memory.arrays.feed.Columns`; whoever passes the block on may know fewer of them."""
        ...


def eligible_rows(store: Store, block: BlockLike, where: CaseFilter) -> Bools | None:
    """The live rows that fulfil a filter: (N,).

    None where the filter asks for tags or a source and the namespace changed since the block was
    read: take the newest block and ask again. Cases kept only for history are in no block, whatever
    `where.invalidated` says.

    Raises:
        InvalidInput: `where` is no `CaseFilter`, or the block is of another bank.
    """
    if not isinstance(where, CaseFilter):
        raise InvalidInput(f"where = {shown(where)}: must be a CaseFilter")
    if block.bank != store.life:
        raise InvalidInput(f"the block is of bank {block.bank}, not of this one, {store.life}")
    found = block.live & _fulfilled(block.columns, where)
    if not where.tags and where.source is None:
        return found
    ids = _looked_up(store, block, where)
    return None if ids is None else found & np.isin(block.ids, ids)


def _fulfilled(columns: Columns, where: CaseFilter) -> Bools:
    """All but tags and source, row by row; a value that is not known fulfils no comparison."""
    outcome, told = columns.outcome, columns.created_at
    found = np.ones(len(outcome), np.bool_)
    if where.kinds:
        found &= np.isin(columns.kind, [KINDS.index(kind) for kind in where.kinds])
    if where.min_outcome is not None:
        found &= outcome >= where.min_outcome
    if where.max_outcome is not None:
        found &= outcome <= where.max_outcome
    if where.has_outcome is not None:
        found &= np.isnan(outcome) != where.has_outcome
    if where.created_from is not None:
        found &= told >= where.created_from  # unknown is earlier than every time
    if where.created_to is not None:
        found &= (told < where.created_to) & (told != UNKNOWN_TIME)
    if where.valid_at is not None:
        found &= columns.valid_from <= where.valid_at
        found &= (columns.valid_to > where.valid_at) | (columns.valid_to == UNKNOWN_TIME)
    return found


def _looked_up(store: Store, block: BlockLike, where: CaseFilter) -> Ids | None:
    """Ids of the cases with the tags and the source; None if the block is no longer the newest."""
    asked = CaseFilter(tags=where.tags, source=where.source)
    with store.read() as connection:
        state = namespace_state(connection, store.keys, block.namespace)
        if (0 if state is None else state.version) != block.version:
            return None
        if state is None:
            return np.empty(0, np.int64)
        query = select(cases.c.id).where(asked.condition(store.keys, state.id))
        return np.array(list(connection.execute(query).scalars()), np.int64)
