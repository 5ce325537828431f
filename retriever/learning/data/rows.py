"""An outcome log as arrays: every distinct text once, and rows that point at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever.text import normalise_query
from retriever.types import Floats, Ids


@dataclass(frozen=True)
class Rows:
    """R rows over U distinct query texts and C distinct case texts.

    `query` (R,) indexes `query_texts`, `case` (R,) indexes `case_texts`; `group` (R,) numbers the
    normalised queries from 0 in order of first appearance, and is what every split and bootstrap
    goes by; `run` (R,) numbers the runs. `outcome` (R,) in [0, 1]. `propensity` (R,) is NaN where
    it was not logged. `self_case` (R,) marks rows whose case is the query itself.
    """

    query_texts: list[str]
    case_texts: list[str]
    query: Ids
    case: Ids
    group: Ids
    run: Ids
    outcome: Floats
    propensity: Floats
    self_case: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.query)

    def take(self, keep: Ids | NDArray[np.bool_]) -> Rows:
        """The rows selected by an index or a mask; texts and numbering stay as they are."""
        return Rows(
            self.query_texts,
            self.case_texts,
            self.query[keep],
            self.case[keep],
            self.group[keep],
            self.run[keep],
            self.outcome[keep],
            self.propensity[keep],
            self.self_case[keep],
        )


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both logs over common tables of texts and queries; `first`'s rows come first.

    Needed where one log is trained on and another one tested: a case has to be the same case in
    both.
    """
    queries, second_query = _merged(first.query_texts, second.query_texts)
    cases, second_case = _merged(first.case_texts, second.case_texts)
    query = np.concatenate([first.query, second_query[second.query]])
    return Rows(
        query_texts=queries,
        case_texts=cases,
        query=query,
        case=np.concatenate([first.case, second_case[second.case]]),
        group=groups_of(queries, query),
        run=np.concatenate([first.run, second.run + (first.run.max() + 1 if len(first) else 0)]),
        outcome=np.concatenate([first.outcome, second.outcome]),
        propensity=np.concatenate([first.propensity, second.propensity]),
        self_case=np.concatenate([first.self_case, second.self_case]),
    )


def groups_of(query_texts: list[str], query: Ids) -> Ids:
    """Number of each row's normalised query, from 0 in order of first appearance: (R,)."""
    of_text: dict[str, int] = {}
    normal = np.array(
        [of_text.setdefault(normalise_query(text), len(of_text)) for text in query_texts],
        dtype=np.int64,
    )
    by_text = normal[query] if len(query) else np.empty(0, dtype=np.int64)
    _, first_row, inverse = np.unique(by_text, return_index=True, return_inverse=True)
    rank = np.empty(len(first_row), dtype=np.int64)
    rank[np.argsort(first_row, kind="stable")] = np.arange(len(first_row))
    return np.asarray(rank[inverse], dtype=np.int64)


def _merged(first: list[str], second: list[str]) -> tuple[list[str], Ids]:
    """The union of two tables (`first`'s places kept), and where `second`'s texts went."""
    place = {text: index for index, text in enumerate(first)}
    moved = np.array([place.setdefault(text, len(place)) for text in second], dtype=np.int64)
    return list(place), moved
