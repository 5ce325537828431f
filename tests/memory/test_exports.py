"""Files written from a bank: whole, one snapshot, rewritten when what they hold is forgotten."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import insert, select, update

from memory import BankBusy, BankUnavailable, CaseBank, InvalidInput, NewCase, NotFound, Shown
from memory.exchange.exporting import ExportedRow, exports_of, purge_export, purge_exports
from memory.filters import CaseFilter
from memory.schema import cases, exports, removals
from memory.sinks import Gone
from memory.storage.namespaces import changed_namespace, namespace_state

FORMATS = ("jsonl", "parquet")


@pytest.fixture
def bank(tmp_path):
    with CaseBank.open(tmp_path / "bank" / "bank.db") as opened:
        yield opened


def export(bank, format_, path, *args, **options):
    return getattr(bank, f"export_{format_}")(path, *args, **options)


def queries_of(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)["query"].to_pylist()
    return [json.loads(line)["query"] for line in path.read_text(encoding="utf-8").splitlines()]


def noted(bank):
    with bank._store.read() as connection:
        return connection.execute(
            select(exports.c.path, exports.c.format).order_by(exports.c.id)
        ).all()


def invalidate(bank, *ids):
    with bank._store.write() as connection:
        connection.execute(update(cases).where(cases.c.id.in_(ids)).values(invalidated_at=1))


def remove(bank, id_, namespace="default"):
    """Note a case as gone, as a purge does; the case itself does not matter here."""
    with bank._store.write() as connection:
        state = changed_namespace(connection, bank._store.keys, namespace, "words")
        row = {"namespace_id": state.id, "seq": state.version, "case_id": id_}
        connection.execute(insert(removals), [row])


def purge(bank, *going, strings=(), namespace="default", holds=None):
    """Purge the exports of a namespace as forgetting does."""
    said = {case.query for case in going}
    gone = Gone(
        namespace,
        going,
        strings,
        holds or (lambda text: text in said or any(string in text for string in strings)),
    )
    with bank._store.write() as connection:
        state = namespace_state(connection, bank._store.keys, namespace)
        return purge_exports(connection, state.id, gone)


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_is_filtered_counted_and_noted(bank, tmp_path, format_):
    new = [NewCase(f"q{i}", kind="fact" if i % 2 else "case", outcome=i / 10) for i in range(9)]
    ids = bank.add(new)
    bank.add([NewCase("not mine", kind="fact")], namespace="other")
    invalidate(bank, *ids[:4])
    target = tmp_path / f"out.{format_}"
    steps = []
    report = export(bank, format_, target, progress=lambda *step: steps.append(step))
    assert (report.path, report.format) == (target, format_)
    assert (report.written, report.invalidated) == (5, 4)
    assert steps == [(0, 5), (5, 5)]
    assert queries_of(target) == [f"q{i}" for i in range(4, 9)]
    facts = CaseFilter(kinds=["fact"], min_outcome=0.1)
    report = export(bank, format_, target, "default", where=facts)
    assert (report.written, report.invalidated) == (2, 2)
    assert queries_of(target) == ["q5", "q7"]
    none = export(bank, format_, target, where=CaseFilter(source="nobody"))
    assert (none.written, queries_of(target)) == (0, [])
    assert noted(bank) == [(str(target), format_)], "a path is noted once"


def test_history_cannot_be_exported_as_if_it_were_alive(bank, tmp_path):
    bank.add([NewCase("a")])
    with pytest.raises(InvalidInput, match="live cases only"):
        bank.export_jsonl(tmp_path / "a.jsonl", where=CaseFilter(invalidated=True))
    invalidate(bank, 1)
    with pytest.raises(NotFound, match="no cases to export"):
        bank.export_jsonl(tmp_path / "a.jsonl")
    assert list(tmp_path.glob("*.jsonl")) == []
    assert noted(bank) == [], "no file, no note"


@pytest.mark.parametrize("format_", FORMATS)
def test_pages_of_an_export_are_one_snapshot(bank, tmp_path, monkeypatch, format_):
    monkeypatch.setattr("memory.exchange.exporting._PAGE", 2)
    bank.add([NewCase(f"q{i}") for i in range(5)])

    def write_meanwhile(done, total):
        bank.add([NewCase("too late")])

    target = tmp_path / f"out.{format_}"
    assert export(bank, format_, target, progress=write_meanwhile).written == 5
    assert queries_of(target) == [f"q{i}" for i in range(5)]
    if format_ == "parquet":
        assert pq.ParquetFile(target).metadata.num_row_groups == 3


@pytest.mark.parametrize("format_", FORMATS)
def test_a_failed_export_leaves_the_old_file_and_no_draft(bank, tmp_path, format_):
    bank.add([NewCase("a")])
    target = tmp_path / "out" / f"cases.{format_}"
    export(bank, format_, target)
    before = target.read_bytes()

    def fail(done, total):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        export(bank, format_, target, progress=fail)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert noted(bank) == [(str(target), format_)]
    with pytest.raises(BankUnavailable, match="cannot be written"):
        export(bank, format_, target / "below.a.file")
    assert noted(bank) == [(str(target), format_)]


def test_what_is_forgotten_while_a_file_is_written_is_not_in_it(bank, tmp_path):
    ids = bank.add([NewCase("stays"), NewCase("goes")])
    target = tmp_path / "out.jsonl"
    tries = []

    def forget_once(done, total):
        if not done:
            tries.append(total)
            if len(tries) == 1:
                remove(bank, ids[1])
                invalidate(bank, ids[1])

    assert bank.export_jsonl(target, progress=forget_once).written == 1
    assert tries == [2, 1], "written once more"
    assert queries_of(target) == ["stays"]

    def keep_forgetting(done, total):
        remove(bank, ids[0])

    before = target.read_bytes()
    with pytest.raises(BankBusy, match="were forgotten each of 5 times"):
        bank.export_jsonl(target, progress=keep_forgetting)
    assert target.read_bytes() == before
    assert bank.export_jsonl(target, progress=lambda *_: remove(bank, 1, "other")).written == 1


def test_a_draft_that_a_purge_took_away_is_written_again(bank, tmp_path):
    bank.add([NewCase("a")])
    target = tmp_path / "out.jsonl"
    tries = []

    def purge_first(done, total):
        tries.append(done)
        if len(tries) == 1:
            purge(bank, strings=("nothing of it",))

    assert bank.export_jsonl(target, progress=purge_first).written == 1
    assert tries == [0, 1, 0, 1]
    assert queries_of(target) == ["a"]


def test_a_file_belongs_to_the_namespace_that_wrote_it_last(bank, tmp_path):
    bank.add([NewCase("shared words")])
    bank.add([NewCase("shared words")], namespace="other")
    target = tmp_path / "out.jsonl"
    bank.export_jsonl(target)
    bank.export_jsonl(target, "other")
    (case,) = bank.list()
    assert purge(bank, case) == (0, [])
    assert queries_of(target) == ["shared words"], "another tenant's file"
    with bank._store.read() as connection:
        state = namespace_state(connection, bank._store.keys, "other")
        assert exports_of(connection, state.id) == [(target, "jsonl")]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_purge_takes_forgotten_cases_out_of_exports_and_leaves_the_rest(bank, tmp_path, format_):
    bank.add(
        [
            NewCase("call me", plan="at 415-555-0186", external_id="x"),
            NewCase("call me", plan="by name"),
            NewCase("unlike", metadata={"n": {"tel": "x-0186-y"}}),
            NewCase("stays", tags=["quite"]),
        ]
    )
    target = tmp_path / f"out.{format_}"
    export(bank, format_, target)
    kept = [case.as_new() for case in bank.list()]
    before = target.read_bytes()
    first = bank.list()[0]
    assert purge(bank, first) == (1, [])
    assert queries_of(target) == ["call me", "unlike", "stays"], "same query, another case"
    assert b"415-555" not in target.read_bytes()
    assert purge(bank, first) == (0, []), "again, nothing is left to do"
    assert purge(bank, strings=("0186",)) == (1, [])
    assert queries_of(target) == ["call me", "stays"]
    assert before != target.read_bytes()
    getattr(bank, f"import_{format_}")(target, namespace="copy")
    assert [case.as_new() for case in bank.list(namespace="copy")] == [kept[1], kept[3]]
    assert purge(bank, holds=lambda text: True) == (2, []), "the whole namespace"
    assert queries_of(target) == []


def test_a_purge_takes_rows_out_of_outcome_logs(bank, tmp_path):
    one, two = bank.add([NewCase("one", plan={"plan": ["a"]}), NewCase("two", plan="b")])
    for name in ("r1", "r2"):
        bank.runs.log(f"query of {name}", [Shown(one, 1), Shown(two, 2)], policy="x", run_id=name)
        bank.runs.record_outcome(name, 1)
    target = tmp_path / "log.jsonl"

    def rows():
        lines = target.read_text(encoding="utf-8").splitlines()
        return [(row["run_id"], row["case"]) for row in map(json.loads, lines)]

    bank.runs.export_outcome_log(target)
    (case,) = bank.get([one])
    assert purge(bank, case) == (2, [])
    assert rows() == [("r1", "two"), ("r2", "two")]
    assert purge(bank, strings=("of r2",)) == (1, [])
    assert rows() == [("r1", "two")]


def test_files_changed_by_hand_are_purged_as_far_as_they_go(bank, tmp_path):
    bank.add([NewCase("goes", external_id="x"), NewCase("stays")])
    target = tmp_path / "out.jsonl"
    bank.export_jsonl(target)
    target.chmod(0o640)
    lines = target.read_bytes().splitlines()
    by_hand = [
        b"\xef\xbb\xbf" + lines[1],
        b"",
        b"no JSON that says goes and more",
        b"\xff\xfe goes in another encoding",
        b"no JSON",
        b'{"id": "x", "query": "renamed"}',
        b'["goes"]',
        b'{"query": "later", "unknown": "goes"}',
        b'{"query": "later", "unknown": 5}',
        b"GOES".lower() + b" without an end",
    ]
    target.write_bytes(b"\n".join(by_hand))
    (case,) = bank.list(limit=1)
    told = purge(bank, case, holds=lambda text: "goes" in text)
    assert told == (6, [])
    kept = [by_hand[0], by_hand[1], by_hand[4], by_hand[8]]
    assert target.read_bytes() == b"\n".join(kept) + b"\n"
    assert target.stat().st_mode & 0o777 == 0o640


def test_parquet_changed_by_hand_keeps_no_word_in_dictionaries_or_metadata(tmp_path):
    path = tmp_path / "by_hand.parquet"
    words = pa.array(["secret-word", "plain", "plain"])
    nested = pa.array([{"w": "secret-word"}, {"w": "a"}, None])
    table = pa.table(
        {
            "query": words.dictionary_encode(),
            "of": pa.array([["a"], ["secret-word"], None]),
            "at": pa.array([1, 2, 3], pa.timestamp("ns")),
            "in": nested,
        },
        metadata={"note": "secret-word"},
    )
    pq.write_table(table, path, row_group_size=2)
    assert b"secret-word" in path.read_bytes()

    def drop(row):
        return any("secret-word" in text for text in row.texts)

    assert purge_export(path, "parquet", drop).rows == 2
    assert b"secret-word" not in path.read_bytes()
    left = pq.read_table(path)
    assert left["query"].to_pylist() == ["plain"]
    assert left["at"].cast(pa.int64()).to_pylist() == [3]
    assert left["in"].to_pylist() == [None]
    assert purge_export(path, "parquet", drop).rows == 0


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "outcome_log"])
def test_files_that_are_gone_or_out_of_reach_are_said_to_be(tmp_path, monkeypatch, format_):
    def drop(row):
        return True

    for path in (tmp_path / "nothing", tmp_path / "no" / "folder"):
        purged = purge_export(path, format_, drop)
        assert (purged.rows, purged.gone, purged.unreached) == (0, True, "")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert purge_export(folder, format_, drop).gone
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    purged = purge_export(loop, format_, drop)
    assert (purged.gone, bool(purged.unreached)) == (False, True)
    odd = tmp_path / "odd"
    odd.write_bytes(b"secret: no Parquet file\n")
    purged = purge_export(odd, format_, drop)
    if format_ == "parquet":
        assert purged.unreached == "DataError", "never its text"
    else:
        assert (purged.rows, odd.read_bytes()) == (1, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "loop", "odd"]


def test_an_export_out_of_reach_is_named_and_the_others_are_purged(bank, tmp_path):
    bank.add([NewCase("goes"), NewCase("stays")])
    for name in ("a.jsonl", "b.jsonl"):
        bank.export_jsonl(tmp_path / name)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "a.jsonl")
    (case, _) = bank.list()
    assert purge(bank, case) == (1, [str(tmp_path / "a.jsonl")])
    assert queries_of(tmp_path / "b.jsonl") == ["stays"]


def test_a_link_in_place_of_an_export_is_followed(bank, tmp_path):
    bank.add([NewCase("goes"), NewCase("stays")])
    target, moved = tmp_path / "out.jsonl", tmp_path / "moved.jsonl"
    bank.export_jsonl(target)
    target.rename(moved)
    target.symlink_to(moved)
    assert purge(bank, bank.list()[0]) == (1, [])
    assert target.is_symlink()
    assert queries_of(moved) == ["stays"]


def test_what_a_crash_left_beside_an_export_goes_with_the_purge(bank, tmp_path):
    bank.add([NewCase("goes"), NewCase("stays")])
    target = tmp_path / "out.jsonl"
    bank.export_jsonl(target)
    left = tmp_path / f".out.jsonl.{'0' * 32}.part"
    other = tmp_path / ".out.jsonl.mine.part"
    for path in (left, other):
        path.write_bytes(b"goes")
    assert purge(bank, strings=("goes",)) == (1, [])
    assert not left.exists()
    assert other.exists(), "not ours"
    target.unlink()
    left.write_bytes(b"goes")
    assert purge(bank, strings=("goes",)) == (0, [])
    assert not left.exists()


def test_rows_are_told_apart_as_far_as_they_can_be(tmp_path):
    path = tmp_path / "log.jsonl"
    row = {"run_id": "r", "query": "q", "case_id": 7, "case": "c", "plan": [1], "outcome": 1.0}
    path.write_text(json.dumps(row) + "\n5\n" + json.dumps({"query": "q", "case_id": "7"}))
    seen = []
    assert purge_export(path, "outcome_log", lambda row: bool(seen.append(row))).rows == 0
    assert seen[0].case == NewCase("c", plan=[1])
    assert (seen[0].case_id, seen[0].asked) == (7, "q")
    assert {"run_id", "r", "q", "7", "c", "1", "1.0"} <= set(seen[0].texts)
    assert seen[1] == ExportedRow(("5",))
    assert (seen[2].case, seen[2].case_id, seen[2].asked) == (None, None, "q")


def test_both_engines_export_alike(bank_location, tmp_path):
    with CaseBank.open(bank_location) as bank:
        ids = bank.add([NewCase(f"q{i}", tags=["t"] if i else []) for i in range(3)])
        invalidate(bank, ids[2])
        for format_ in FORMATS:
            target = tmp_path / f"out.{format_}"
            report = export(bank, format_, target, where=CaseFilter(tags=["t"]))
            assert (report.written, report.invalidated) == (1, 1)
            assert queries_of(target) == ["q1"]
        assert purge(bank, bank.get([ids[1]])[0]) == (2, [])
        assert [queries_of(tmp_path / f"out.{format_}") for format_ in FORMATS] == [[], []]


@pytest.mark.slow
def test_thousands_of_cases_pass_through_in_bounded_memory(bank, tmp_path):
    count, plan = 8_000, "x" * 1000  # one word: cutting words is not what is measured
    source = tmp_path / "in.jsonl"
    with source.open("w") as file:
        for i in range(count):
            file.write(json.dumps({"query": f"q{i}", "plan": f"{i} {plan}", "id": f"e{i}"}) + "\n")
    size = source.stat().st_size
    bank.add([NewCase("first")], namespace="first")
    # pyarrow loads half of itself at its first use, which is not what is measured.
    export(bank, "parquet", tmp_path / "first.parquet", "first")
    for format_ in FORMATS:
        target = tmp_path / f"out.{format_}"
        with bounded(size / 2) as watch:
            if format_ == "jsonl":
                bank.import_jsonl(source, batch_size=200, progress=watch)
            assert export(bank, format_, target, progress=watch).written == count
    assert bank.import_parquet(tmp_path / "out.parquet", namespace="copy").added == count
    assert queries_of(tmp_path / "out.jsonl") == [f"q{i}" for i in range(count)]
    assert [case.external_id for case in pages(bank, "copy")] == [f"e{i}" for i in range(count)]


@contextmanager
def bounded(limit):
    """Give a progress callback; what Python and Arrow hold together stays below the limit."""
    arrow, most = pa.total_allocated_bytes(), [0]
    tracemalloc.start()
    try:
        yield lambda *_: most.append(pa.total_allocated_bytes() - arrow)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak + max(most) < limit


def pages(bank, namespace):
    after = 0
    while page := bank.list(namespace=namespace, after=after, limit=1000):
        yield from page
        after = page[-1].id
