"""Small outcome logs as arrays, for tests that need rows and no file."""

from __future__ import annotations

import numpy as np

from retriever.learning.data.rows import Rows, groups_of


def make_rows(pairs: list[tuple[str, str, float]]) -> Rows:
    """Rows from (query text, case text, outcome); one run a query."""
    queries = list(dict.fromkeys(query for query, _, _ in pairs))
    cases = list(dict.fromkeys(case for _, case, _ in pairs))
    query = np.array([queries.index(q) for q, _, _ in pairs], dtype=np.int64)
    group = groups_of(queries, query)
    return Rows(
        query_texts=queries,
        case_texts=cases,
        query=query,
        case=np.array([cases.index(c) for _, c, _ in pairs], dtype=np.int64),
        group=group,
        run=group.copy(),
        outcome=np.array([o for _, _, o in pairs], dtype=np.float32),
        propensity=np.full(len(pairs), np.nan, dtype=np.float32),
        self_case=np.array([q == c for q, c, _ in pairs], dtype=np.bool_),
    )


def random_rows(seed: int, *, queries: int = 12, cases: int = 9, most: int = 7) -> Rows:
    """Random pairs: 1 to `most` rows a query, texts of uneven length."""
    rng = np.random.default_rng(seed)
    words = ["what", "who", "when", "city", "team", "film", "plan", "find", "list", "check"]
    case_texts = [" ".join(rng.choice(words, rng.integers(1, 30))) + f" {i}" for i in range(cases)]
    pairs = []
    for number in range(queries):
        text = " ".join(rng.choice(words, rng.integers(1, 8))) + f" {number}"
        for _ in range(rng.integers(1, most + 1)):
            pairs.append((text, str(rng.choice(case_texts)), float(rng.integers(0, 2))))
    order = rng.permutation(len(pairs))
    return make_rows([pairs[i] for i in order])
