"""Small logs for these tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retriever.learning.data.rows import Rows
from retriever.text import normalise_query


def log(rows: Sequence[tuple[str, str, float]]) -> Rows:
    """Rows from (query text, case text, outcome)."""
    queries: dict[str, int] = {}
    cases: dict[str, int] = {}
    groups: dict[str, int] = {}
    query, case, group = [], [], []
    for query_text, case_text, _ in rows:
        query.append(queries.setdefault(query_text, len(queries)))
        case.append(cases.setdefault(case_text, len(cases)))
        group.append(groups.setdefault(normalise_query(query_text), len(groups)))
    return Rows(
        list(queries),
        list(cases),
        np.array(query, np.int64),
        np.array(case, np.int64),
        np.array(group, np.int64),
        np.array(group, np.int64),
        np.array([outcome for *_, outcome in rows], np.float32),
        np.full(len(rows), np.nan, np.float32),
        np.zeros(len(rows), np.bool_),
    )


def numbered(group: Sequence[int], outcome: Sequence[float]) -> Rows:
    """Rows with given query numbers and outcomes; every row has a case of its own."""
    return log(
        [
            (f"query {g}", f"case {i}", y)
            for i, (g, y) in enumerate(zip(group, outcome, strict=True))
        ]
    )
