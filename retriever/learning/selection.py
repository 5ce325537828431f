"""Which rows a run learns from, chooses by and is judged on."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retriever.errors import InvalidInput
from retriever.learning.config import TrainConfig
from retriever.learning.data.outcome_log import OutcomeLog, read_outcome_log
from retriever.learning.data.rows import Rows, joined
from retriever.learning.data.split import Split, grouped_split, shared_queries
from retriever.learning.synthetic import PlantedWorld
from retriever.progress import byte_progress
from retriever.types import Ids

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The rows of a run: of the log, and after them of the separate test log if there is one."""

    log: OutcomeLog
    rows: Rows
    separate_test: Ids | None  # row numbers of the test log


def read_data(config: TrainConfig, output: Path) -> Data:
    """Read the training log (making a planted one first if so configured), and the test log.

    Raises:
        InvalidInput: the test log shares a query with the training log.
    """
    settings = config.data
    source = settings.train
    if source is None:
        assert settings.planted is not None
        source = str(output / "planted.jsonl")
        world = PlantedWorld(settings.planted)
        world.write_log(Path(source))
        world.write_cases(output / "planted_cases.jsonl")
    cache = output / "cache"
    with byte_progress("reading the log") as progress:
        read = read_outcome_log(
            source, on_bad_line=settings.on_bad_line, cache_dir=cache, progress=progress
        )
    rows = read.rows(settings.use_plan, duplicates=settings.duplicates)
    log.info(
        "%s: %d rows, %d queries, %d cases; %d duplicate rows, %d rows whose case is the query",
        source,
        len(read),
        read.report.queries,
        read.report.cases,
        read.report.duplicate_rows,
        read.report.self_case_rows,
    )
    if settings.test is None:
        return Data(read, rows, None)
    if settings.folds:
        raise InvalidInput(
            "data.test and data.folds exclude each other: folds test on their own rows"
        )
    test = read_outcome_log(settings.test, on_bad_line=settings.on_bad_line, cache_dir=cache)
    test_rows = test.rows(settings.use_plan)
    both = shared_queries(rows, test_rows)
    if both:
        raise InvalidInput(
            f"data.test = {settings.test}: {len(both)} of its queries are also in the training "
            f"log, the first is {both[0]!r}; take them out of one of the two, or let "
            "data.test_fraction make the split"
        )
    together = joined(rows, test_rows)
    return Data(read, together, np.arange(len(rows), len(together)))


def split_of(config: TrainConfig, data: Data) -> Split:
    """The run's split by query; with a separate test log, that log is the test side."""
    settings = config.data
    if data.separate_test is None:
        return grouped_split(
            data.rows,
            validation_fraction=settings.validation_fraction,
            test_fraction=settings.test_fraction,
            seed=config.seed,
        )
    own = np.arange(len(data.rows) - len(data.separate_test))
    split = grouped_split(
        data.rows.take(own),
        validation_fraction=settings.validation_fraction,
        test_fraction=0.0,
        seed=config.seed,
    )
    return dataclasses.replace(split, test=data.separate_test)


def training_rows(config: TrainConfig, rows: Rows, split: Split) -> Rows:
    """The training rows, without those whose case is the query itself unless they are wanted."""
    chosen = split.train
    if config.data.drop_self_cases:
        chosen = chosen[~rows.self_case[chosen]]
    if not len(chosen):
        raise InvalidInput(
            "no training row is left: every case is its own query; set data.drop_self_cases=false"
        )
    return rows.take(chosen)


def judged_rows(split: Split) -> tuple[Ids, str]:
    """The row numbers that the report is about, and what they are: `test`, else `validation`."""
    if len(split.test):
        return split.test, "test"
    return split.validation, "validation"
