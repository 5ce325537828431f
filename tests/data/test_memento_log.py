"""The log that Memento ships, read as it is: the figures that every report of it rests on."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from retriever.learning.data.outcome_log import read_outcome_log
from retriever.learning.data.split import check_disjoint, grouped_folds, grouped_split
from retriever.text import normalise_query

SHARED = Path(
    os.environ.get("PRECEDENT_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data"
)
LOG = SHARED / "memento" / "training_data.jsonl"

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not LOG.exists(), reason=f"no Memento log at {LOG}"),
]


@pytest.fixture(scope="module")
def log():
    return read_outcome_log(str(LOG))


def test_every_line_is_read_and_no_query_has_mixed_labels(log):
    report = log.report
    assert (report.rows, report.memento_rows, report.skipped) == (5600, 5600, 0)
    assert (report.queries, report.constant_queries) == (699, 699)
    assert report.runs == 700  # one query was run twice
    assert round(report.positive_rate, 4) == 0.2343
    assert not report.has_propensities


def test_duplicates_and_self_cases_are_those_of_a_plain_count(log):
    plain = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
    kinds = Counter(json.dumps(row, sort_keys=True) for row in plain)
    selves = sum(normalise_query(row["query"]) == normalise_query(row["case"]) for row in plain)
    assert log.report.duplicate_rows == sum(kinds.values()) - len(kinds) == 17
    assert log.report.self_case_rows == selves == 135
    assert len(log.rows(use_plan=True, duplicates="drop")) == 5583


def test_its_splits_are_disjoint_and_keep_the_base_rate(log):
    rows = log.rows(use_plan=True)
    split = grouped_split(rows, validation_fraction=0.1, test_fraction=0.1, seed=0)
    check_disjoint(split, rows)
    for split in grouped_folds(rows, folds=5, validation_fraction=0.1, seed=0):
        check_disjoint(split, rows)
        assert abs(np.mean(rows.outcome[split.test]) - 0.2343) < 0.02
