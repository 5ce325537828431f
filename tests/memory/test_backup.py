"""Backup and restore: the same bank again, and nothing in it that was forgotten since."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import memory.backups.restoring
from memory import (
    BankBusy,
    BankConfig,
    ByIds,
    BySource,
    ByStrings,
    CaseBank,
    CaseFilter,
    DataError,
    ForeignBank,
    InvalidInput,
    NewCase,
    NotFound,
    Replacement,
    Shown,
)
from memory.backups.since import GAP
from tests.memory.embedders import Digests

PHONE = "415-555-0186"
ROUTES = [("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite")]


@pytest.fixture
def place(request, tmp_path, postgres_server_url):
    """A function: a new location for a bank on an engine."""
    from tests.postgres import fresh_schema

    numbers = iter(range(100))
    schemas = []

    def make(engine):
        if engine == "sqlite":
            return str(tmp_path / f"place{next(numbers)}" / "bank.db")
        schema = fresh_schema(postgres_server_url)
        schemas.append(schema)
        return schema.__enter__()

    yield make
    for schema in schemas:
        schema.__exit__(None, None, None)


@pytest.fixture
def saved(tmp_path):
    return tmp_path / "saved" / "backup.db"


def open_bank(location, **options):
    return CaseBank.open(location, projections=Digests(), **options)


def filled(location):
    """A bank with everything in it, and what it had."""
    with open_bank(location) as bank:
        bank.add([NewCase("to be freed")])
        bank.forget(ByIds((1,)))
        bank.add(
            [
                NewCase(f"my number is {PHONE}", external_id="n", tags=("private",), source="chat"),
                NewCase("the user can be reached", kind="fact", derived_from=("n",), outcome=0.5),
                NewCase("boil the kettle first", plan=["fill", "boil"], outcome=1.0),
            ]
        )
        bank.add([NewCase("a tenant's word")], namespace="tenant")
        bank.runs.log("how do I make tea?", [Shown(4, 1, 0.5, 0.25)], policy="exact", run_id="r1")
        bank.runs.record_outcome("r1", 1.0)
        bank.runs.log(f"whose number is {PHONE}?", [], policy="exact", run_id="r2")
        bank.schedule.add(ByStrings(("tea",)), "2099-01-01T00:00:00Z")
        bank.forget(ByIds((3,)), mode="invalidate", actor="ann")
        return contents(bank)


def contents(bank):
    everything = CaseFilter(invalidated=True)
    return {
        "uid": bank.uid,
        "keys": bank._store.keys,
        "cases": {n: bank.list(namespace=n, where=everything) for n in bank.namespaces()},
        "runs": {n: bank.runs.list(namespace=n) for n in bank.namespaces()},
        "receipts": [r.uid for r in bank.receipts()],
        "waiting": bank.schedule.waiting(),
        "arrays": {n: arrays(bank.block(n)) for n in bank.namespaces()},
        "found": bank.search_text("kettle number word", 10),
    }


def arrays(block):
    rows = np.flatnonzero(block.live)
    vectors = np.concatenate(list(block.projections or [np.zeros((0, 3))]))[rows]
    order = np.argsort(block.ids[rows])
    return block.ids[rows][order].tolist(), vectors[order].tolist()


@pytest.mark.parametrize(("here", "there"), ROUTES)
def test_a_restored_bank_is_the_bank_that_was_backed_up(place, saved, here, there):
    first, second = place(here), place(there)
    had = filled(first)
    with open_bank(first) as bank:
        assert bank.backup(saved) == 4
    seen = Digests()
    CaseBank.restore(saved, second)
    with CaseBank.open(second, projections=seen) as bank:
        got = contents(bank)
        assert seen.seen == []  # the vectors came along
    found = [{id_ for id_, _ in hits} for hits in (got.pop("found"), had.pop("found"))]
    assert got == had
    assert found == [{2, 4}, {2, 4}]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_bank_is_put_back_in_its_own_place_and_goes_on_counting(place, saved, engine):
    location = place(engine)
    had = filled(location)
    with open_bank(location) as bank:
        bank.backup(saved)
        used = bank.add([NewCase("told after the backup"), NewCase("and this")])
        bank.add([NewCase("a new tenant")], namespace="later")
        bank.runs.log("later", [], policy="exact", run_id="r3")
        numbers = bank.runs.get("r3").id, bank.block().version
    report = CaseBank.restore(saved, location)
    assert (report.cases, report.forgotten, report.receipts) == (4, 0, 0)
    with open_bank(location) as bank:
        assert [case.id for case in bank.list(where=CaseFilter(invalidated=True))] == [2, 3, 4]
        assert [r.uid for r in bank.receipts()] == had["receipts"]
        # Ids: 1 was freed before the backup, 6 to 8 were used after it.
        assert bank.add([NewCase("next")]) == [max(used) + 2]
        bank.runs.log("next", [], policy="exact", run_id="r4")
        assert bank.runs.get("r4").id == numbers[0] + 1
        assert bank.block().version > numbers[1]


@pytest.mark.parametrize(("here", "there"), [*ROUTES, ("postgres", "postgres")])
def test_where_the_bank_is_lost_ids_go_on_after_a_gap(place, saved, here, there):
    first = place(here)
    filled(first)
    with open_bank(first) as bank:
        bank.backup(saved)
        bank.add([NewCase("used, and lost with the bank")])
    second = place(there)
    CaseBank.restore(saved, second)
    with open_bank(second) as bank:
        (new,) = bank.add([NewCase("next")])
        assert new == 5 + GAP + 1
        assert new < 2**53
        assert bank.block().version > GAP


def forget_everything_about_the_number(bank):
    return [
        bank.forget(ByStrings((PHONE,)), actor="ann"),
        bank.forget(ByStrings(("tenant's word",)), namespace="tenant"),
    ]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_what_was_forgotten_since_is_forgotten_again_where_the_bank_is_in_place(
    place, saved, engine
):
    location = place(engine)
    filled(location)
    with open_bank(location) as bank:
        bank.backup(saved)
        receipts = forget_everything_about_the_number(bank)
        assert receipts[0].counts["runs"] == 1
        log = [receipt.uid for receipt in bank.receipts()]
    report = CaseBank.restore(saved, location)
    assert report.receipts == 2
    assert report.forgotten == 3
    with open_bank(location) as bank:
        assert [r.uid for r in bank.receipts()] == log
        assert bank.receipts()[-2].ids == receipts[0].ids
        assert bank.search_text(PHONE) == []
        assert bank.search_text("word", namespace="tenant") == []
        assert [case.id for case in bank.list()] == [4]
        # The run asked for the number in other words than any case: no receipt holds them.
        assert [run.run_id for run in bank.runs.list()] == ["r1"]
        assert arrays(bank.block())[0] == [4]
        if engine == "sqlite":
            assert bank.verify([PHONE, "the user can be reached"]).clean
        for receipt in receipts:
            assert bank.verify(receipt).findings == ()


@pytest.mark.parametrize(("here", "there"), ROUTES)
def test_what_was_forgotten_since_is_forgotten_again_from_a_file_of_receipts(
    place, saved, tmp_path, here, there
):
    first, second = place(here), place(there)
    filled(first)
    with open_bank(first) as bank:
        bank.backup(saved)
        forget_everything_about_the_number(bank)
        assert bank.export_receipts(tmp_path / "receipts.jsonl") == 4
    assert PHONE not in (tmp_path / "receipts.jsonl").read_text()
    report = CaseBank.restore(saved, second, receipts=tmp_path / "receipts.jsonl")
    assert report.forgotten == 3
    with open_bank(second) as bank:
        assert bank.search_text(PHONE) == []
        assert [case.id for case in bank.list()] == [4]
        assert len(bank.receipts()) == 4
        # Nobody knows the string any more, but the run quotes what the case said.
        if there == "sqlite":
            assert bank.verify(["the user can be reached"]).clean


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_reimport_of_forgotten_records_is_reported_after_a_restore(
    place, saved, tmp_path, engine, lost
):
    location = place(engine)
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"query": "old secret"}\n{"query": "new secret"}\n{"query": "plain"}\n')
    with open_bank(location) as bank:
        bank.import_jsonl(cases)
        bank.forget(ByStrings(("old secret",)))
        bank.backup(saved)
        bank.forget(ByStrings(("new secret",)))
        # A namespace that the backup has never heard of keeps its memory of what was forgotten.
        bank.add([NewCase("told later")], namespace="later")
        bank.forget(ByStrings(("told later",)), namespace="later")
        bank.export_receipts(tmp_path / "receipts.jsonl")
    if lost:
        location = place(engine)
    CaseBank.restore(saved, location, receipts=tmp_path / "receipts.jsonl" if lost else None)
    later = tmp_path / "later.jsonl"
    later.write_text('{"query": "Told  LATER"}\n')
    with open_bank(location) as bank:
        report = bank.import_jsonl(cases, again=True)
        assert report.forgotten == (1, 2)
        assert report.added == 1
        assert bank.import_jsonl(later, namespace="later").forgotten == (1,)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_every_kind_of_removal_is_applied_again(place, saved, tmp_path, engine):
    from memory import Budget

    location = place(engine)
    with open_bank(location) as bank:
        bank.add([NewCase("ages ago", created_at="1999-01-01T00:00:00Z"), NewCase("kept")])
        bank.add([NewCase("kept for history"), NewCase("an empty shell", outcome=0.0)])
        bank.add([NewCase("gone with its tenant")], namespace="tenant")
        bank.runs.log("only a run", [], policy="exact", namespace="shell")
        bank.backup(saved)
        bank.retire("2000-01-01T00:00:00Z")
        bank.forget(ByIds((3,)), mode="invalidate")
        bank.compact(Budget(cases=1), "best_outcome")
        bank.delete_namespace("tenant")
        bank.delete_namespace("shell")
        bank.add([NewCase("a new life")], namespace="tenant")
        bank.export_receipts(tmp_path / "receipts.jsonl")
    for receipts in (None, tmp_path / "receipts.jsonl"):
        if receipts is not None:
            location = place(engine)
        report = CaseBank.restore(saved, location, receipts=receipts)
        assert report.forgotten == 4
        with open_bank(location) as bank:
            assert [case.query for case in bank.list()] == ["kept"]
            (history,) = bank.list(where=CaseFilter(invalidated=True))[1:]
            assert history.query == "kept for history"
            assert "shell" not in bank.namespaces()
            assert bank.list(namespace="tenant") == []
            assert bank.runs.count("shell") == 0


def test_an_update_is_kept_where_something_was_purged_since(bank_location, saved):
    """Whether the words it replaced were forgotten elsewhere, nobody could tell any more."""
    with open_bank(bank_location) as bank:
        ids = bank.add(
            [
                NewCase(f"call {PHONE}", external_id="a"),
                NewCase("second", external_id="b"),
                NewCase(f"once more: {PHONE}"),
            ]
        )
        bank.add([NewCase("as it was")], namespace="other")
        bank.backup(saved)
        bank.update(ids[0], {"query": "call the office", "external_id": "c"})
        bank.update(ids[1], {"external_id": "a"})
        bank.update(4, {"query": "as it is"}, namespace="other")
        assert bank.forget(ByStrings((PHONE,))).ids == (ids[2],)
    report = CaseBank.restore(saved, bank_location)
    assert (report.forgotten, report.updates) == (1, 2)
    with open_bank(bank_location) as bank:
        first, second = bank.list()
        assert (first.query, first.external_id, first.version) == ("call the office", "c", 2)
        assert second.external_id == "a"
        assert bank.search_text(PHONE) == []
        assert arrays(bank.block())[0] == ids[:2]
        # In a namespace that nothing was purged from, a restore takes an update back.
        assert bank.get([4], namespace="other")[0].query == "as it was"


def test_waiting_requests_and_known_exports_are_those_of_the_bank_in_place(
    bank_location, saved, tmp_path
):
    with open_bank(bank_location) as bank:
        bank.add([NewCase("old value"), NewCase(f"number {PHONE}")])
        done = Replacement(old="old value", new=NewCase("new value"))
        bank.schedule.add(done, "2020-01-01T00:00:00Z")
        bank.backup(saved)
        bank.schedule.run()
        bank.schedule.add(ByStrings((PHONE,)), "2099-01-01T00:00:00Z", namespace="later")
        bank.export_jsonl(tmp_path / "out.jsonl")
    CaseBank.restore(saved, bank_location)
    with open_bank(bank_location) as bank:
        assert [due.namespace for due in bank.schedule.waiting()] == ["later"]
        assert bank.schedule.run() == []
        assert [case.query for case in bank.list()] == [f"number {PHONE}"]
        assert bank.forget(ByStrings((PHONE,))).counts["exports"] == 1
    assert PHONE not in (tmp_path / "out.jsonl").read_text()


def test_the_backup_is_unchanged_by_a_restore_and_can_be_restored_again(place, saved):
    filled(first := place("sqlite"))
    with open_bank(first) as bank:
        bank.backup(saved)
        forget_everything_about_the_number(bank)
    before = saved.read_bytes()
    CaseBank.restore(saved, first)
    CaseBank.restore(saved, first)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
    assert {p.name for p in Path(first).parent.iterdir()} <= {"bank.db", "bank.db.snapshots"}


def test_a_backup_holds_no_byte_of_what_was_forgotten_before_it(bank_location, saved):
    filled(bank_location)
    with open_bank(bank_location) as bank:
        bank.forget(ByStrings((PHONE,)))
        bank.backup(saved)
    content = saved.read_bytes()
    assert PHONE.encode() not in content
    assert b"kettle" in content


def test_a_backup_never_overwrites_and_leaves_no_draft(bank_location, saved):
    filled(bank_location)
    saved.parent.mkdir()
    saved.write_text("precious")
    with open_bank(bank_location) as bank:
        with pytest.raises(InvalidInput, match="never overwrites"):
            bank.backup(saved)
        with pytest.raises(ZeroDivisionError):
            bank.backup(saved.with_name("other.db"), progress=lambda done, total: 1 // 0)
    assert saved.read_text() == "precious"
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_restore_onto_another_bank_is_refused(bank_location, saved, tmp_path):
    filled(bank_location)
    other = tmp_path / "other.db"
    with open_bank(other) as bank:
        bank.add([NewCase("mine")])
        bank.export_receipts(tmp_path / "foreign.jsonl")
        bank.forget(ByIds((1,)))
        bank.export_receipts(tmp_path / "foreign.jsonl")
    with open_bank(bank_location) as bank:
        bank.backup(saved)
        had = contents(bank)
    with pytest.raises(ForeignBank, match="another bank"):
        CaseBank.restore(saved, other)
    with pytest.raises(ForeignBank, match="receipts are those of another bank"):
        CaseBank.restore(saved, bank_location, receipts=tmp_path / "foreign.jsonl")
    with open_bank(bank_location) as bank:
        assert contents(bank) == had


def test_an_empty_bank_in_the_place_is_replaced(bank_location, saved, tmp_path):
    filled(first := tmp_path / "first.db")
    with open_bank(first) as bank:
        bank.backup(saved)
    with open_bank(bank_location) as bank:
        empty = bank.uid
    CaseBank.restore(saved, bank_location)
    with open_bank(bank_location) as bank:
        assert bank.uid != empty
        assert bank.count() == 2


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        ("sqlite", "forget_since"),
        ("sqlite", "only_file"),
        ("postgres", "forget_since"),
        ("postgres", "copy_bank"),
    ],
)
def test_a_crash_in_the_middle_leaves_the_old_bank(place, saved, monkeypatch, engine, where):
    location = place(engine)
    filled(location)
    with open_bank(location) as bank:
        bank.backup(saved)
        bank.add([NewCase("newer than the backup")])
        had = contents(bank)

    class Crash(BaseException):
        pass

    def crash(*_, **__):
        raise Crash

    monkeypatch.setattr(memory.backups.restoring, where, crash)
    with pytest.raises(Crash):
        CaseBank.restore(saved, location)
    with open_bank(location) as bank:
        assert contents(bank) == had


def test_what_a_killed_restore_left_is_found_by_verify_and_swept_by_the_next_one(place, saved):
    filled(location := place("sqlite"))
    with open_bank(location) as bank:
        bank.backup(saved)
        bank.forget(ByStrings((PHONE,)))
    left = Path(location + ".restore-0123")
    shutil.copy(saved, left)
    with open_bank(location) as bank:
        assert {f.where for f in bank.verify([PHONE]).findings} == {left.name}
    CaseBank.restore(saved, location)
    assert not left.exists()
    with open_bank(location) as bank:
        assert bank.verify([PHONE]).clean


def test_a_bank_that_is_open_elsewhere_is_not_replaced(place, saved):
    filled(location := place("sqlite"))
    with open_bank(location) as bank:
        bank.backup(saved)
        with pytest.raises(BankBusy, match="open elsewhere"):
            CaseBank.restore(saved, location)
        bank.add([NewCase("still mine")])
    with open_bank(location) as bank:
        assert bank.search_text("still mine")


def test_snapshots_of_the_replaced_bank_go_with_it(place, saved):
    config = BankConfig(snapshot_rows=1)
    filled(location := place("sqlite"))
    with open_bank(location, config=config) as bank:
        bank.backup(saved)
        bank.add([NewCase("in the snapshot only")])
        bank.block()
    folder = Path(location + ".snapshots")
    assert list(folder.glob("*.block"))
    CaseBank.restore(saved, location, config=config)
    assert not list(folder.glob("*.block"))
    with open_bank(location, config=config) as bank:
        assert arrays(bank.block())[0] == [2, 4]


def test_a_follower_of_a_server_sees_the_restored_bank(postgres_url, saved):
    with open_bank(postgres_url) as bank, open_bank(postgres_url) as follower:
        ids = bank.add([NewCase("one"), NewCase("two")])
        bank.backup(saved)
        bank.update(ids[0], {"query": "another one"})
        bank.forget(ByIds((ids[1],)))
        bank.add([NewCase("three")])
        before = arrays(follower.block())
        assert before[0] == [1, 3]
        CaseBank.restore(saved, postgres_url)
        with open_bank(postgres_url) as fresh:
            assert arrays(follower.block()) == arrays(fresh.block())
        assert arrays(follower.block())[0] == [1]


def test_bytes_that_a_server_owes_stay_owed_after_a_restore(postgres_url, saved):
    with open_bank(postgres_url) as bank:
        bank.add([NewCase(PHONE), NewCase("stays")])
        bank.backup(saved)
        receipt = bank.forget(ByStrings((PHONE,)))
        assert receipt.erased == "pending"
    CaseBank.restore(saved, postgres_url)
    with open_bank(postgres_url) as bank:
        assert [r.erased for r in bank.receipts()] == ["pending"]
        assert not bank.verify(bank.receipts()[0]).clean


def test_a_file_that_is_no_sound_backup_is_refused(bank_location, saved, tmp_path):
    filled(bank_location)
    with open_bank(bank_location) as bank:
        bank.backup(saved)
        had = contents(bank)
    whole = saved.read_bytes()
    empty, cut, words = (tmp_path / name for name in ("empty.db", "cut.db", "words.db"))
    empty.write_bytes(b"")
    cut.write_bytes(whole[: len(whole) // 2])
    words.write_text("not a database at all")
    for bad in (empty, cut, words):
        with pytest.raises(ForeignBank, match=bad.name):
            CaseBank.restore(bad, bank_location)
        with pytest.raises(ForeignBank, match=bad.name):
            CaseBank.restore(bad, tmp_path / "nowhere.db")
    with pytest.raises(InvalidInput, match="name a backup"):
        CaseBank.restore(tmp_path / "missing.db", bank_location)
    assert not (tmp_path / "nowhere.db").exists()
    with open_bank(bank_location) as bank:
        assert contents(bank) == had


def test_a_bank_in_use_is_no_backup(place, tmp_path):
    filled(location := place("sqlite"))
    with open_bank(location) as bank:
        bank.add([NewCase("in the log only")])
        with pytest.raises(InvalidInput, match="in use"):
            CaseBank.restore(location, tmp_path / "copy.db")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"uid": "x"}', '{"bank": "b", "namespace_id": null, "uid": "x"}', b"\xff"]
)
def test_a_bad_line_among_receipts_is_named(place, saved, tmp_path, line):
    filled(location := place("sqlite"))
    with open_bank(location) as bank:
        bank.backup(saved)
        bank.export_receipts(tmp_path / "receipts.jsonl")
    good = (tmp_path / "receipts.jsonl").read_bytes()
    bad = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "receipts.jsonl").write_bytes(good + bad + b"\n")
    with pytest.raises(DataError, match="line 3"):
        CaseBank.restore(saved, location, receipts=tmp_path / "receipts.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        CaseBank.restore(saved, location, receipts=tmp_path / "none.jsonl")


def test_receipts_that_cannot_be_written_say_so(place, tmp_path):
    from memory import BankUnavailable

    filled(location := place("sqlite"))
    (tmp_path / "file").write_text("")
    with open_bank(location) as bank, pytest.raises(BankUnavailable, match="cannot be written"):
        bank.export_receipts(tmp_path / "file" / "receipts.jsonl")


def test_a_backup_under_writes_is_one_consistent_snapshot(bank_location, saved):
    """Every writer stores a pair at a time: a backup must hold both of it or neither."""
    stop = threading.Event()
    failures = []

    def write(bank):
        number = 0
        while not stop.is_set():
            try:
                pair = [NewCase(f"pair {number}", tags=("pair",)), NewCase(f"twin {number}")]
                ids = bank.add(pair)
                bank.runs.log(
                    f"run {number}", [Shown(i, r) for r, i in enumerate(ids, 1)], policy="x"
                )
                if number % 3 == 0:
                    bank.forget(ByIds((ids[0], ids[1])))
            except Exception as error:
                failures.append(error)
                return
            number += 1

    with open_bank(bank_location) as bank:
        bank.add([NewCase(f"old {i}") for i in range(300)])
        thread = threading.Thread(target=write, args=(bank,))
        thread.start()
        try:
            while bank.count() < 306 and not failures:
                pass
            counts = [bank.backup(saved.with_name(f"{i}.db")) for i in range(3)]
        finally:
            stop.set()
            thread.join()
    assert failures == []
    for number, count in enumerate(counts):
        place = saved.with_name(f"restored{number}.db")
        CaseBank.restore(saved.with_name(f"{number}.db"), place)
        with open_bank(place) as bank:
            cases = bank.list(limit=10_000)
            assert len(cases) == count
            pairs = {c.query.split()[1] for c in cases if c.query.startswith("pair")}
            twins = {c.query.split()[1] for c in cases if c.query.startswith("twin")}
            assert pairs == twins
            assert {id_ for id_, _ in bank.search_text("pair", 10_000)} == {
                c.id for c in cases if c.query.startswith("pair")
            }
            assert arrays(bank.block())[0] == [c.id for c in cases]


def test_progress_is_told_to_the_end(bank_location, saved):
    filled(bank_location)
    steps = []
    with open_bank(bank_location) as bank:
        bank.backup(saved, progress=lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


def test_forgetting_by_source_after_a_backup_stays_forgotten_through_two_restores(place, saved):
    location = place("sqlite")
    with open_bank(location) as bank:
        bank.add([NewCase("from the chat", source="chat"), NewCase("from the desk", source="desk")])
        bank.backup(saved)
        bank.forget(BySource("chat"))
    for _ in range(2):
        CaseBank.restore(saved, location)
        with open_bank(location) as bank:
            assert [case.source for case in bank.list()] == ["desk"]
            assert len(bank.receipts()) == 1
            with pytest.raises(NotFound):
                bank.get([1])


def test_exported_receipts_are_plain_json_lines(place, tmp_path):
    filled(location := place("sqlite"))
    with open_bank(location) as bank:
        bank.export_receipts(tmp_path / "receipts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert [row["mode"] for row in rows] == ["purge", "invalidate"]
    assert {row["actor"] for row in rows} == {None, "ann"}
