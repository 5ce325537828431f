"""What a report's figures say, and what they do not, in plain sentences.

A null result is said as plainly as a good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retriever.learning.bootstrap import Interval

MODEL = "model"
UNCALIBRATED = "model, uncalibrated"
#: The baselines that are compared first and named in the sentences.
FIRST = ("base_rate", "bag_of_words")
#: The figures that are compared, model minus baseline.
COMPARED = ("log_loss", "auc", "within_query_auc")

#: Where figures can come from, and what to know about it.
EVALUATED_ON: dict[str, str] = {
    "test": "The figures are on test queries that neither training nor any choice has met.",
    "validation": (
        "The figures are on validation rows, which also chose the epoch: they are optimistic. "
        "Set data.test_fraction above 0, or give data.test, for an honest test."
    ),
    "out-of-fold": ("Every row was scored by a model trained without its query (out-of-fold)."),
}

#: Below this many queries a percentile interval is too rough to judge by.
JUDGED_FROM = 10

SCORE_MEANING = (
    "A score is the estimated chance that a run succeeds given that the case was shown, under this "
    "log's policy; it is not the case's own contribution."
)

#: Sign of a difference (model minus baseline) that is good.
GOOD_SIGN: dict[str, int] = {"log_loss": -1, "auc": 1, "within_query_auc": 1}
BETTER, WORSE, NO_DIFFERENCE, NOT_JUDGED = "better", "worse", "no difference shown", "not judged"


def judge(metric: str, difference: Interval, queries: int) -> str:
    """`better` or `worse` where the interval of model minus baseline excludes 0.

    `not judged` where there is no interval, or fewer than `JUDGED_FROM` queries.
    """
    if queries < JUDGED_FROM or not difference.low <= difference.high:
        return NOT_JUDGED
    if difference.low <= 0.0 <= difference.high:
        return NO_DIFFERENCE
    return BETTER if (difference.low > 0) == (GOOD_SIGN[metric] > 0) else WORSE


def verdicts(
    *,
    evaluated_on: str,
    shared_queries: int | None,
    rows: Mapping[str, Any],
    within_query_auc: Interval,
    log_loss_differences: Mapping[str, Interval],
) -> list[str]:
    """The sentences of a report, the most important first.

    `rows` has the counts of the report's section of that name; `log_loss_differences` is model
    minus baseline for the baselines to be named.
    """
    queries = int(rows["queries"])
    said = []
    if shared_queries:
        said.append(
            f"Leakage: {shared_queries} queries are both here and in training; the figures are not "
            "valid."
        )
    said.append(SCORE_MEANING)
    said.append(_within_query(rows, within_query_auc))
    if not log_loss_differences:
        said.append("No baseline was run: nothing here says whether the model beats guessing.")
    for name, difference in log_loss_differences.items():
        said.append(_comparison(name.replace("_", " "), difference, queries))
    if rows["classes"] == 1:
        said.append("All rows have the same class: AUC is undefined, and nothing was told apart.")
    if JUDGED_FROM <= queries < 2 * JUDGED_FROM:
        said.append(f"Only {queries} queries: the intervals are rough.")
    said.append(EVALUATED_ON[evaluated_on])
    return said


def _within_query(rows: Mapping[str, Any], within_query_auc: Interval) -> str:
    queries, mixed = rows["queries"], rows["queries_with_both_classes"]
    if rows["queries_with_one_outcome"] == queries:
        return (
            f"Outcomes are constant within every query ({queries} of {queries}): nothing within a "
            "query was measured. The figures show how well easy queries are told from hard ones, "
            "not whether the cases of one query are ranked rightly."
        )
    if mixed == 0:
        return (
            "Outcomes differ within queries but never lie on both sides of 0.5: the AUC within a "
            "query is not available."
        )
    return (
        f"{mixed} of {queries} queries have both outcomes; within them the model's mean AUC is "
        f"{within_query_auc.estimate:.3f}{_span(within_query_auc, '.3f')}."
    )


def _comparison(name: str, difference: Interval, queries: int) -> str:
    figures = f"{difference.estimate:+.4f} nats a row{_span(difference, '+.4f')}"
    verdict = judge("log_loss", difference, queries)
    if verdict == NOT_JUDGED:
        return (
            f"Model against {name}, log-loss: not judged, because there are too few queries "
            f"({queries}); model minus {name}: {figures}."
        )
    if verdict == NO_DIFFERENCE:
        return (
            f"Model against {name}, log-loss: no difference shown; model minus {name}: {figures}."
        )
    return f"Model against {name}, log-loss: {verdict}; model minus {name}: {figures}."


def _span(interval: Interval, form: str) -> str:
    if not interval.low <= interval.high:
        return ""
    return f" (95 % interval {interval.low:{form}} to {interval.high:{form}})"
