"""Deleting cases with every row that is theirs, inside an open transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert

from memory.runs import log as run_log
from memory.schema import cases, removals
from memory.storage.rows import Place, chunks, remove_words
from memory.storage.vectors import detach


def drop_cases(
    connection: Connection, place: Place, ids: Sequence[int], run_ids: Sequence[int] = ()
) -> dict[str, int]:
    """Delete cases and the rows that are theirs; how many rows of each layer went.

    Of the runs only those named go: that a case was dropped is no reason to forget who asked.
    """
    counts = dict(run_log.purge(connection, place.namespace_id, ids, run_ids))
    counts["vectors"] = detach(connection, ids)
    counts.update(remove_words(connection, place.namespace_id, ids))
    for part in chunks(ids):
        connection.execute(delete(cases).where(cases.c.id.in_(part)))
    rows = [{"namespace_id": place.namespace_id, "seq": place.seq, "case_id": id_} for id_ in ids]
    if rows:
        connection.execute(insert(removals), rows)
    return counts
