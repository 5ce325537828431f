"""The honest report of a training run: every figure with an interval, beside every baseline.

`build_report` gives a dict that is JSON as it stands (what is undefined is null), `render` and
`render_text` show such a dict, fresh or read back, and `write_report` leaves either the old file or
the new one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from retriever.errors import InvalidInput
from retriever.files import write_text_atomically
from retriever.learning import metrics
from retriever.learning.bootstrap import (
    Bootstrap,
    Interval,
    Statistic,
    bootstrap_by_query,
    paired_difference,
    statistics_of,
)
from retriever.learning.data.rows import Rows
from retriever.learning.report_text import HEADINGS, render, render_text
from retriever.learning.verdicts import (
    COMPARED,
    EVALUATED_ON,
    FIRST,
    MODEL,
    UNCALIBRATED,
    judge,
    verdicts,
)
from retriever.types import Calibration

FORMAT = "precedent-report-1"
LEVEL = 0.95

__all__ = ["MODEL", "UNCALIBRATED", "build_report", "render", "render_text", "write_report"]


def build_report(
    rows: Rows,
    predictions: Mapping[str, ArrayLike],
    *,
    evaluated_on: str,
    resamples: int = 1000,
    seed: int = 0,
    shared_queries: int | None = None,
    split: Any = None,
    read: Any = None,
    calibration: Calibration | Sequence[Calibration] | None = None,
    truncation: Any = None,
    training: Any = None,
    config: Any = None,
) -> dict[str, Any]:
    """Everything there is to say about probabilities (R,) of several systems for the same R rows.

    Args:
        rows: the rows that were scored.
        predictions: `model`, perhaps `model, uncalibrated`, and every baseline by its name.
        evaluated_on: `test`, `validation` or `out-of-fold`.
        resamples: how often whole queries are drawn again for the intervals.
        seed: of those draws.
        shared_queries: the leakage check, how many queries are also in training; None: not checked.
        split: digest and counts of the split, one mapping or one a fold.
        read: what reading the log found.
        calibration: of the model, or of the model of each fold.
        truncation: how many texts were cut at the maximum length.
        training: epochs, steps, seconds, best epoch.
        config: the run's configuration.

    Raises:
        InvalidInput: no `model`; an unknown `evaluated_on`; predictions of a system that are not
            one probability a row.
    """
    if evaluated_on not in EVALUATED_ON:
        raise InvalidInput(
            f"evaluated_on must be one of {list(EVALUATED_ON)}, got {evaluated_on!r}"
        )
    if MODEL not in predictions:
        raise InvalidInput(f"predictions must hold {MODEL!r}, got {sorted(predictions)}")
    statistics: dict[tuple[str, str], Statistic] = {}
    for name, probability in predictions.items():
        for metric, statistic in _named(name, rows, probability).items():
            statistics[name, metric] = statistic
    drawn = bootstrap_by_query(
        rows.group, statistics, resamples=resamples, rng=np.random.default_rng(seed)
    )
    counts = _counts(rows)
    differences = _differences(drawn, list(predictions))
    report = {
        "format": FORMAT,
        "evaluated_on": evaluated_on,
        "rows": counts,
        "verdicts": verdicts(
            evaluated_on=evaluated_on,
            shared_queries=shared_queries,
            rows=counts,
            within_query_auc=drawn.interval((MODEL, "within_query_auc"), LEVEL),
            log_loss_differences={
                name: by_metric["log_loss"]
                for name, by_metric in differences.items()
                if name in FIRST or not set(FIRST) & set(differences)
            },
        ),
        "systems": {
            name: {
                "metrics": {metric: drawn.interval((name, metric), LEVEL) for metric in HEADINGS},
                "reliability": metrics.reliability(rows.outcome, probability),
            }
            for name, probability in predictions.items()
        },
        "differences": {
            name: {
                metric: {
                    **dataclasses.asdict(interval),
                    "model_is": judge(metric, interval, drawn.queries),
                }
                for metric, interval in by_metric.items()
            }
            for name, by_metric in differences.items()
        },
        "bootstrap": {"unit": "query", "resamples": resamples, "seed": seed, "level": LEVEL},
        "leakage": {"shared_queries": shared_queries},
        "calibration": calibration,
        "split": split,
        "read": read,
        "truncation": truncation,
        "training": training,
        "config": config,
    }
    plain = _plain(report)
    assert isinstance(plain, dict)
    return plain


def write_report(report: Mapping[str, Any], path: str | Path) -> None:
    """Write the report as JSON; a crash at any moment leaves the old file or the new one."""
    text = json.dumps(_plain(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Half a surrogate pair, as broken logs hold it, becomes its JSON escape.
    write_text_atomically(Path(path), text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _named(name: str, rows: Rows, probability: ArrayLike) -> dict[str, Statistic]:
    try:
        return statistics_of(rows.outcome, probability, rows.group)
    except InvalidInput as error:
        raise InvalidInput(f"predictions of {name!r}: {error}") from error


def _counts(rows: Rows) -> dict[str, Any]:
    outcome = metrics.numbers("outcome", rows.outcome)
    query, queries = metrics.query_codes(rows.group, len(outcome))
    lowest, highest = np.full(queries, np.inf), np.full(queries, -np.inf)
    np.minimum.at(lowest, query, outcome)
    np.maximum.at(highest, query, outcome)
    positive = outcome >= metrics.POSITIVE_AT
    both = (lowest < metrics.POSITIVE_AT) & (highest >= metrics.POSITIVE_AT)
    return {
        "rows": len(rows),
        "queries": queries,
        "cases": len(np.unique(rows.case)),
        "positive_rate_at_half": float(positive.mean()),
        "classes": len(np.unique(positive)),
        "queries_with_one_outcome": int((lowest == highest).sum()),
        "queries_with_both_classes": int(both.sum()),
    }


def _differences(
    drawn: Bootstrap[tuple[str, str]], names: list[str]
) -> dict[str, dict[str, Interval]]:
    """Model minus every baseline, those of `FIRST` first."""
    others = [name for name in names if name not in (MODEL, UNCALIBRATED)]
    ordered = [n for n in FIRST if n in others] + [n for n in others if n not in FIRST]
    return {
        name: {
            metric: paired_difference(drawn, (MODEL, metric), (name, metric), LEVEL)
            for metric in COMPARED
        }
        for name in ordered
    }


def _plain(value: Any) -> Any:
    """The value as JSON types; what is not finite becomes None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [
            _plain(item)
            for item in (sorted(value) if isinstance(value, set | frozenset) else value)
        ]
    raise InvalidInput(
        f"a report holds numbers, texts, lists and mappings, got {type(value).__name__}: {value!r}"
    )
