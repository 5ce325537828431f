"""What goes wrong around a bank: a clear error or no effect, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from memory import BankBusy, BankConfig, BankUnavailable, CaseBank, ForeignBank, NewCase
from memory.storage.database.postgres import LOCK_CLASS
from memory.storage.erasing import owed
from tests.memory.embedders import Digests

ROOT = Path(__file__).resolve().parents[2]

#: Adds until it fails; prints what was acknowledged, the error, and that reading goes on.
FILLER = """
import resource, sys
from memory import BankUnavailable, CaseBank, NewCase
path, limit = sys.argv[1], int(sys.argv[2])
with CaseBank.open(path) as bank:
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for i in range(10_000):
        try:
            (id_,) = bank.add([NewCase(f"number {i} " + "x" * 5000)])
        except BankUnavailable as error:
            print("error", error)
            break
        print("acknowledged", id_)
    print("count", bank.count(), len(bank.search_text("number", 10_000)))
"""


def is_server(location):
    return location.startswith("postgresql")


def add_until_full(path, limit=0):
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(path), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    ids = [int(value) for kind, value in lines if kind == "acknowledged"]
    (error,) = (value for kind, value in lines if kind == "error")
    (counts,) = (value for kind, value in lines if kind == "count")
    assert counts.split() == [str(len(ids))] * 2, "the bank can be read all the while"
    return ids, error


def check_whole(path, ids):
    """Everything acknowledged is there, and the bank works on."""
    with CaseBank.open(path) as bank:
        assert [case.id for case in bank.list(limit=10_000)] == ids
        with bank._store.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        assert bank.add([NewCase("afterwards")])[0] > max(ids)
        assert len(bank.search_text("number afterwards", 10_000)) == len(ids) + 1


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_an_error_that_loses_nothing(tmp_path):
    ids, error = add_until_full(tmp_path / "bank.db", limit=4_000_000)
    assert "nothing was written: check space and permissions" in error
    assert len(ids) > 20
    check_whole(tmp_path / "bank.db", ids)


@contextmanager
def small_disk(folder, size):
    """A file system of its own in a folder; skips the test where none can be made."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here (needs root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path):
    with small_disk(tmp_path / "disk", "3m") as disk:
        ids, error = add_until_full(disk / "bank.db")
        assert "full" in error
        assert "nothing was written" in error
        assert len(ids) > 20
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        check_whole(disk / "bank.db", ids)


def test_a_read_only_disk_is_an_error(tmp_path):
    with small_disk(tmp_path / "disk", "3m") as disk:
        with CaseBank.open(disk / "bank.db") as bank:
            bank.add([NewCase("kept")])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(BankUnavailable, match="permissions"):
            CaseBank.open(disk / "bank.db")
        with pytest.raises(BankUnavailable, match="permissions"):
            CaseBank.open(disk / "new.db")
        with pytest.raises(BankUnavailable, match="permissions"):
            CaseBank.open(disk / "folder" / "new.db")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        with CaseBank.open(disk / "bank.db") as bank:
            assert [case.query for case in bank.list()] == ["kept"]


def test_a_file_that_becomes_read_only_is_an_error_for_writers_alone(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        bank.add([NewCase("kept")])
        with bank._store.read() as connection:
            # SQLite's own switch, for root may write everywhere; the pool has one connection.
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(BankUnavailable, match="nothing was written"):
            bank.add([NewCase("lost?")])
        assert [case.query for case in bank.list()] == ["kept"]


def test_a_server_that_only_reads_is_an_error_for_writers_alone(postgres_url):
    with CaseBank.open(postgres_url) as bank:
        bank.add([NewCase("kept")])
    url = make_url(postgres_url)
    options = url.query["options"] + " -cdefault_transaction_read_only=on"
    reading = url.update_query_dict({"options": options}).render_as_string(hide_password=False)
    with CaseBank.open(reading) as bank:
        with pytest.raises(BankUnavailable, match="read-only"):
            bank.add([NewCase("lost?")])
        assert [case.query for case in bank.list()] == ["kept"]


@contextmanager
def other_writer(bank):
    """Another program that holds the bank's write lock."""
    with bank._store.database.engine.connect().execution_options(precedent_raw=True) as other:
        if other.dialect.name == "postgresql":
            lock = text("SELECT pg_advisory_xact_lock(:kind, hashtext(current_schema()))")
            other.execute(lock, {"kind": LOCK_CLASS})
        else:
            other.exec_driver_sql("COMMIT")
            other.exec_driver_sql("BEGIN IMMEDIATE")
        yield


def test_a_writer_waits_a_bounded_time_and_a_reader_not_at_all(bank_location):
    config = BankConfig(busy_timeout_s=0.3)
    with CaseBank.open(bank_location, config=config) as bank:
        bank.add([NewCase("kept")])
        with other_writer(bank):
            begun = time.monotonic()
            with pytest.raises(BankBusy, match=r"0\.3 s; nothing was written: try again"):
                bank.add([NewCase("late")])
            assert 0.2 < time.monotonic() - begun < 5
            begun = time.monotonic()
            assert [case.query for case in bank.list()] == ["kept"]
            assert len(bank.search_text("kept")) == 1
            assert time.monotonic() - begun < 0.2
        bank.add([NewCase("late")])
        assert bank.count() == 2


def test_a_writer_that_waits_gets_its_turn(bank_location):
    with CaseBank.open(bank_location, config=BankConfig(busy_timeout_s=20)) as bank:
        bank.add([NewCase("first")])
        added = []
        with other_writer(bank):
            thread = threading.Thread(target=lambda: added.extend(bank.add([NewCase("second")])))
            thread.start()
            time.sleep(0.2)
            assert added == []
        thread.join(timeout=20)
        assert added == [2]


def test_a_clock_that_runs_backwards_changes_nothing_but_times(bank_location, monkeypatch):
    clock = [1_800_000_000_000_000_000]

    def backwards():
        clock[0] -= 3_600_000_000_000
        return clock[0]

    with CaseBank.open(bank_location, projections=Digests()) as bank:
        monkeypatch.setattr(time, "time_ns", backwards)
        ids = [bank.add([NewCase(f"tick {i}")])[0] for i in range(5)]
        assert ids == sorted(ids)
        (again,) = bank.add([NewCase("once")], idempotency_key="k")
        assert bank.add([NewCase("once")], idempotency_key="k") == [again], "still known"
        version = bank.block().version
        bank.update(ids[0], {"query": "tock"}, if_version=1)
        block = bank.block()
        assert block.version > version, "order is by change, never by the clock"
        assert sorted(block.ids[block.live]) == [*ids, again]
        stored = bank.list()
        assert [case.query for case in stored][:2] == ["tock", "tick 1"]
        assert stored[1].stored_at > stored[2].stored_at
    monkeypatch.undo()
    with CaseBank.open(bank_location, projections=Digests()) as bank:
        assert [case.id for case in bank.list()] == [*ids, again]
        assert bank.add([NewCase("now")])[0] > again


def test_a_connection_lost_between_two_calls_is_replaced(postgres_url):
    with CaseBank.open(postgres_url) as bank:
        bank.add([NewCase("before")])
        disconnect(postgres_url)
        assert [case.query for case in bank.list()] == ["before"]
        disconnect(postgres_url)
        bank.add([NewCase("after")])
        assert bank.count() == 2


def test_a_connection_lost_in_the_middle_stores_nothing(postgres_url):
    class Cut(Digests):
        """The server ends our sessions while a vector is computed inside the transaction."""

        def embed(self, texts):
            if texts == ["merged\nplan"]:
                disconnect(postgres_url)
            return super().embed(texts)

    with CaseBank.open(postgres_url, projections=Cut()) as bank:
        bank.add([NewCase("merged", plan="plan")], wait=False)
        with pytest.raises(BankUnavailable, match="this is not: check the server"):
            bank.add([NewCase("merged", plan="plan", source="new")], on_duplicate="merge")
        assert [(case.query, case.source) for case in bank.list()] == [("merged", None)]


def disconnect(url):
    """End every other session of the server, as an administrator may."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> "
            "pg_backend_pid() AND backend_type = 'client backend'"
        )


def test_a_server_that_is_not_there_is_an_error_without_the_password():
    with pytest.raises(BankUnavailable, match="check the server") as caught:
        CaseBank.open("postgresql://user:hushhush@127.0.0.1:9/db?connect_timeout=2")
    assert "hushhush" not in str(caught.value)


def test_a_schema_of_another_program_is_refused_and_left_alone(postgres_url):
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE cases (id integer)")
        with pytest.raises(ForeignBank, match="something else"):
            CaseBank.open(postgres_url)
        count = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()"
        assert connection.execute(count).fetchone() == (1,)


def bytes_beside(path):
    return b"".join(p.read_bytes() for p in sorted(path.parent.glob(f"{path.name}*")))


def test_a_reader_delays_the_erasing_and_the_next_write_makes_up_for_it(tmp_path):
    path = tmp_path / "bank.db"
    with CaseBank.open(path) as bank:
        (first, other) = bank.add([NewCase("quaggazebra"), NewCase("other")])
        with bank._store.read() as reader:
            assert reader.exec_driver_sql("SELECT count(*) FROM cases").scalar() == 2
            begun = time.monotonic()
            bank.update(first, {"query": "replaced"})
            assert time.monotonic() - begun < 2, "an update waits for nobody"
            state = bank.erase(timeout_s=0.1)
            assert state.state == "pending"
            assert "reader" in state.reason
            assert b"quaggazebra" in bytes_beside(path)
        bank.update(other, {"outcome": 1.0})
        assert b"quaggazebra" not in bytes_beside(path)
        assert bank.erase().done


@pytest.mark.slow
def test_bytes_are_erased_although_others_read_and_write_all_the_time(tmp_path):
    path = tmp_path / "bank.db"
    stop, errors = threading.Event(), []

    def repeat(task):
        try:
            while not stop.is_set():
                task()
        except Exception as error:
            errors.append(error)

    with CaseBank.open(path) as bank:
        (first,) = bank.add([NewCase("quaggazebra")])
        tasks = [lambda: bank.add([NewCase("more")]), lambda: bank.search_text("more", 3)] * 2
        threads = [threading.Thread(target=repeat, args=(task,)) for task in tasks]
        for thread in threads:
            thread.start()
        try:
            bank.update(first, {"query": "replaced"})
            assert bank.erase(timeout_s=30).done
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert errors == []
        assert b"quaggazebra" not in bytes_beside(path)


def test_a_bank_that_owes_is_erased_when_it_is_opened(tmp_path):
    path = tmp_path / "bank.db"
    with CaseBank.open(path) as bank:
        (first,) = bank.add([NewCase("quaggazebra")])
        with bank._store.read() as reader:
            assert reader.exec_driver_sql("SELECT count(*) FROM cases").scalar() == 1
            bank.update(first, {"query": "replaced"})
            # Copied while it owes: as if the process had died right here.
            copy = tmp_path / "copy"
            copy.mkdir()
            for file in path.parent.glob("bank.db*"):
                (copy / file.name).write_bytes(file.read_bytes())
    assert b"quaggazebra" in bytes_beside(copy / "bank.db")
    with CaseBank.open(copy / "bank.db") as bank:
        with bank._store.read() as connection:
            assert owed(connection) is None
        assert b"quaggazebra" not in bytes_beside(copy / "bank.db")


def test_erasing_deeply_writes_the_file_anew(tmp_path):
    path = tmp_path / "bank.db"
    with CaseBank.open(path) as bank:
        long = [NewCase(f"x{i} " * 500, external_id=str(i)) for i in range(200)]
        bank.add(long)
        bank.add([NewCase("short", external_id=case.external_id) for case in long], upsert=True)
        before = path.stat().st_size
        seen = []
        assert bank.erase(deep=True, progress=lambda *step: seen.append(step)).done
        assert seen == [("rewrite the file", 0, 2), ("empty the log", 1, 2)]
        assert path.stat().st_size < before / 2
        assert bank.count() == 200


def test_a_debt_that_cannot_be_paid_is_no_error_of_the_write(tmp_path, monkeypatch):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        (first,) = bank.add([NewCase("a")])

        def failing(timeout_s):
            raise BankUnavailable("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(bank._store.database, "erase", failing)
            assert bank.update(first, {"query": "b"}).query == "b"
        with bank._store.read() as connection:
            assert owed(connection) is not None
        assert bank.erase().done


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(BankUnavailable, match="permissions"):
            CaseBank.open(tmp_path / "bank.db")
    finally:
        tmp_path.chmod(0o700)
