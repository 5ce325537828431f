"""Runs and their outcomes: logged once, scored once, exported as a log that can be learned from."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import select, update

from memory import (
    AlreadyScored,
    CaseBank,
    IdempotencyConflict,
    InvalidInput,
    NewCase,
    NotFound,
    Shown,
)
from memory.runs import log as runs
from memory.schema import cases, exports, run_texts
from memory.schema import runs as run_rows
from memory.sinks import Gone
from memory.storage.namespaces import namespace_state


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location) as opened:
        yield opened


@pytest.fixture
def small(tmp_path):
    """A bank in a file, for what does not depend on the engine."""
    with CaseBank.open(tmp_path / "bank.db") as opened:
        yield opened


def version_of(bank):
    with bank._store.read() as connection:
        return namespace_state(connection, bank._store.keys, "default").version


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def gone_of(*going, strings=()):
    """What a purge would tell: these cases, or anything that says one of the strings."""
    said = {case.query for case in going}
    return Gone(
        "default",
        going,
        strings,
        lambda text: text in said or any(string in text for string in strings),
    )


def invalidate(bank, id_):
    with bank._store.write() as connection:
        connection.execute(update(cases).where(cases.c.id == id_).values(invalidated_at=1))


def test_a_run_comes_back_as_it_was_logged(bank):
    one, two = bank.add([NewCase("one"), NewCase("two")])
    given = [Shown(two, 2, -3.25, 0.125), Shown(one, 1, 0.1)]
    name = bank.runs.log(
        "what now? 🙂", given, policy="softmax", run_id="r 1", metadata={"seed": 7}
    )
    assert name == "r 1"
    run = bank.runs.get("r 1")
    assert (run.query, run.policy, run.metadata) == ("what now? 🙂", "softmax", {"seed": 7})
    assert run.shown == (Shown(one, 1, 0.1), Shown(two, 2, -3.25, 0.125)), "by rank"
    assert (run.outcome, run.outcome_at, run.namespace) == (None, None, "default")
    bank.runs.record_outcome("r 1", 0.1)
    scored = bank.runs.get("r 1")
    assert scored.outcome == 0.1
    assert scored.outcome_at >= scored.created_at


def test_a_run_leaves_the_version_of_the_namespace_alone(small):
    (one,) = small.add([NewCase("one")])
    before = version_of(small)
    small.runs.log("q", [Shown(one, 1)], policy="exact", run_id="r")
    small.runs.record_outcome("r", 1)
    assert version_of(small) == before


def test_runs_get_names_of_their_own_and_may_show_nothing(small):
    names = {small.runs.log("q", [], policy="exact", namespace="new") for _ in range(3)}
    assert len(names) == 3
    assert small.runs.count("new") == 3
    assert small.runs.count() == 0
    assert small.runs.get(names.pop(), namespace="new").shown == ()


def test_numpys_numbers_are_numbers(small):
    (one,) = small.add([NewCase("one")])
    item = Shown(np.int64(one), np.int32(1), np.float32(0.5), np.float64(0.25))
    name = small.runs.log("q", [item], policy="exact")
    assert small.runs.get(name).shown == (Shown(one, 1, 0.5, 0.25),)
    small.runs.record_outcome(name, np.float32(1.0))
    assert small.runs.get(name).outcome == 1.0


def test_logging_the_same_run_again_changes_nothing_and_another_under_its_id_is_refused(bank):
    one, two = bank.add([NewCase("one"), NewCase("two")])
    given = [Shown(one, 1, 0.5, 0.5), Shown(two, 2)]

    def log(query="q", shown=given, policy="exact", metadata=None):
        return bank.runs.log(query, shown, policy=policy, run_id="r", metadata=metadata)

    log()
    bank.runs.record_outcome("r", 1)
    assert log() == log(shown=given[::-1]) == "r"
    for other in (
        {"query": "Q"},
        {"shown": given[:1]},
        {"shown": [given[0]._replace(rank=3), given[1]]},
        {"shown": [given[0]._replace(score=0.25), given[1]]},
        {"policy": "cosine"},
        {"metadata": {"seed": 1}},
    ):
        with pytest.raises(IdempotencyConflict, match="'r' was logged with other content"):
            log(**other)
    assert bank.runs.count() == 1
    assert bank.runs.get("r").outcome == 1.0
    bank.add([NewCase("elsewhere")], namespace="other")
    bank.runs.log("Q", [], policy="exact", run_id="r", namespace="other")
    assert bank.runs.get("r", namespace="other").query == "Q"


def test_a_run_is_scored_once(bank):
    bank.runs.log("q", [], policy="exact", run_id="r")
    bank.runs.record_outcome("r", 0.5)
    bank.runs.record_outcome("r", 0.5)
    with pytest.raises(AlreadyScored, match=r"outcome 0\.5, now 1 is given"):
        bank.runs.record_outcome("r", 1)
    assert bank.runs.get("r").outcome == 0.5
    for call in (bank.runs.get, lambda name: bank.runs.record_outcome(name, 1)):
        with pytest.raises(NotFound, match="no run 'nobody'"):
            call("nobody")
    with pytest.raises(NotFound, match="namespace 'other' has no run 'r'"):
        bank.runs.record_outcome("r", 1, namespace="other")


def test_one_of_many_threads_scores_a_run(small):
    small.runs.log("q", [], policy="exact", run_id="r")
    refused = []

    def score(value):
        try:
            small.runs.record_outcome("r", value)
        except AlreadyScored:
            refused.append(value)

    threads = [threading.Thread(target=score, args=(i / 8,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert small.runs.get("r").outcome not in refused


def test_only_live_cases_of_the_namespace_can_be_shown(small):
    (one,) = small.add([NewCase("one")])
    (old,) = small.add([NewCase("old")])
    (other,) = small.add([NewCase("other")], namespace="other")
    invalidate(small, old)
    for id_ in (other, old, 77, 0, -1, 2**64):
        with pytest.raises(NotFound, match=f"no live case with id {id_}; the run was not logged"):
            small.runs.log("q", [Shown(one, 1), Shown(id_, 2)], policy="exact")
    with pytest.raises(NotFound, match="nowhere"):
        small.runs.log("q", [Shown(one, 1)], policy="exact", namespace="nowhere")
    assert small.runs.count() == 0
    assert small.namespaces() == ["default", "other"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([Shown(1, 0)], "ranks count from 1"),
        ([Shown(1, 2**31)], "ranks count from 1"),
        ([Shown(1, 1.5)], "rank = 1.5: must be an integer"),
        ([Shown(True, 1)], "case_id = True: must be an integer"),
        ([Shown("1", 1)], "case_id = '1': must be an integer"),
        ([Shown(1, 1), Shown(2, 1)], "rank 1 twice"),
        ([Shown(1, 1), Shown(1, 2)], "case_id 1 twice"),
        ([Shown(1, 1, float("nan"))], "score = nan: must be finite"),
        ([Shown(1, 1, "high")], "score = 'high': must be a number"),
        ([Shown(1, 1, None, 0.0)], "above 0 and at most 1"),
        ([Shown(1, 1, None, 1.5)], "above 0 and at most 1"),
        ([Shown(1, 1, None, float("inf"))], "must be finite"),
        ([Shown(1, 1), (2, 2)], r"shown\[1\] is \(2, 2\)"),
        (Shown(1, 1), "a list of Shown"),
        (None, "a list of Shown"),
    ],
)
def test_what_cannot_have_been_shown_is_refused(small, given, message):
    small.add([NewCase("one"), NewCase("two")])
    with pytest.raises(InvalidInput, match=message):
        small.runs.log("q", given, policy="exact")


def test_other_bad_values_are_refused(small):
    for call, message in (
        (lambda: small.runs.log(" ", [], policy="x"), "query"),
        (lambda: small.runs.log("q", [], policy=""), "policy"),
        (lambda: small.runs.log("q", [], policy="x", run_id=""), "run_id"),
        (lambda: small.runs.log("q", [], policy="x", run_id="a\x00"), "run_id"),
        (lambda: small.runs.log("q", [], policy="x", metadata=["a"]), "metadata"),
        (lambda: small.runs.log("q", [], policy="x", metadata={"a": {1}}), "metadata"),
        (lambda: small.runs.list(limit=0), "limit"),
        (lambda: small.runs.list(after="1"), "after"),
    ):
        with pytest.raises(InvalidInput, match=message):
            call()
    for outcome in (None, "1", -0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInput, match="outcome"):
            small.runs.record_outcome("r", outcome)


def test_pages_of_runs_cover_each_once(bank):
    names = [bank.runs.log(f"q{i}", [], policy="exact") for i in range(7)]
    for name in names[::2]:
        bank.runs.record_outcome(name, 0)
    seen, after = [], 0
    while page := bank.runs.list(after=after, limit=3):
        seen += [run.run_id for run in page]
        after = page[-1].id
    assert seen == names
    assert [run.run_id for run in bank.runs.list(scored=True)] == names[::2]
    assert [run.run_id for run in bank.runs.list(scored=False)] == names[1::2]
    counts = [bank.runs.count(scored=scored) for scored in (None, True, False)]
    assert counts == [7, 4, 3]
    assert bank.runs.list(namespace="nowhere") == []
    assert bank.runs.list(after=2**70) == []


def test_runs_outlive_the_bank_object(bank_location):
    with CaseBank.open(bank_location) as bank:
        bank.runs.log("q", [], policy="exact", run_id="r")
    with CaseBank.open(bank_location) as bank:
        bank.runs.record_outcome("r", 1)
        assert bank.runs.get("r").outcome == 1.0


def test_an_outcome_log_has_a_row_for_every_case_of_every_scored_run(bank, tmp_path):
    one, two = bank.add(
        [NewCase("one", plan={"plan": ["a"]}, outcome=0.25, external_id="x"), NewCase("two", "p")]
    )
    bank.runs.log("won", [Shown(one, 1, 0.75, 0.5), Shown(two, 3)], policy="exact", run_id="r1")
    bank.runs.log("open", [Shown(one, 1)], policy="exact", run_id="r2")
    bank.runs.log("lost", [Shown(two, 1)], policy="exact", run_id="r3")
    bank.runs.log("empty", [], policy="exact", run_id="r4")
    for name, outcome in (("r3", 0), ("r1", 1), ("r4", 1)):
        bank.runs.record_outcome(name, outcome)
    steps = []
    report = bank.runs.export_outcome_log(
        tmp_path / "log.jsonl", progress=lambda done, total: steps.append((done, total))
    )
    assert (report.runs, report.rows, report.unscored, report.changed) == (3, 3, 1, 0)
    assert (steps[0], steps[-1]) == ((0, 3), (3, 3))
    rows = rows_of(tmp_path / "log.jsonl")
    assert all(row.pop("time").endswith("Z") for row in rows)
    won = {"run_id": "r1", "query": "won", "outcome": 1.0}
    assert rows == [
        won
        | {"case_id": one, "case": "one", "plan": {"plan": ["a"]}, "case_outcome": 0.25}
        | {"rank": 1, "score": 0.75, "propensity": 0.5},
        won | {"case_id": two, "case": "two", "plan": "p", "rank": 3},
        {"run_id": "r3", "query": "lost", "case_id": two, "case": "two", "plan": "p"}
        | {"outcome": 0.0, "rank": 1},
    ]


def test_words_that_were_not_shown_are_not_exported_in_their_place(bank, tmp_path):
    one, two, three = bank.add([NewCase("one"), NewCase("two"), NewCase("three")])
    bank.runs.log("q", [Shown(one, 1), Shown(two, 2), Shown(three, 3)], policy="x", run_id="r")
    bank.runs.record_outcome("r", 1)
    bank.update(two, {"plan": "told later"})
    bank.update(three, {"query": "three"})  # no change
    invalidate(bank, three)
    report = bank.runs.export_outcome_log(tmp_path / "log.jsonl")
    assert (report.rows, report.changed) == (2, 1)
    assert [row["case"] for row in rows_of(tmp_path / "log.jsonl")] == ["one", "three"]


def test_a_log_of_nothing_is_an_empty_file_and_of_nowhere_an_error(small, tmp_path):
    small.runs.log("q", [], policy="exact")
    report = small.runs.export_outcome_log(tmp_path / "log.jsonl")
    assert (report.runs, report.rows, report.unscored) == (0, 0, 1)
    assert (tmp_path / "log.jsonl").read_bytes() == b""
    with pytest.raises(NotFound, match="nowhere"):
        small.runs.export_outcome_log(tmp_path / "none.jsonl", "nowhere")
    assert not (tmp_path / "none.jsonl").exists()
    with small._store.read() as connection:
        noted = connection.execute(select(exports.c.path, exports.c.format)).all()
    assert noted == [(str(tmp_path / "log.jsonl"), "outcome_log")]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_log_is_that_of_a_model_in_plain_python(bank_location, tmp_path, monkeypatch, seed):
    """Random runs, scores, updates and purges against dictionaries; pages of three runs."""
    monkeypatch.setattr("memory.runs.outcome_log._PAGE", 3)
    random_ = random.Random(seed)
    with CaseBank.open(bank_location) as bank:
        ids = bank.add([NewCase(f"case {i}", plan=f"plan {i}") for i in range(8)])
        bank.add([NewCase("not mine")], namespace="other")
        words = {id_: f"case {i}" for i, id_ in enumerate(ids)}
        expected, scored = {}, {}
        for number in range(25):
            action = random_.choice(["log", "log", "score", "score", "update", "purge"])
            if action == "log":
                chosen = random_.sample(sorted(words), random_.randint(0, len(words)))
                name = bank.runs.log(
                    f"query {number}",
                    [Shown(id_, rank, rank / 7) for rank, id_ in enumerate(chosen, 1)],
                    policy="random",
                    run_id=f"run {number}",
                )
                expected[name] = [[id_, rank, words[id_]] for rank, id_ in enumerate(chosen, 1)]
            elif action == "score" and expected:
                name = random_.choice(sorted(expected))
                if name not in scored:
                    scored[name] = random_.choice([0.0, 0.5, 1.0])
                    bank.runs.record_outcome(name, scored[name])
            elif action == "update":
                id_ = random_.choice(sorted(words))
                words[id_] = f"{words[id_]} changed"
                bank.update(id_, {"query": words[id_]})
            elif action == "purge":
                id_ = random_.choice(sorted(words))
                with bank._store.write() as connection:
                    state = namespace_state(connection, bank._store.keys, "default")
                    runs.purge(connection, state.id, [id_], [])
                for shown in expected.values():
                    shown[:] = [row for row in shown if row[0] != id_]
        report = bank.runs.export_outcome_log(tmp_path / "log.jsonl")
    wanted = [
        (name, id_, rank, text, scored[name])
        for name, shown in expected.items()
        if name in scored
        for id_, rank, text in shown
        if text == words[id_]
    ]
    found = [
        (row["run_id"], row["case_id"], row["rank"], row["case"], row["outcome"])
        for row in rows_of(tmp_path / "log.jsonl")
    ]
    assert found == wanted
    assert report.rows == len(wanted)
    assert report.rows + report.changed == sum(len(expected[name]) for name in scored)
    assert report.unscored == len(expected) - len(scored)


def test_the_reader_of_the_retriever_reads_the_log(small, tmp_path):
    from retriever.learning.data.outcome_log import read_outcome_log

    new = [
        NewCase("Who wrote it?\nAnd when?", plan="1. look\n2. ask", outcome=1.0),
        NewCase("Ünïcode  query 🙂", plan=[{"id": 1, "description": "step"}]),
        NewCase("no plan", plan=""),
        NewCase("object", plan={"plan": [{"id": 1, "step": "go"}], "other": None}, outcome=0.5),
    ]
    ids = small.add(new)
    shown = [Shown(id_, rank, 2.0 - rank, 0.5**rank) for rank, id_ in enumerate(ids, 1)]
    small.runs.log("first", shown, policy="exact", run_id="7")
    small.runs.log("second", shown[:2], policy="exact")
    small.runs.log("open", shown, policy="exact")
    for run in small.runs.list()[:2]:
        small.runs.record_outcome(run.run_id, float(run.query == "first"))
    small.runs.export_outcome_log(tmp_path / "log.jsonl")
    log = read_outcome_log(str(tmp_path / "log.jsonl"))
    report = log.report
    assert (report.rows, report.runs, report.queries, report.cases) == (6, 2, 2, 4)
    assert (report.skipped, report.memento_rows, report.duplicate_rows) == (0, 0, 0)
    assert (report.rows_with_plan, report.rows_with_propensity) == (5, 6)
    rows = log.table.to_list()
    assert [row["case_id"] for row in rows] == [str(id_) for id_ in (*ids, *ids[:2])]
    assert [row["outcome"] for row in rows] == [1.0] * 4 + [0.0] * 2
    assert [row["case_outcome"] for row in rows[:4]] == [1.0, None, None, 0.5]
    first = small.runs.get("7")
    assert [row["time"] for row in rows[:4]] == [first.created_at] * 4
    kept = [(row["rank"], row["score"], row["propensity"]) for row in rows[:4]]
    assert kept == [(item.rank, item.score, item.propensity) for item in first.shown]


def test_runs_that_asked_or_hold_what_is_forgotten_are_found(bank, monkeypatch):
    monkeypatch.setattr(runs, "_TEXTS", 2)
    (id_,) = bank.add([NewCase("My  Number?", plan="415")])
    names = {
        "asked": bank.runs.log("my number?", [], policy="x"),
        "other": bank.runs.log("something else", [], policy="x", metadata={"n": [1, None]}),
        "query": bank.runs.log("call 555 now", [], policy="x"),
        "name": bank.runs.log("q", [], policy="x", run_id="of 555"),
        "policy": bank.runs.log("q", [], policy="the 555 one"),
        "value": bank.runs.log("q", [], policy="x", metadata={"a": [{"b": 5551}]}),
        "key": bank.runs.log("q", [], policy="x", metadata={"555": True}),
    }
    bank.runs.log("my number?", [], policy="x", namespace="other")
    (case,) = bank.get([id_])
    keys = bank._store.keys

    def found(gone):
        with bank._store.read() as connection:
            state = namespace_state(connection, keys, "default")
            ids = runs.runs_to_forget(connection, state.id, keys, gone)
        return [run.run_id for run in bank.runs.list() if run.id in ids]

    assert found(gone_of(case)) == [names["asked"]]
    assert found(gone_of(strings=("555",))) == [
        names[name] for name in ("query", "name", "policy", "value", "key")
    ]
    assert found(gone_of(replace(case, query="never asked"))) == []
    assert found(replace(gone_of(case), holds=lambda text: False)) == [], "gone, not forgotten"


def test_a_purge_takes_rows_and_whole_runs_and_nothing_else(bank):
    one, two = bank.add([NewCase("one"), NewCase("two")])
    for name in ("a", "b", "c"):
        bank.runs.log(name, [Shown(one, 1), Shown(two, 2)], policy="x", run_id=name)
    foreign = bank.runs.log("of other", [], policy="x", namespace="other")
    goes = bank.runs.get("b").id
    far = bank.runs.get(foreign, namespace="other").id
    with bank._store.write() as connection:
        state = namespace_state(connection, bank._store.keys, "default")
        assert runs.rows_of_cases(connection, [one]) == 3
        assert runs.purge(connection, state.id, [one], [goes, far]) == {"shown": 4, "runs": 1}
        assert runs.rows_of_cases(connection, [one]) == 0
        assert runs.purge(connection, state.id, [one], [goes]) == {"shown": 0, "runs": 0}
    assert [run.run_id for run in bank.runs.list()] == ["a", "c"]
    assert bank.runs.get("a").shown == (Shown(two, 2),)
    assert bank.runs.count("other") == 1
    with pytest.raises(NotFound):
        bank.runs.get("b")


def test_a_run_can_be_logged_again_although_its_case_was_purged_since(small):
    one, two = small.add([NewCase("one"), NewCase("two")])
    given = [Shown(one, 1), Shown(two, 2)]
    small.runs.log("q", given, policy="x", run_id="r")
    with small._store.write() as connection:
        state = namespace_state(connection, small._store.keys, "default")
        runs.purge(connection, state.id, [one], [])
        # The rest of a purge is not this module's; an id that was never given stands for it.
    later = [Shown(one + 1000, 1), Shown(two, 2)]
    assert small.runs.log("q", later, policy="x", run_id="r") == "r"
    with pytest.raises(IdempotencyConflict):
        small.runs.log("q", given, policy="x", run_id="r")


def test_no_byte_of_a_purged_run_is_left_in_the_file(small):
    for i in range(50):
        small.runs.log(f"query {i} token-{i}-of-the-query", [], policy="x", run_id=f"name-{i}-end")
    goes = [small.runs.get(f"name-{i}-end").id for i in range(0, 50, 7)]
    with small._store.write() as connection:
        state = namespace_state(connection, small._store.keys, "default")
        runs.purge(connection, state.id, [], goes)
        left = len(connection.execute(select(run_texts.c.id).where(run_texts.c.run_id > 0)).all())
        assert left == len(connection.execute(select(run_rows.c.id)).all())
    small._settle()
    files = [path.read_bytes() for path in small.path.parent.iterdir() if path.is_file()]
    for i in range(50):
        for word in (f"token-{i}-of-the-query", f"name-{i}-end"):
            assert any(word.encode() in held for held in files) == (i % 7 != 0), word
