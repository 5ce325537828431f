"""Reading outcome logs: what is accepted, what is refused and in which words."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retriever.errors import DataError, InvalidInput
from retriever.learning.data.outcome_log import read_outcome_log
from retriever.text import case_text

MEMENTO = {
    "query": "What is the capital of Peru?",
    "case": "What is the capital of Chile?",
    "case_label": "positive",
    "plan": '{"plan": [{"id": 1, "description": "Look it up."}]}',
    "truth_label": True,
}
OURS = {
    "run_id": "r1",
    "query": "Who wrote Emma?",
    "case_id": "c7",
    "case": "Who wrote Persuasion?",
    "plan": {"plan": [{"id": 1, "description": "Search the catalogue."}]},
    "case_outcome": 1,
    "outcome": 0.25,
    "rank": 1,
    "score": -2.5,
    "propensity": 0.125,
    "teacher_score": 3,
    "time": "2026-01-31T09:00:00+01:00",
}


@pytest.fixture
def write(tmp_path):
    def write_rows(*rows, name="log.jsonl", end="\n", before=b""):
        path = tmp_path / name
        lines = [
            row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows
        ]
        path.write_bytes(before + "".join(line + end for line in lines).encode())
        return str(path)

    return write_rows


def test_a_memento_row_is_read_as_it_is(write):
    log = read_outcome_log(write(MEMENTO))

    (row,) = log.table.to_list()
    assert row["query"] == MEMENTO["query"]
    assert row["plan"] == MEMENTO["plan"]
    assert (row["outcome"], row["case_outcome"], row["run_id"]) == (1.0, 1.0, None)
    rows = log.rows(use_plan=True)
    assert rows.query_texts == ["What is the capital of Peru?"]
    assert rows.case_texts == ["[CASE]\nWhat is the capital of Chile?\n[PLAN]\n1. Look it up."]
    assert np.isnan(rows.propensity).all()


def test_our_row_keeps_every_field(write):
    log = read_outcome_log(write(OURS))

    (row,) = log.table.to_list()
    assert row["run_id"] == "r1"
    assert row["case_id"] == "c7"
    assert json.loads(row["plan"]) == OURS["plan"]
    assert row["rank"] == 1
    assert row["score"] == -2.5
    assert row["teacher_score"] == 3.0
    assert row["time"] == 1_769_846_400_000_000  # 08:00 UTC
    rows = log.rows(use_plan=False)
    assert rows.case_texts == ["[CASE]\nWho wrote Persuasion?"]
    assert rows.outcome.tolist() == [0.25]
    assert rows.propensity.tolist() == [0.125]
    assert log.report.has_propensities


@pytest.mark.parametrize(
    ("label", "outcome"),
    [(True, 1), (False, 0), (1, 1), (0, 0), (1.0, 1), ("true", 1), ("FALSE", 0), ("True", 1)],
)
def test_labels_are_booleans_zero_and_one_or_words(write, label, outcome):
    log = read_outcome_log(write({**MEMENTO, "truth_label": label}, {**OURS, "outcome": label}))

    assert log.rows(use_plan=True).outcome.tolist() == [outcome, outcome]


def changed(base, **fields):
    return {**base, **fields}


def without(base, *names):
    return {name: value for name, value in base.items() if name not in names}


BAD_ROWS = {
    "truncated JSON": ('{"query": "a"', "one object a line"),
    "two objects on one line": ('{"query": "a"} {"query": "b"}', "one object a line"),
    "a number of 5000 digits": ('{"query": ' + "9" * 5000 + "}", "not one JSON value"),
    "nested a million deep": ("[" * 1_000_000, "nested too deeply"),
    "NaN": (json.dumps(changed(OURS, score=float("nan"))), "NaN is no JSON number"),
    "Infinity": (json.dumps(changed(OURS, score=float("inf"))), "Infinity is no JSON number"),
    "a number beyond float": (
        '{"run_id":1,"query":"a","case":"b","outcome":1,"score":1e999}',
        "score",
    ),
    "duplicate keys": ('{"query": "a", "query": "b"}', "'query' occurs twice"),
    "duplicate keys inside the plan": ('{"plan": {"plan": [], "plan": []}}', "'plan' occurs twice"),
    "an array": ("[1, 2]", "got an array"),
    "a whole file in one array": (json.dumps([MEMENTO]), "one JSON object a line, got an array"),
    "a bare string": ('"query"', "got a string"),
    "null": ("null", "got null"),
    "missing query": (without(MEMENTO, "query"), "query missing"),
    "missing case": (without(OURS, "case"), "case missing"),
    "missing run": (without(OURS, "run_id"), "run_id missing"),
    "null query": (changed(MEMENTO, query=None), "query missing or null"),
    "neither form": (
        without(MEMENTO, "truth_label", "case"),
        "Memento's lacks case, truth_label; ours lacks run_id, case, outcome",
    ),
    "a misspelt label": (
        without(MEMENTO, "truth_label") | {"truth_lable": True},
        "'truth_lable' may be meant for 'truth_label'",
    ),
    "both forms at once": (MEMENTO | OURS, "keep one of them"),
    "a bank's case": (without(MEMENTO, "query", "truth_label"), "case of a bank"),
    "Memento's other bank form": ({"question": "a", "plan": "b", "reward": 1}, "case of a bank"),
    "query of wrong type": (changed(OURS, query=3), "query must be a string, got a number: 3"),
    "case of wrong type": (changed(MEMENTO, case=["a"]), "case must be a string, got an array"),
    "empty query": (changed(MEMENTO, query=""), "query is empty or blank ('')"),
    "blank case": (changed(OURS, case=" \t\u00a0"), "case is empty or blank"),
    "blank run": (changed(OURS, run_id=" "), "run_id is empty or blank"),
    "a boolean for a run": (
        changed(OURS, run_id=True),
        "run_id must be a string or a whole number",
    ),
    "plan of wrong type": (
        changed(MEMENTO, plan=7),
        "plan must be a string, an object or an array",
    ),
    "a plan that is no plan": (changed(MEMENTO, plan='{"plan": 5}'), "plan must be"),
    "a label of 2": (
        changed(MEMENTO, truth_label=2),
        "truth_label must be true, false, 0 or 1, got 2",
    ),
    "a label of yes": (changed(MEMENTO, truth_label="yes"), "got 'yes'"),
    "a graded Memento label": (changed(MEMENTO, truth_label=0.5), "got 0.5"),
    "a case label of good": (
        changed(MEMENTO, case_label="good"),
        "positive or negative, got 'good'",
    ),
    "outcome above one": (changed(OURS, outcome=1.5), "outcome must be from 0 to 1, got 1.5"),
    "outcome below zero": (changed(OURS, outcome=-1), "outcome must be from 0 to 1, got -1"),
    "outcome as a word": (
        changed(OURS, outcome="won"),
        "outcome must be a number, got a string: 'won'",
    ),
    "case outcome above one": (changed(OURS, case_outcome=2), "case_outcome must be from 0 to 1"),
    "propensity of zero": (changed(OURS, propensity=0), "propensity must be above 0"),
    "propensity above one": (
        changed(OURS, propensity=1.01),
        "propensity must be above 0 and at most 1",
    ),
    "propensity as a boolean": (changed(OURS, propensity=True), "propensity must be a number"),
    "rank of zero": (changed(OURS, rank=0), "rank must be a whole number from 1, got 0"),
    "half a rank": (changed(OURS, rank=1.5), "rank must be a whole number"),
    "score as text": (changed(OURS, score="high"), "score must be a number, got a string"),
    "unknown field": (
        changed(OURS, propensitiy=0.5),
        "'propensitiy' may be meant for 'propensity'",
    ),
    "unknown null field": (changed(OURS, mood=None), "unknown field 'mood'"),
    "unknown Memento field": (changed(MEMENTO, lable=1), "unknown field 'lable'"),
    "a time without zone": (changed(OURS, time="2026-01-31T09:00:00"), "has no zone; add Z"),
    "no time at all": (changed(OURS, time="yesterday"), "got 'yesterday'"),
    "half a surrogate pair": (
        '{"query": "a\\ud800", "case": "b", "truth_label": 1}',
        "query holds half a surrogate",
    ),
    "half a surrogate pair in the plan's JSON": (
        changed(MEMENTO, plan='["\\ud800"]'),
        "plan holds half a surrogate",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_line_is_named_with_file_line_and_what_is_wrong(write, name):
    row, message = BAD_ROWS[name]
    path = write(MEMENTO, row, OURS)

    with pytest.raises(DataError) as caught:
        read_outcome_log(path)

    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_line_is_skipped_and_listed_when_asked_for(write, name):
    row, message = BAD_ROWS[name]

    report = read_outcome_log(write(MEMENTO, row, OURS), on_bad_line="skip").report

    assert (report.rows, report.skipped) == (2, 1)
    (line,) = report.skipped_lines
    assert line.line == 2
    assert message in line.reason
    assert sum(report.skipped_reasons.values()) == 1


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path):
    path = tmp_path / "log.jsonl"
    good = json.dumps(MEMENTO).encode()
    path.write_bytes(good + b"\n" + b'{"query": "\xff"}\n' + good + b"\n")

    with pytest.raises(DataError, match=r"log\.jsonl, line 2: byte 12 .*0xff.*UTF-8"):
        read_outcome_log(str(path))
    assert read_outcome_log(str(path), on_bad_line="skip").report.rows == 2


def test_skipping_lists_twenty_lines_and_counts_all_by_reason(write):
    path = write(*[{"query": "a"}] * 30, *["nonsense"] * 5, MEMENTO)

    report = read_outcome_log(path, on_bad_line="skip").report

    assert report.skipped == 35
    assert report.skipped_reasons == {"missing field": 30, "bad JSON": 5}
    assert [line.line for line in report.skipped_lines] == list(range(1, 21))
    assert json.loads(json.dumps(report.to_json()))["skipped_lines"][0]["line"] == 1


def test_a_log_without_one_good_row_is_an_error_even_when_skipping(write):
    with pytest.raises(
        DataError, match=r"none of 2 rows .* usable; the first: .*line 1: not one JSON"
    ):
        read_outcome_log(write("x", "y"), on_bad_line="skip")


def test_bom_crlf_and_blank_lines_are_accepted_and_keep_the_numbering(write):
    path = write(MEMENTO, "", "  ", OURS, end="\r\n", before=b"\xef\xbb\xbf")
    assert len(read_outcome_log(path)) == 2

    path = write("", MEMENTO, "", "bad", end="\r\n", before=b"\xef\xbb\xbf")
    with pytest.raises(DataError, match="line 4"):
        read_outcome_log(path)


def test_a_last_line_without_line_break_is_a_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(MEMENTO))
    assert len(read_outcome_log(str(path))) == 1


def test_line_separators_of_unicode_do_not_end_a_line(write):
    query = "one\u2028two\u0085three"
    log = read_outcome_log(write(changed(MEMENTO, query=query)))
    assert log.rows(use_plan=True).query_texts == [query]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d / "absent.jsonl", "no outcome log at"),
        (lambda d: d / "*.jsonl", "holds no outcome log"),
        (lambda d: d, "holds no outcome log"),
        (lambda d: (d / "log.txt", "x"), "suffix '.txt', which is not read"),
        (lambda d: (d / "log.jsonl", ""), "is empty"),
        (lambda d: (d / "log.jsonl", "\n \n"), "holds no row"),
        (lambda d: (d / "log.csv", ""), "is empty"),
        (lambda d: (d / "log.csv", "\n\n"), "blank lines only"),
        (lambda d: (d / "log.csv", "query,case,truth_label\n"), "holds no row"),
        (lambda d: (d / "log.parquet", "PAR1 no"), "not readable as Parquet"),
    ],
)
def test_a_source_that_holds_nothing_is_refused_with_the_reason(tmp_path, make, message):
    made = make(tmp_path)
    if isinstance(made, tuple):
        made, content = made
        made.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_outcome_log(str(made))
    assert str(made) in str(caught.value)


def test_a_directory_named_like_a_file_is_read_as_a_folder(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(DataError, match="holds no outcome log"):
        read_outcome_log(str(tmp_path / "log.jsonl"))


@pytest.mark.parametrize("source", ["", "  ", "hub:", "hub:../etc", "hub:a/b/c"])
def test_a_source_that_names_nothing_is_refused(source):
    with pytest.raises(InvalidInput, match=r"name a file|no hub id"):
        read_outcome_log(source)


def test_an_unknown_way_with_bad_lines_is_refused(write):
    with pytest.raises(InvalidInput, match="error or skip, got 'ignore'"):
        read_outcome_log(write(MEMENTO), on_bad_line="ignore")
    with pytest.raises(InvalidInput, match="keep or drop, got 'remove'"):
        read_outcome_log(write(MEMENTO)).rows(use_plan=True, duplicates="remove")


def test_a_folder_is_read_in_the_order_of_its_names_and_names_what_it_ignores(tmp_path):
    for name, query in (("b.jsonl", "second"), ("a.json", "first")):
        (tmp_path / name).write_text(json.dumps(changed(MEMENTO, query=query)))
    (tmp_path / "README.md").write_text("about")
    (tmp_path / ".hidden.jsonl").write_text("junk")

    log = read_outcome_log(str(tmp_path))

    assert log.rows(use_plan=True).query_texts == ["first", "second"]
    assert [Path(name).name for name in log.report.ignored_files] == ["README.md"]
    assert read_outcome_log(str(tmp_path / "b*.jsonl")).report.rows == 1


def test_one_bad_file_of_a_folder_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(MEMENTO))
    (tmp_path / "b.jsonl").write_text("\n\nbad\n")
    with pytest.raises(DataError, match=r"b\.jsonl, line 3"):
        read_outcome_log(str(tmp_path))


CSV = "query,case,case_label,plan,truth_label\n"


def test_the_same_rows_have_one_digest_in_every_kind_of_file(tmp_path, write):
    own = without(OURS, "plan") | {"plan": "Search, then check."}
    jsonl = read_outcome_log(write(own, changed(own, case="Who wrote Ulysses?", propensity=None)))
    names = list(own)
    cells = [["" if own[n] is None else f'"{own[n]}"' for n in names] for _ in range(2)]
    cells[1][names.index("case")], cells[1][names.index("propensity")] = "Who wrote Ulysses?", ""
    text = "\r\n".join(",".join(row) for row in [names, *cells])
    (tmp_path / "log.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    pq.write_table(
        pa.Table.from_pylist([own, changed(own, case="Who wrote Ulysses?", propensity=None)]),
        tmp_path / "log.parquet",
    )

    for name in ("log.csv", "log.parquet"):
        assert read_outcome_log(str(tmp_path / name)).digest == jsonl.digest
    assert read_outcome_log(write(own)).digest != jsonl.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,case,truth_lable\na,b,1\n", r"line 2: .*'truth_lable' may be meant for"),
        ("query,query\na,b\n", r"line 1: column 'query' occurs twice"),
        ("query,,case\na,b,c\n", r"line 1: a column has no name"),
        (CSV + "a,b,positive,p\n", r"line 2: 4 cells under 5 columns"),
        (CSV + "a,b,positive,p,1,x\n", r"line 2: 6 cells under 5 columns"),
        (CSV + 'a,"b\nc",positive,p,1\n,b,,,0\n', r"line 4: query missing or null"),
        (
            CSV + 'a,b,positive,"p,1\nnext,line\n',
            r"line 2: a quote that opens here is never closed",
        ),
        (CSV + 'a,"b"c,positive,p,1\n', r"line 2: not CSV"),
        (CSV + "a,b,positive,p,nan\n", r"line 2: truth_label must be"),
        ("run_id,query,case,outcome\nr,a,b,nan\n", r"line 2: outcome must be finite, got nan"),
        ("run_id,query,case,outcome\nr,a,b,1_0\n", r"line 2: outcome must be a number"),
        (CSV + "a," + "b" * 140_000 + ",positive,p,1\n", r"line 2: a cell is longer than"),
    ],
)
def test_bad_csv_is_named_by_line(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_outcome_log(str(path))


def test_csv_goes_on_after_a_bad_line(tmp_path):
    path = tmp_path / "log.csv"
    rows = (
        b'a,"b\n\nc",positive,p,True\n'
        + b"\xff,b,,,1\n"
        + b'a,"b"c,,,1\n'
        + b"a,b\n"
        + b"d,e,,,0\n"
    )
    path.write_bytes(CSV.encode() + rows)

    log = read_outcome_log(str(path), on_bad_line="skip")

    assert [line.line for line in log.report.skipped_lines] == [5, 6, 7]
    assert log.rows(use_plan=False).case_texts == ["[CASE]\nb\n\nc", "[CASE]\ne"]


def test_parquet_rows_are_numbered_and_checked(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist([MEMENTO, changed(MEMENTO, query=" ")]), path)
    with pytest.raises(DataError, match=r"log\.parquet, row 2: query is empty"):
        read_outcome_log(str(path))
    pq.write_table(pa.table({"query": [b"a"], "case": ["b"], "truth_label": [1]}), path)
    with pytest.raises(DataError, match="query must be a string, got bytes"):
        read_outcome_log(str(path))


def test_a_hub_split_goes_through_the_same_checks(monkeypatch):
    asked = []

    def load_dataset(dataset, split):
        asked.append((dataset, split))
        return datasets.Dataset.from_list([MEMENTO, changed(MEMENTO, truth_label=False)])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    log = read_outcome_log("hub:owner/name:test")

    assert asked == [("owner/name", "test")]
    assert log.rows(use_plan=True).outcome.tolist() == [1, 0]
    assert log.report.files == ("hub:owner/name:test",)

    def absent(dataset, split):
        raise FileNotFoundError("no such data set\nlong trace")

    monkeypatch.setattr(datasets, "load_dataset", absent)
    with pytest.raises(
        DataError, match="hub:owner/name:train cannot be loaded: no such data set; check"
    ):
        read_outcome_log("hub:owner/name")


def test_both_forms_may_be_mixed_row_by_row(write):
    report = read_outcome_log(write(MEMENTO, OURS, MEMENTO)).report
    assert (report.rows, report.memento_rows, report.rows_with_propensity) == (3, 2, 1)
    assert not report.has_propensities


def test_consecutive_memento_rows_of_one_query_are_one_run(write):
    other = changed(MEMENTO, query="Another?")
    shouted = changed(MEMENTO, query=MEMENTO["query"].upper())
    log = read_outcome_log(write(MEMENTO, shouted, other, MEMENTO, OURS, MEMENTO))
    rows = log.rows(use_plan=True)
    assert rows.run.tolist() == [0, 0, 1, 2, 3, 4]
    assert rows.group.tolist() == [0, 0, 1, 0, 2, 0]
    assert log.report.runs == 5


def test_rows_of_one_run_id_are_one_run_wherever_they_stand(write):
    log = read_outcome_log(write(OURS, changed(OURS, run_id="r2"), changed(OURS, rank=2)))
    assert log.rows(use_plan=True).run.tolist() == [0, 1, 0]


def test_a_run_of_two_queries_is_refused(write):
    with pytest.raises(DataError, match=r"line 2: run_id 'r1' belongs to another query"):
        read_outcome_log(write(OURS, changed(OURS, query="Who wrote Ulysses?")))


def test_numbers_name_runs_and_cases_too(write):
    log = read_outcome_log(write(changed(OURS, run_id=5, case_id=12), changed(OURS, run_id="5")))
    assert log.table["case_id"][:] == ["12", "c7"]
    assert log.report.runs == 1


def test_duplicates_and_self_cases_are_counted_and_stay(write):
    self_case = changed(MEMENTO, case="what IS  the capital of peru?", truth_label=False)
    log = read_outcome_log(write(MEMENTO, MEMENTO, self_case, OURS, changed(OURS, run_id="r2")))

    assert log.report.duplicate_rows == 1
    assert log.report.self_case_rows == 1
    assert log.duplicate.tolist() == [False, True, False, False, False]
    assert len(log.rows(use_plan=True)) == 5
    assert len(log.rows(use_plan=True, duplicates="drop")) == 4
    assert log.rows(use_plan=False).self_case.tolist() == [False, False, True, False, False]


def test_the_report_counts_queries_with_one_outcome(write):
    lost = changed(MEMENTO, truth_label=False)
    log = read_outcome_log(write(MEMENTO, lost, OURS, changed(MEMENTO, query="x")))
    assert log.report.queries == 3
    assert log.report.constant_queries == 2
    assert log.report.positive_rate == 0.5
    assert log.report.mean_outcome == pytest.approx(2.25 / 4)


def test_plans_that_render_alike_are_one_case_text(write):
    spaced = changed(MEMENTO, plan='{ "plan" : [ { "id": 1, "description": "Look  it up." } ] }')
    log = read_outcome_log(
        write(MEMENTO, spaced, changed(MEMENTO, plan=""), without(MEMENTO, "plan"))
    )
    rows = log.rows(use_plan=True)
    assert len(rows.case_texts) == 2
    assert rows.case.tolist() == [rows.case[0], rows.case[0], rows.case[2], rows.case[2]]
    assert log.report.rows_with_plan == 2


def test_rows_agree_with_a_plain_reading_of_many_rows(write):
    rng = np.random.default_rng(3)
    plans = [None, "", "Look.", ["Look.", "Check."]]
    plain = [
        {
            "run_id": f"r{i // 4}",
            "query": f"query {i // 8}",
            "case": f"query {rng.integers(60)}",
            "plan": plans[rng.integers(4)],
            "outcome": float(rng.integers(3)) / 2,
        }
        for i in range(20_000)
    ]

    rows = read_outcome_log(write(*plain)).rows(use_plan=True)

    for i in [*range(0, 20_000, 97), 8191, 8192, 19_999]:
        assert rows.query_texts[rows.query[i]] == plain[i]["query"]
        assert rows.case_texts[rows.case[i]] == case_text(plain[i]["case"], plain[i]["plan"])
        assert rows.self_case[i] == (plain[i]["case"] == plain[i]["query"])
        assert rows.group[i] == i // 8
        assert rows.run[i] == i // 4
        assert rows.outcome[i] == plain[i]["outcome"]
    assert len(set(rows.case_texts)) == len(rows.case_texts)


def test_a_second_reading_takes_the_table_from_the_cache(write, tmp_path):
    path = write(MEMENTO, "bad", OURS)
    cache = tmp_path / "cache"
    first = read_outcome_log(path, on_bad_line="skip", cache_dir=cache)
    (entry,) = cache.iterdir()
    stamp = (entry / "rows.arrow").stat().st_mtime_ns

    again = read_outcome_log(path, on_bad_line="skip", cache_dir=cache)

    assert (entry / "rows.arrow").stat().st_mtime_ns == stamp
    assert again.report == first.report
    assert again.digest == first.digest
    with pytest.raises(DataError, match="line 2"):
        read_outcome_log(path, cache_dir=cache)


def test_a_moved_file_is_found_in_the_cache_and_named_by_its_new_name(write, tmp_path):
    cache = tmp_path / "cache"
    read_outcome_log(write(MEMENTO), cache_dir=cache)
    moved = write(MEMENTO, name="moved.jsonl")
    assert read_outcome_log(moved, cache_dir=cache).report.files == (moved,)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", ["truncate", "no meta", "bad meta"])
def test_a_damaged_cache_entry_is_built_anew(write, tmp_path, damage):
    path, cache = write(MEMENTO), tmp_path / "cache"
    read_outcome_log(path, cache_dir=cache)
    (entry,) = cache.iterdir()
    if damage == "truncate":
        (entry / "rows.arrow").write_bytes(b"")
    elif damage == "no meta":
        (entry / "log.json").unlink()
    else:
        (entry / "log.json").write_text("[]")

    assert read_outcome_log(path, cache_dir=cache).report.rows == 1
    assert [folder.name for folder in cache.iterdir()] == [entry.name]


def test_readers_that_build_one_entry_at_once_agree(write, tmp_path):
    path, cache = write(*[changed(OURS, run_id=i) for i in range(500)]), tmp_path / "cache"
    digests, start = [], threading.Barrier(4)

    def read():
        start.wait()
        digests.append(read_outcome_log(path, cache_dir=cache).digest)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(digests) == 4
    assert len(set(digests)) == 1
    assert len(list(cache.iterdir())) == 1


def test_without_a_cache_folder_nothing_stays_behind(write, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    log = read_outcome_log(write(MEMENTO))
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    del log
    gc.collect()
    with pytest.raises(DataError):
        read_outcome_log(write("bad"))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_that_grows_while_it_is_read_is_refused(write, tmp_path):
    path = write(*[changed(OURS, run_id=i) for i in range(1500)])

    def append(done, total):
        with Path(path).open("a") as file:
            file.write(json.dumps(OURS) + "\n")

    with pytest.raises(DataError, match="changed while being read"):
        read_outcome_log(path, cache_dir=tmp_path / "cache", progress=append)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_replaced_by_an_equal_one_while_it_is_read_is_no_change(write):
    path = write(*[changed(OURS, run_id=i) for i in range(1500)])
    content = Path(path).read_bytes()
    replaced = []

    def replace(done, total):
        Path(path).unlink()
        Path(path).write_bytes(content)
        replaced.append(done)

    assert len(read_outcome_log(path, progress=replace)) == 1500
    assert replaced


def test_progress_reaches_the_end(write, tmp_path):
    write(*[changed(OURS, run_id=i) for i in range(1500)], name="a.jsonl")
    write(MEMENTO, name="b.jsonl")
    calls = []
    read_outcome_log(str(tmp_path), progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1]
