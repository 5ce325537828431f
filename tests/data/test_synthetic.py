"""The planted world: its log is what it says it is, and its truth is in it."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from retriever.errors import ConfigError, InvalidInput
from retriever.learning.config import PlantedConfig
from retriever.learning.data.outcome_log import read_outcome_log
from retriever.learning.logging_policy import sample_without_replacement
from retriever.learning.synthetic import PlantedWorld, run_success
from retriever.text import normalise_query


def world(**options) -> PlantedWorld:
    return PlantedWorld(PlantedConfig(**options))


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_the_log_has_the_rows_asked_for_and_passes_every_check(tmp_path, rows):
    path = tmp_path / "new folder" / "log.jsonl"
    written = world(rows=rows).write_log(path)

    report = read_outcome_log(str(path)).report

    assert written == report.rows == rows
    assert report.skipped == report.memento_rows == report.self_case_rows == 0
    assert report.rows_with_plan == rows
    assert report.has_propensities
    assert list(path.parent.iterdir()) == [path]


def test_one_seed_gives_one_file_and_another_seed_another(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        world(rows=200, seed=seed).write_log(tmp_path / name)
        world(rows=200, seed=seed).write_cases(tmp_path / f"cases-{name}")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "cases-a").read_bytes() == (tmp_path / "cases-b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    assert (tmp_path / "cases-a").read_bytes() != (tmp_path / "cases-c").read_bytes()


def test_a_longer_log_begins_with_the_shorter_one():
    short = list(world(rows=203).lines())
    longer = list(itertools.islice(world(rows=100_000).lines(), 203))
    assert short == longer


def test_rows_are_the_lines_of_the_file(tmp_path):
    made = world(rows=50)
    made.write_log(tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(made.rows())
    assert lines == [line.rstrip("\n") for line in made.lines()]


def test_a_run_shows_distinct_cases_in_the_order_of_their_ranks_and_has_one_outcome():
    runs = itertools.groupby(world(rows=800).rows(), key=lambda row: row["run_id"])
    for _, group in runs:
        rows = list(group)
        assert [row["rank"] for row in rows] == list(range(1, 9))
        assert len({row["case_id"] for row in rows}) == 8
        assert len({(row["query"], row["outcome"], row["time"]) for row in rows}) == 1


def test_cases_are_bank_lines_with_plans_in_mementos_form(tmp_path):
    made = world(rows=10, cases=50)
    assert made.write_cases(tmp_path / "cases.jsonl") == 50
    cases = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert [set(case) for case in cases] == [{"id", "query", "plan", "outcome"}] * 50
    assert len({case["id"] for case in cases}) == 50
    assert {case["outcome"] for case in cases} == {0, 1}
    for case, planted in zip(cases, made.cases, strict=True):
        steps = json.loads(case["plan"])["plan"]
        assert [step["id"] for step in steps] == list(range(1, len(steps) + 1))
        assert all(step["description"].strip() for step in steps)
        assert (case["id"], case["query"], case["plan"]) == (
            planted.id,
            planted.query,
            planted.plan,
        )


def test_a_row_of_the_log_holds_its_case_as_the_bank_does():
    made = world(rows=200)
    by_id = {case.id: case for case in made.cases}
    for row in made.rows():
        case = by_id[row["case_id"]]
        assert (row["case"], row["plan"], row["case_outcome"]) == (
            case.query,
            case.plan,
            case.outcome,
        )


def test_no_two_questions_are_the_same_so_no_case_is_the_query_itself():
    made = world(rows=16_000, cases=2000, families=1)
    queries = [case.query for case in made.cases]
    queries += [made.query(index).words for index in range(made.query_count + 500)]
    assert len({normalise_query(query) for query in queries}) == len(queries)


@pytest.mark.parametrize("rule", ["mean", "noisy_or", "best"])
def test_successes_are_a_fifth_to_a_half_and_both_occur_within_queries(rule):
    rows = list(world(rows=4000, outcome_rule=rule).rows())
    assert 0.2 < np.mean([row["outcome"] for row in rows]) < 0.5
    by_query: dict[str, set[int]] = {}
    for row in rows:
        by_query.setdefault(row["query"], set()).add(row["outcome"])
    assert sum(len(outcomes) == 2 for outcomes in by_query.values()) > 0.15 * len(by_query)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_recorded_propensities_are_the_frequencies_of_the_first_and_second_rank(temperature):
    runs = 20_000
    made = world(
        rows=2 * runs,
        cases=5,
        cases_per_run=2,
        runs_per_query=runs,
        policy_temperature=temperature,
        seed=1,
    )
    first: Counter[str] = Counter()
    second: Counter[tuple[str, str]] = Counter()
    recorded: dict[tuple[str, ...], float] = {}
    rows = made.rows()
    for one, two in zip(rows, rows, strict=True):
        first[one["case_id"]] += 1
        second[one["case_id"], two["case_id"]] += 1
        recorded[(one["case_id"],)] = one["propensity"]
        recorded[one["case_id"], two["case_id"]] = two["propensity"]

    assert len({row for row in recorded.values()}) > 3
    assert sum(recorded[(case,)] for case in first) == pytest.approx(1, abs=1e-6)
    for case, count in first.items():
        chance = recorded[(case,)]
        assert abs(count / runs - chance) < 4.5 * np.sqrt(chance * (1 - chance) / runs)
        after = [pair for pair in second if pair[0] == case]
        whole = sum(recorded[pair] for pair in after)
        assert whole == pytest.approx(1, abs=1e-6) if len(after) == 4 else whole < 1
        for pair in after:
            chance = recorded[pair]
            allowed = 4.5 * np.sqrt(chance * (1 - chance) / count) + 1 / count
            assert abs(second[pair] / count - chance) < allowed


def test_the_policy_can_show_every_case_and_stays_finite_at_any_temperature():
    rng = np.random.default_rng(0)
    scores = np.array([0.0, 50.0, -3.0, 50.0])
    for temperature in (1e-6, 1.0, 1e6):
        taken, chance = sample_without_replacement(scores, 4, temperature, rng)
        assert sorted(taken.tolist()) == [0, 1, 2, 3]
        assert ((chance > 0) & (chance <= 1)).all()
        assert chance[-1] == pytest.approx(1)
    with pytest.raises(InvalidInput, match="between 1 and 4"):
        sample_without_replacement(scores, 5, 1.0, rng)
    with pytest.raises(InvalidInput, match="temperature must be above 0"):
        sample_without_replacement(scores, 1, 0.0, rng)


def test_the_recorded_score_is_what_the_propensity_follows_from():
    made = world(rows=5, cases=5, cases_per_run=5, policy_temperature=0.7)
    rows = list(made.rows())
    weights = np.exp(np.array([row["score"] for row in rows]) / 0.7)
    expected = weights / np.cumsum(weights[::-1])[::-1]
    assert [row["propensity"] for row in rows] == pytest.approx(expected.tolist(), rel=1e-6)


def test_the_truth_is_the_sum_of_its_parts():
    made = world(rows=100)
    cases = np.array([0, 7, 399])
    logit = made.logit(5, cases)
    parts = made.intercept - made.difficulty([5])[0] + made.usefulness[cases] + made.fit(5, cases)
    assert logit == pytest.approx(parts)
    assert made.success_probability(5, cases) == pytest.approx(1 / (1 + np.exp(-logit)))
    assert made.run_success_probability(5, [7]) == pytest.approx(
        made.success_probability(5, [7])[0]
    )


def test_a_run_follows_from_its_cases_by_the_rule():
    logits = np.array([-1.0, 0.5, 2.0])
    alone = 1 / (1 + np.exp(-logits))
    assert run_success("mean", logits) == pytest.approx(1 / (1 + np.exp(-logits.mean())))
    assert run_success("noisy_or", logits) == pytest.approx(1 - np.prod(1 - alone))
    assert run_success("best", logits) == pytest.approx(alone.max())
    with pytest.raises(InvalidInput, match="got 'worst'"):
        run_success("worst", logits)


def test_runs_succeed_as_often_as_their_truth_says():
    made = world(rows=16_000, seed=2)
    expected, got = [], []
    for _, group in itertools.groupby(made.rows(), key=lambda row: row["run_id"]):
        rows = list(group)
        index = int(rows[0]["run_id"][1:8])
        cases = [int(row["case_id"].removeprefix("case-")) for row in rows]
        expected.append(made.run_success_probability(index, cases))
        got.append(rows[0]["outcome"])
    chance, outcome = np.array(expected), np.array(got)
    spread = np.sqrt((chance * (1 - chance)).sum()) / len(chance)
    assert abs(chance.mean() - outcome.mean()) < 4 * spread
    # And not on average only: the likely ones win more.
    assert outcome[chance > 0.5].mean() - outcome[chance < 0.25].mean() > 0.3


def test_words_show_usefulness_fit_and_difficulty():
    made = world(rows=10, noise=0.0)
    careful = [i for i, case in enumerate(made.cases) if "Verify" in case.plan]
    guessing = [i for i, case in enumerate(made.cases) if "Guess" in case.plan]
    assert made.usefulness[careful].mean() - made.usefulness[guessing].mean() > 1
    hard, easy = [], []
    for index in range(300):
        query = made.query(index)
        if "little-known" in query.words:
            hard.append(query.difficulty)
        elif "world-famous" in query.words:
            easy.append(query.difficulty)
    assert np.mean(hard) - np.mean(easy) > 1
    assert made.fit(0, range(400)).max() - made.fit(0, range(400)).min() > 1


def test_a_bag_of_words_learns_something_and_the_truth_much_more():
    made = world(rows=4000, seed=0)
    rows = list(made.rows())
    outcome = np.array([row["outcome"] for row in rows])
    query = np.array([int(row["run_id"][1:8]) for row in rows])
    case = np.array([int(row["case_id"].removeprefix("case-")) for row in rows])
    texts = TfidfVectorizer().fit_transform(
        [f"{row['query']} {row['case']} {row['plan']}" for row in rows]
    )

    model = LogisticRegression(max_iter=500)
    learned = cross_val_predict(
        model, texts, outcome, groups=query, cv=GroupKFold(5), method="predict_proba"
    )[:, 1]
    runs = range(0, len(rows), 8)
    truth = [made.run_success_probability(int(query[i]), case[i : i + 8]) for i in runs]

    words = roc_auc_score(outcome, learned)
    assert words > 0.6
    assert roc_auc_score(outcome[::8], truth) > words + 0.08


def test_a_world_beyond_its_words_is_refused():
    with pytest.raises(ConfigError, match="families = 169: at most 168"):
        world(families=169)
    with pytest.raises(ConfigError, match="names there are"):
        world(rows=10_000_000, cases_per_run=1, runs_per_query=1)
    with pytest.raises(InvalidInput, match="got -1"):
        world(rows=1).query(-1)
    assert world(rows=3, families=168, cases=1, cases_per_run=1).write_cases


def test_progress_reaches_the_end(tmp_path):
    calls = []
    world(rows=2500).write_log(tmp_path / "a", lambda done, total: calls.append((done, total)))
    assert calls == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_a_log_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("old")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world(rows=2000).write_log(path, stop)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
