"""From the table of a log to `Rows`: each distinct text rendered once, the rest as arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from retriever.learning.data.rows import Rows
from retriever.text import case_text, normalise_query, query_text
from retriever.types import Ids


def rows_of(pieces: Iterable[pa.Table], *, use_plan: bool) -> Rows:
    """The rows of a log: R rows over the distinct texts, which `retriever.text` renders."""
    texts = _Texts(use_plan)
    parts: dict[str, list[np.ndarray]] = {
        name: [] for name in ("query", "case", "self_case", "run", "outcome", "propensity")
    }
    for piece in pieces:
        query, case, self_case = texts.codes(piece)
        parts["query"].append(query)
        parts["case"].append(case)
        parts["self_case"].append(self_case)
        parts["run"].append(piece["run"].to_numpy().astype(np.int64))
        parts["outcome"].append(piece["outcome"].to_numpy().astype(np.float32))
        # A null becomes NaN.
        parts["propensity"].append(piece["propensity"].to_numpy().astype(np.float32))
    whole = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return Rows(
        query_texts=texts.query_texts,
        case_texts=texts.case_texts,
        group=np.asarray(texts.group_of_query, dtype=np.int64)[whole["query"]],
        **whole,
    )


class _Texts:
    """Numbers queries, cases and normalised queries in the order they first occur."""

    def __init__(self, use_plan: bool) -> None:
        self.query_texts: list[str] = []
        self.case_texts: list[str] = []
        self.group_of_query: list[int] = []
        self._use_plan = use_plan
        self._query: dict[str, int] = {}
        self._case: dict[str, int] = {}
        self._group: dict[str, int] = {}
        self._case_of: dict[tuple[str, str | None], tuple[int, str]] = {}

    def codes(self, piece: pa.Table) -> tuple[Ids, Ids, np.ndarray]:
        """(query, case, self_case) of n rows, each (n,)."""
        words, local = _coded(piece["query"])
        numbers = np.asarray([self._number_query(word) for word in words], dtype=np.int64)
        normals = [normalise_query(word) for word in words]

        cases, case_local = _coded(piece["case"])
        plans: list[str] = []
        plan_local = np.full(len(local), -1, dtype=np.int64)
        if self._use_plan:
            plans, plan_local = _coded(piece["plan"])
        # One number per (case, plan) of this piece; -1, no plan, comes first.
        keys, pair = np.unique(case_local * (len(plans) + 1) + plan_local + 1, return_inverse=True)
        found = []
        for key in keys.tolist():
            c, p = divmod(key, len(plans) + 1)
            found.append(self._number_case(cases[c], plans[p - 1] if p else None))
        case = np.asarray([number for number, _ in found], dtype=np.int64)[pair]

        # Few distinct (query, case) pairs or many: normal forms are compared as numbers.
        index = {normal: i for i, normal in enumerate(normals)}
        query_normal = np.asarray([index[normal] for normal in normals], dtype=np.int64)[local]
        case_normal = np.asarray([index.get(normal, -1) for _, normal in found])[pair]
        return numbers[local], case, query_normal == case_normal

    def _number_query(self, query: str) -> int:
        number = self._query.get(query)
        if number is None:
            number = self._query[query] = len(self.query_texts)
            self.query_texts.append(query_text(query))
            normal = normalise_query(query)
            self.group_of_query.append(self._group.setdefault(normal, len(self._group)))
        return number

    def _number_case(self, case: str, plan: str | None) -> tuple[int, str]:
        """The number of the case's text, and its normalised query."""
        known = self._case_of.get((case, plan))
        if known is None:
            text = case_text(case, plan)
            number = self._case.setdefault(text, len(self.case_texts))
            if number == len(self.case_texts):
                self.case_texts.append(text)
            known = self._case_of[case, plan] = (number, normalise_query(case))
        return known


def _coded(column: pa.ChunkedArray) -> tuple[list[str], Ids]:
    """(distinct values, the index of each row's value or -1 for null)."""
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    indices = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return coded.dictionary.to_pylist(), indices
