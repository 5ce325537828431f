"""Files of cases: three forms, every fault named, each file once."""

from __future__ import annotations

import json
import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import insert

from memory import (
    AlreadyStored,
    BankUnavailable,
    CaseBank,
    DataError,
    DuplicateCase,
    InvalidInput,
    NewCase,
)
from memory.exchange.jsonl import read_lines
from memory.schema import forgotten, receipts
from memory.storage.namespaces import changed_namespace
from memory.storage.rows import content_key
from tests.memory.embedders import Digests


@pytest.fixture
def bank(tmp_path):
    with CaseBank.open(tmp_path / "bank.db", projections=Digests()) as opened:
        yield opened


@pytest.fixture
def file_of(tmp_path):
    """Write a file from lines (bytes, text or rows) and give its path."""

    def write(*lines, name="cases.jsonl", end=b"\n"):
        raw = [
            line
            if isinstance(line, bytes)
            else line.encode()
            if isinstance(line, str)
            else json.dumps(line).encode()
            for line in lines
        ]
        path = tmp_path / name
        path.write_bytes(b"".join(line + end for line in raw))
        return path

    return write


def test_three_forms_are_read(bank, file_of):
    path = file_of(
        {"query": "ours", "plan": ["x"], "outcome": 0.5, "id": "e1", "kind": "fact"},
        {"case": "won", "plan": "p", "case_label": "positive"},
        {"case": "lost", "plan": "", "case_label": " Negative "},
        {"case": "open", "plan": None, "case_label": "unknown"},
        {"question": "paid", "plan": "p", "reward": 1},
        {"question": "unpaid", "plan": "p", "reward": 0, "model": "m1"},
        {"question": "?", "plan": {"plan": []}, "reward": None},
    )
    report = bank.import_jsonl(path)
    assert (report.read, report.added, report.unknown_outcomes) == (7, 7, 2)
    stored = bank.list()
    assert [(c.query, c.outcome) for c in stored] == [
        ("ours", 0.5),
        ("won", 1.0),
        ("lost", 0.0),
        ("open", None),
        ("paid", 1.0),
        ("unpaid", 0.0),
        ("?", None),
    ]
    assert stored[2].plan == ""
    assert stored[5].metadata == {"model": "m1"}, "what a form does not know is kept"
    assert len(bank.block("default")) == 7


def test_bom_crlf_blank_lines_and_a_missing_last_newline_are_no_faults(bank, tmp_path):
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"query":"a"}\r\n\r\n   \n{"query":"b"}')
    assert bank.import_jsonl(path).read == 2
    assert [case.query for case in bank.list()] == ["a", "b"]


BAD = [
    (b'{"query": "a"', "not JSON"),
    (b"query,plan", "not JSON"),
    (b'{"query": "a"} {"query": "b"}', "one whole object"),
    (b'["query"]', "not an object"),
    (b'"query"', "not an object"),
    (b"null", "not an object"),
    (b'{"query": "a", "outcome": NaN}', "NaN"),
    (b'{"query": "a", "metadata": {"x": -Infinity}}', "Infinity"),
    (b'{"query": "a", "outcome": 1e999}', "outcome = inf"),
    (b'{"query": "a", "query": "b"}', "given twice"),
    (b'{"query": "a", "metadata": {"k": 1, "k": 2}}', "'k' is given twice"),
    (b'{"query": "caf\xe9"}', "UTF-8"),
    (b'\xff\xfe{\x00"\x00', "UTF-8"),
    (b'{"query": "\\ud800"}', "cannot be stored"),
    (b'{"query": "a\\u0000"}', "cannot be stored"),
    (b'{"query": "a", "plan": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
    (b'{"query": "a", "plan": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON that can"),
    (b'{"query": " "}', "query = ' '"),
    (b'{"query": 5}', "query = 5"),
    (b'{"query": "a", "outcome": 2}', "outcome = 2"),
    (b'{"query": "a", "outcome": "won"}', "outcome = 'won'"),
    (b'{"query": "a", "outcme": 1}', "did you mean outcome"),
    (b'{"query": "a", "created_at": "2026-01-01T00:00:00"}', "created_at"),
    (b'{"query": "a", "case": "b", "case_label": "positive"}', "outcome log"),
    (b'{"qurey": "a"}', "did you mean query"),
    (b'{"text": "a"}', "query is missing"),
    (b"{}", "query is missing"),
    (b'{"case": "a", "plan": "p"}', "case_label is missing"),
    (b'{"case": "a", "plan": "p", "case_lable": "positive"}', "did you mean case_label"),
    (b'{"case": "a", "case_label": 1}', "case_label = 1"),
    (b'{"case": "", "case_label": "positive"}', "case = ''"),
    (b'{"question": "a", "plan": "p", "reward": 3}', "reward = 3"),
    (b'{"question": "a", "plan": 1, "reward": 1}', "plan = 1"),
    (b'{"query": "a", "id": "first"}', "line 1 has it"),
    (b'{"query": "a", "plan": {"plan": 5}}', "plan.plan = 5"),
    (b'{"query": "a", "plan": {"plan": true}}', "plan.plan = True"),
    (b'{"query": "a", "plan": "{\\"plan\\": 5}"}', "plan.plan = 5"),
    (b'{"case": "a", "plan": "[\\"\\\\ud800\\"]", "case_label": "positive"}', "plan[0] = "),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_is_named_and_nothing_of_the_file_is_stored(bank, file_of, line, message):
    path = file_of({"query": "good", "id": "first"}, "", line, {"query": "good too"})
    with pytest.raises(DataError, match=r"cases\.jsonl, line 3: ") as caught:
        bank.import_jsonl(path)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert bank.count() == 0


def test_skipped_lines_are_counted_and_listed(bank, file_of):
    path = file_of({"query": "good", "id": "first"}, *[line for line, _ in BAD], {"query": "good"})
    report = bank.import_jsonl(path, on_bad_line="skip")
    assert (report.read, report.added) == (len(BAD) + 2, 2)
    assert [bad.line for bad in report.skipped] == list(range(2, len(BAD) + 2))
    for bad, (_, message) in zip(report.skipped, BAD, strict=True):
        assert message in bad.reason


def test_the_field_of_a_skipped_line_is_a_name_of_the_format_never_a_word_of_the_file(
    bank, file_of
):
    path = file_of(
        {"query": "good", "id": "first"},
        {"query": "q", "id": "first"},
        {"query": "secret", "outcome": "secret"},
        {"query": "q", "plan": {"plan": 5}},
        {"query": "q", "metadata": {"secret": 2**70}},
        {"query": "q", "metadata": {"\ud800secret": 1}},
        {"query": "q", "secret": 1},
        {"question": " ", "reward": 1},
        {"case": "c", "plan": "p", "case_label": ["secret"]},
        "secret",
        '["secret"]',
        '{"secret": 1, "secret": 2}',
    )
    report = bank.import_jsonl(path, on_bad_line="skip")
    assert [bad.field for bad in report.skipped] == [
        *("id", "outcome", "plan", "metadata", "metadata", ""),
        *("question", "case_label", "", "", ""),
    ]


def test_a_plan_without_steps_is_named_before_the_batches_before_it_are_stored(tmp_path, file_of):
    good = [{"query": f"q{i}"} for i in range(5)]
    path = file_of(*good, {"query": "bad", "plan": {"plan": 5}})
    with CaseBank.open(tmp_path / "none.db") as bare:
        with pytest.raises(DataError, match=r"line 6: plan\.plan = 5: must be text"):
            bare.import_jsonl(path, batch_size=2)
        assert bare.count() == 0
        assert bare.import_jsonl(path, batch_size=2, on_bad_line="skip").added == 5
        assert len(bare.block()) == 5


@pytest.mark.parametrize("content", [b"", b"\n\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_cases_is_an_error(bank, tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match="holds no cases"):
        bank.import_jsonl(path, on_bad_line="skip")


def test_a_line_without_end_is_not_read_into_memory(bank, tmp_path, monkeypatch):
    monkeypatch.setattr("memory.exchange.jsonl.MAX_LINE_BYTES", 2**20)
    path = tmp_path / "huge.jsonl"
    huge = b'{"query": "' + b"x" * (3 * 2**20) + b'"}\n'
    path.write_bytes(b'{"query": "a"}\n' + huge + b'{"query": "b"}\n' + huge[:-1])
    report = bank.import_jsonl(path, on_bad_line="skip")
    assert (report.read, report.added) == (4, 2)
    assert [(bad.line, "1 MiB" in bad.reason) for bad in report.skipped] == [(2, True), (4, True)]


def test_a_missing_file_and_a_folder_are_errors(bank, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        bank.import_jsonl(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="is not a file"):
        bank.import_jsonl(tmp_path)


def test_wrong_options_are_refused(bank, file_of):
    path = file_of({"query": "a"})
    with pytest.raises(InvalidInput, match="on_bad_line = 'ignore': one of error, skip"):
        bank.import_jsonl(path, on_bad_line="ignore")
    with pytest.raises(InvalidInput, match="batch_size"):
        bank.import_jsonl(path, batch_size=0)


def test_the_same_content_is_imported_once_a_namespace(bank, file_of):
    path = file_of({"query": "a"}, {"query": "b"})
    assert bank.import_jsonl(path).added == 2
    copy = file_of({"query": "a"}, {"query": "b"}, name="another_name.jsonl")
    report = bank.import_jsonl(copy)
    assert (report.already_imported, report.added) == (True, 0)
    assert bank.import_jsonl(copy, namespace="other").added == 2
    assert bank.import_jsonl(copy, again=True).added == 2
    assert bank.import_jsonl(copy).already_imported
    assert bank.count() == 4


def test_an_external_id_of_the_bank_is_found_before_anything_is_stored(bank, file_of):
    bank.add([NewCase("mine", external_id="x")])
    path = file_of({"query": "a"}, {"query": "b", "id": "x"})
    with pytest.raises(DataError, match=r"line 2: id = 'x'"):
        bank.import_jsonl(path, batch_size=1)
    assert bank.count() == 1
    report = bank.import_jsonl(path, on_bad_line="skip")
    assert (report.added, [bad.line for bad in report.skipped]) == (1, [2])
    with pytest.raises(DataError, match="line 2"):
        bank.import_jsonl(path, again=True)
    assert bank.import_jsonl(path).already_imported


def test_again_cannot_store_an_external_id_twice(bank, file_of):
    path = file_of({"query": "a"}, {"query": "b", "id": "x"})
    bank.import_jsonl(path)
    with pytest.raises(DataError, match=r"line 2: id = 'x'"):
        bank.import_jsonl(path, again=True, batch_size=1)
    assert bank.count() == 2
    assert bank.import_jsonl(path).already_imported


def test_progress_counts_acknowledged_bytes(bank, file_of):
    path = file_of(*({"query": f"q{i}"} for i in range(5)))
    size, steps = path.stat().st_size, []

    def progress(done, total):
        steps.append((done, total, bank.count()))

    bank.import_jsonl(path, batch_size=2, progress=progress)
    assert steps[0] == (0, size, 0)
    assert steps[-1] == (size, size, 5)
    assert [count for _, _, count in steps] == [0, 2, 4, 5]
    assert [done for done, _, _ in steps] == sorted(done for done, _, _ in steps)


class Interrupted(Exception):
    pass


def test_an_interrupted_import_goes_on_and_adds_every_case_once(bank, file_of):
    rows = [{"query": f"q{i}", "id": f"e{i}"} for i in range(10)]
    path = file_of(*rows[:4], "", "bad", *rows[4:])

    def stop(done, total):
        if bank.count() >= 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        bank.import_jsonl(path, batch_size=3, on_bad_line="skip", progress=stop)
    assert bank.count() == 6
    report = bank.import_jsonl(path, batch_size=4, on_bad_line="skip")
    assert (report.read, report.resumed, report.added) == (11, 6, 4)
    assert not report.already_imported
    assert [case.query for case in bank.list()] == [f"q{i}" for i in range(10)]
    assert bank.import_jsonl(path).already_imported


def test_a_file_that_changes_while_it_is_read_is_not_noted_as_imported(bank, file_of):
    path = file_of({"query": "a"}, {"query": "b"}, {"query": "c"})

    def change(done, total):
        path.write_bytes(path.read_bytes().replace(b"c", b"z"))

    with pytest.raises(DataError, match="changed while it was imported"):
        bank.import_jsonl(path, batch_size=1, progress=change)
    assert not bank.import_jsonl(path, on_bad_line="skip").already_imported


def test_a_file_finished_by_another_process_meanwhile_is_not_added_twice(
    bank, file_of, monkeypatch
):
    path = file_of({"query": "a", "id": "x"}, {"query": "b"})
    other = []

    def read_lines_after_another_import(file):
        if not other:
            other.append(None)
            with CaseBank.open(bank.path, projections=Digests()) as second:
                other[0] = second.import_jsonl(path)
        return read_lines(file)

    monkeypatch.setattr("memory.exchange.importing.read_lines", read_lines_after_another_import)
    report = bank.import_jsonl(path)
    assert (other[0].added, report.added, report.resumed) == (2, 0, 2)
    assert bank.count() == 2
    assert bank.import_jsonl(path).already_imported


def test_an_id_taken_by_another_writer_meanwhile_is_named(bank, file_of):
    path = file_of({"query": "a", "id": "x"}, {"query": "b", "id": "y"})
    taken = []

    def take(done, total):
        if not taken:
            taken.extend(bank.add([NewCase("mine", external_id="y")]))

    with pytest.raises(DataError, match="'y' is in the namespace already") as caught:
        bank.import_jsonl(path, batch_size=1, progress=take)
    assert isinstance(caught.value.__cause__, AlreadyStored)


def forget(bank, *queries, namespace="default"):
    """Note cases of these queries as forgotten, as a purge does."""
    with bank._store.write() as connection:
        state = changed_namespace(connection, bank._store.keys, namespace, bank._store.lexical)
        row = {
            "uid": str(uuid.uuid4()),
            "namespace_id": state.id,
            "created_at": 0,
            "mode": "purge",
            "erased": "done",
            "body": "{}",
        }
        made = connection.execute(insert(receipts).returning(receipts.c.id), [row])
        number = made.scalar_one()
        for query in queries:
            key = content_key(bank._store.keys, state.id, NewCase(query))
            values = {"namespace_id": state.id, "content_key": key, "receipt_id": number}
            connection.execute(insert(forgotten), [values])


def test_what_was_forgotten_is_named_by_its_line_and_left_out(bank, file_of):
    forget(bank, "My number is 1", "gone too")
    path = file_of(
        {"query": "kept"},
        {"query": "my  NUMBER is １", "id": "x", "outcome": 1},
        {"query": "new", "id": "x"},
        {"query": "my number is 1", "plan": "other"},
        {"query": "gone too"},
    )
    report = bank.import_jsonl(path)
    assert (report.read, report.added, report.resumed) == (5, 3, 0)
    assert report.forgotten == (2, 5), "near-verbatim, and its id is free for another line"
    assert report.unknown_outcomes == 3
    assert [case.query for case in bank.list()] == ["kept", "new", "my number is 1"]
    assert "gone" not in repr(report)
    elsewhere = bank.import_jsonl(path, namespace="other", on_bad_line="skip")
    assert elsewhere.forgotten == ()


def test_what_was_forgotten_can_be_wanted_back(bank, file_of):
    forget(bank, "gone")
    path = file_of({"query": "gone"}, {"query": "kept"})
    report = bank.import_jsonl(path, on_forgotten="keep")
    assert (report.added, report.forgotten, report.resumed) == (2, (1,), 0)
    assert bank.count() == 2


def test_what_is_forgotten_while_a_file_is_imported_is_left_out(bank, file_of):
    path = file_of(*({"query": f"q{i}"} for i in range(6)))

    told = []

    def forget_meanwhile(done, total):
        if done and not told:
            told.append(done)
            forget(bank, "q2", "q3", "q5")

    report = bank.import_jsonl(path, batch_size=2, progress=forget_meanwhile)
    assert (report.read, report.added, report.resumed) == (6, 3, 0)
    assert report.forgotten == (3, 4, 6)
    assert [case.query for case in bank.list()] == ["q0", "q1", "q4"]
    assert bank.import_jsonl(path).already_imported


DUPLICATES = (
    {"query": "stored", "plan": ["a"], "kind": "fact"},
    {"query": "new", "outcome": 1},
    {"query": "new", "outcome": 0},
    {"query": "new"},
    {"query": "stored", "plan": ["a"]},
    {"query": "NEW", "outcome": 1},
)


def test_duplicates_are_kept_unless_one_says_otherwise(bank, file_of):
    bank.add([NewCase("stored", plan=["a"], kind="fact")])
    report = bank.import_jsonl(file_of(*DUPLICATES))
    assert (report.added, bank.count()) == (6, 7)


def test_a_duplicate_that_is_to_be_rejected_is_a_bad_line(bank, file_of):
    (id_,) = bank.add([NewCase("stored", plan=["a"], kind="fact")])
    with pytest.raises(DataError, match=f"line 1: is a duplicate of case {id_};"):
        bank.import_jsonl(file_of(*DUPLICATES), on_duplicate="reject")
    with pytest.raises(DataError, match="line 3: is a duplicate of line 1;"):
        bank.import_jsonl(file_of(*DUPLICATES[1:]), on_duplicate="reject", batch_size=1)
    assert bank.count() == 1, "nothing was stored before all lines were checked"
    report = bank.import_jsonl(file_of(*DUPLICATES), on_duplicate="reject", on_bad_line="skip")
    assert [bad.line for bad in report.skipped] == [1, 4]
    assert (report.added, bank.count()) == (4, 5)


def test_a_line_stored_by_an_interrupted_import_is_no_duplicate_of_itself(bank, file_of):
    path = file_of(*({"query": f"q{i}"} for i in range(5)), {"query": "q0"})

    def stop(done, total):
        if bank.count() >= 2:
            raise Interrupted

    options = {"on_duplicate": "reject", "on_bad_line": "skip", "batch_size": 2}
    with pytest.raises(Interrupted):
        bank.import_jsonl(path, progress=stop, **options)
    report = bank.import_jsonl(path, **options)
    assert (report.read, report.resumed, report.added) == (6, 2, 3)
    assert [bad.line for bad in report.skipped] == [6]
    again = bank.import_jsonl(path, again=True, **options)
    assert (again.added, len(again.skipped)) == (0, 6)


def test_a_duplicate_is_merged_into_what_is_there(bank, file_of):
    (id_,) = bank.add([NewCase("stored", plan=["a"], kind="fact", tags=["old"])])
    lines = [dict(row) for row in DUPLICATES]
    lines[0] |= {"tags": ["new"], "outcome": 0.5, "id": "x"}
    report = bank.import_jsonl(file_of(*lines), on_duplicate="merge", batch_size=4)
    assert (report.read, report.added, report.merged, report.updated) == (6, 4, 2, 0)
    (case,) = bank.get([id_])
    assert (case.tags, case.outcome, case.external_id) == (("old", "new"), 0.5, "x")
    assert bank.count() == 5


def test_an_upsert_overwrites_the_case_with_the_lines_id(bank, file_of):
    (id_,) = bank.add([NewCase("old words", external_id="x", tags=["t"])])
    path = file_of({"query": "new words", "id": "x"}, {"query": "b", "id": "y"}, {"query": "c"})
    report = bank.import_jsonl(path, upsert=True)
    assert (report.read, report.added, report.updated, report.merged) == (3, 2, 1, 0)
    (case,) = bank.get([id_])
    assert (case.query, case.tags, case.version) == ("new words", (), 2)
    again = bank.import_jsonl(path, upsert=True, again=True)
    assert (again.added, again.updated) == (1, 2)
    with pytest.raises(DataError, match="line 2: id = 'x': line 1 has it too"):
        bank.import_jsonl(file_of(*2 * [{"query": "a", "id": "x"}]), upsert=True)


def test_a_duplicate_stored_by_another_writer_meanwhile_is_named(bank, file_of):
    path = file_of({"query": "a"}, {"query": "b"})
    told = []

    def tell(done, total):
        if not told:
            told.extend(bank.add([NewCase("b")]))

    with pytest.raises(DataError, match="by another writer") as caught:
        bank.import_jsonl(path, batch_size=1, on_duplicate="reject", progress=tell)
    assert isinstance(caught.value.__cause__, DuplicateCase)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"on_duplicate": "drop"}, "on_duplicate = 'drop': one of keep, merge, reject"),
        ({"on_forgotten": "error"}, "on_forgotten = 'error': one of skip, keep"),
        ({"batch_size": 2.0}, r"batch_size = 2\.0: must be an integer"),
    ],
)
def test_other_wrong_options_are_refused(bank, file_of, option, message):
    with pytest.raises(InvalidInput, match=message):
        bank.import_jsonl(file_of({"query": "a"}), **option)
    with pytest.raises(InvalidInput, match=message):
        bank.import_parquet("nothing.parquet", **option)


def parquet_of(path, columns, types=None):
    """Write columns of values; types are pyarrow's, by name."""
    arrays = {
        name: pa.array(values, type=(types or {}).get(name)) for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path)
    return path


def test_parquet_is_read_in_three_forms_and_with_native_values(bank, tmp_path):
    ours = parquet_of(
        tmp_path / "ours.parquet",
        {
            "query": ["a", "b", "c"],
            "plan": [None, [{"id": 1, "step": "x"}], [{"id": 2, "step": None}]],
            "plan_json": ['{"plan": ["y"]}', None, None],
            "metadata": [[("k", 1)], [], None],
            "tags": [["t", "u"], None, []],
            "created_at": [1_000_000_000, None, 2_000],
            "valid_from": ["2026-01-01T00:00:00Z", None, None],
            "outcome": [1, None, 0],
        },
        {
            "metadata": pa.map_(pa.string(), pa.int64()),
            "created_at": pa.timestamp("ns", tz="Asia/Seoul"),
        },
    )
    assert bank.import_parquet(ours).added == 3
    a, b, c = bank.list()
    assert (a.plan, b.plan, c.plan) == (
        {"plan": ["y"]},
        [{"id": 1, "step": "x"}],
        [{"id": 2}],
    ), "a null inside of a struct counts as absent"
    assert (a.metadata, b.metadata, a.tags, c.tags) == ({"k": 1}, {}, ("t", "u"), ())
    assert (a.created_at, b.created_at, c.created_at) == (1_000_000, None, 2)
    assert (a.outcome, b.outcome, c.outcome) == (1.0, None, 0.0)
    assert a.valid_from == 1_767_225_600_000_000
    won = {"case": ["won", "open"], "plan": ["p", None], "case_label": ["positive", None]}
    paid = {"question": ["paid", "?"], "plan": ["p", ""], "reward": [1.0, None], "m": [None, "x"]}
    parquet = parquet_of(tmp_path / "won.parquet", won)
    assert bank.import_parquet(parquet, namespace="n").unknown_outcomes == 1
    bank.import_parquet(parquet_of(tmp_path / "paid.parquet", paid), namespace="n")
    stored = [(case.query, case.outcome, case.metadata) for case in bank.list(namespace="n")]
    assert stored == [
        ("won", 1.0, {}),
        ("open", None, {}),
        ("paid", 1.0, {}),
        ("?", None, {"m": "x"}),
    ]


def test_bad_rows_of_parquet_are_named_by_number(bank, tmp_path):
    text = pa.array([b"caf\xe9"]).cast(pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 1, text.buffers())
    columns = {
        "query": ["good", None, " ", "a", "b", "c", "d", "e", "f", "good too"],
        "outcome": [None, None, None, 2.0, float("nan"), None, None, None, None, 1.0],
        "plan": [None] * 5 + ["p", None, None, None, None],
        "plan_json": [None] * 5 + ["[]", "5", '{"a": 1, "a": 2}', None, None],
        "metadata": [None] * 8 + ["[1]", None],
    }
    path = parquet_of(tmp_path / "bad.parquet", columns)
    with pytest.raises(DataError, match=r"bad\.parquet, line 2: query is missing"):
        bank.import_parquet(path)
    assert bank.count() == 0
    report = bank.import_parquet(path, on_bad_line="skip")
    assert (report.read, report.added) == (10, 2)
    assert [bad.line for bad in report.skipped] == list(range(2, 10))
    assert [bad.field for bad in report.skipped] == [
        *("", "query", "outcome", "outcome"),
        *("plan_json", "plan_json", "plan_json", "metadata"),
    ]
    pq.write_table(pa.table({"query": broken}), tmp_path / "broken.parquet")
    with pytest.raises(DataError, match=r"line 1: query = b'caf\\xe9': must be text"):
        bank.import_parquet(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (pa.timestamp("us"), 1, "no time zone"),
        (pa.timestamp("ns", tz="UTC"), 1, "finer than a microsecond"),
        (pa.timestamp("s", tz="UTC"), 2**40, "outside the years 1 to 9999"),
        (pa.int64(), 1, "RFC 3339"),
        (pa.date32(), 1, "RFC 3339"),
    ],
)
def test_times_of_parquet_need_a_zone_and_a_form(bank, tmp_path, type_, value, message):
    columns = {"query": ["a"], "created_at": [value]}
    path = parquet_of(tmp_path / "t.parquet", columns, {"created_at": type_})
    with pytest.raises(DataError, match=f"line 1: created_at = .*{message}"):
        bank.import_parquet(path)


def test_a_parquet_file_as_a_whole_can_be_wrong(bank, tmp_path):
    unknown = parquet_of(tmp_path / "u.parquet", {"query": ["a"], "qurey": [None]})
    with pytest.raises(DataError, match="unknown column 'qurey'; known: id, query"):
        bank.import_parquet(unknown, on_bad_line="skip")
    empty = parquet_of(tmp_path / "e.parquet", {"query": []}, {"query": pa.string()})
    with pytest.raises(DataError, match="holds no cases"):
        bank.import_parquet(empty)
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["query", "query"])
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="two columns 'query'"):
        bank.import_parquet(tmp_path / "twice.parquet")
    (tmp_path / "no.parquet").write_bytes(b'{"query": "a"}\n')
    with pytest.raises(DataError, match="no Parquet file"):
        bank.import_parquet(tmp_path / "no.parquet")
    whole = parquet_of(tmp_path / "w.parquet", {"query": [f"q{i}" for i in range(5000)]})
    raw = whole.read_bytes()
    whole.write_bytes(raw[:200] + bytes(len(raw) - 600) + raw[-400:])
    with pytest.raises(DataError):
        bank.import_parquet(whole)
    log = parquet_of(tmp_path / "log.parquet", {"query": ["q"], "case": ["c"], "outcome": [1]})
    with pytest.raises(DataError, match="outcome log"):
        bank.import_parquet(log)
    assert bank.count() == 0


def test_parquet_without_pyarrow_says_what_to_install(bank, tmp_path, monkeypatch):
    path = parquet_of(tmp_path / "a.parquet", {"query": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BankUnavailable, match="pip install pyarrow"):
        bank.import_parquet(path)
    bank.add([NewCase("a")])
    with pytest.raises(BankUnavailable, match="pip install pyarrow"):
        bank.export_parquet(tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_an_interrupted_import_of_parquet_goes_on_and_adds_every_case_once(bank, tmp_path):
    rows = {"query": [f"q{i}" for i in range(9)] + [" "], "id": [f"e{i}" for i in range(10)]}
    path = parquet_of(tmp_path / "rows.parquet", rows)
    size, steps = path.stat().st_size, []

    def stop(done, total):
        steps.append((done, total))
        if bank.count() >= 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        bank.import_parquet(path, batch_size=3, on_bad_line="skip", progress=stop)
    assert steps == [(0, size), (size * 3 // 10, size), (size * 6 // 10, size)]
    report = bank.import_parquet(path, batch_size=4, on_bad_line="skip")
    assert (report.read, report.resumed, report.added) == (10, 6, 3)
    assert [case.query for case in bank.list()] == [f"q{i}" for i in range(9)]
    assert bank.import_parquet(path).already_imported


def test_both_engines_import_alike(bank_location, file_of, tmp_path):
    """Upsert, merge and the forgotten, on each engine, of each format."""
    lines = [
        {"query": "a", "id": "x"},
        {"query": "b", "outcome": 1.0},
        {"query": "gone"},
        {"query": "b", "tags": ["t"]},
        {"query": " "},
    ]
    parquet = parquet_of(
        tmp_path / "rows.parquet",
        {name: [line.get(name) for line in lines] for name in ("query", "id", "outcome", "tags")},
    )
    with CaseBank.open(bank_location, projections=Digests()) as bank:
        options = {"upsert": True, "on_duplicate": "merge", "on_bad_line": "skip", "batch_size": 2}
        for namespace, read in (
            ("jsonl", lambda **o: bank.import_jsonl(file_of(*lines), **o)),
            ("parquet", lambda **o: bank.import_parquet(parquet, **o)),
        ):
            forget(bank, "GONE", namespace=namespace)
            bank.add([NewCase("old", external_id="x")], namespace=namespace)
            report = read(namespace=namespace, **options)
            counts = (report.added, report.updated, report.merged, report.resumed)
            assert counts == (1, 1, 1, 0)
            assert (report.read, report.forgotten) == (5, (3,))
            assert [bad.line for bad in report.skipped] == [5]
            stored = bank.list(namespace=namespace)
            assert [(c.query, c.tags, c.outcome) for c in stored] == [
                ("a", (), None),
                ("b", ("t",), 1.0),
            ]
            assert read(namespace=namespace, **options).already_imported


def test_an_export_can_be_imported(bank, file_of, tmp_path):
    bank.add([NewCase("a", plan=[1], external_id="x"), NewCase("b", derived_from=["x"])])
    bank.export_jsonl(tmp_path / "out.jsonl")
    bank.import_jsonl(tmp_path / "out.jsonl", namespace="copy")
    originals = [case.as_new() for case in bank.list()]
    assert [case.as_new() for case in bank.list(namespace="copy")] == originals


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "cases", "won"), [("memory.jsonl", 1278, 897), ("dummy_memo.jsonl", 8, 4)]
)
def test_the_public_banks_of_memento_are_read_whole(tmp_path, shared_data, name, cases, won):
    path = shared_data / "memento" / name
    with CaseBank.open(tmp_path / "bank.db") as bank:
        report = bank.import_jsonl(path)
        assert (report.read, report.added, report.unknown_outcomes) == (cases, cases, 0)
        stored = bank.list(limit=10_000)
        assert sum(case.outcome == 1.0 for case in stored) == won
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [case.plan for case in stored] == [row["plan"] for row in rows]
