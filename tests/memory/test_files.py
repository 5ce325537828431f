"""What is opened: banks, and files that are something else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from memory import (
    BankBusy,
    BankConfig,
    BankUnavailable,
    CaseBank,
    ForeignBank,
    InvalidInput,
    NewCase,
)
from memory.storage.database.sqlite import driver

ROOT = Path(__file__).resolve().parents[2]

# The bank's own SQLite: a second library in one process would not see its locks, for the system
# keeps file locks by process (sqlite.org/howtocorrupt.html, 2.2.1).
sqlite3 = driver()


def execute(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        rows = [connection.execute(statement).fetchall() for statement in statements]
    connection.close()
    return rows


@pytest.mark.parametrize(
    "content", [b"hello", b'{"query": "a"}\n', b"\x00" * 100, b"SQLite format 3\x00" + b"x" * 500]
)
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ForeignBank, match=r"notes\.txt"):
        CaseBank.open(path)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("table", ["cases (id)", "meta (key, value)", "meta (other)"])
def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path, table):
    path = tmp_path / "other.db"
    execute(path, f"CREATE TABLE {table}")
    before = path.read_bytes()
    with pytest.raises(ForeignBank, match="something else"):
        CaseBank.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", ["3", "99", "one"])
def test_a_bank_of_a_newer_format_is_refused(tmp_path, version):
    path = tmp_path / "bank.db"
    CaseBank.open(path).close()
    execute(path, f"UPDATE meta SET value = '{version}' WHERE key = 'version'")
    with pytest.raises(ForeignBank, match=f"format {version}.*upgrade"):
        CaseBank.open(path)


def test_an_empty_file_becomes_a_bank(tmp_path):
    path = tmp_path / "bank.db"
    path.touch()
    with CaseBank.open(path) as bank:
        assert bank.count() == 0


def test_a_folder_is_not_a_bank(tmp_path):
    with pytest.raises(ForeignBank, match="is a folder"):
        CaseBank.open(tmp_path)


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BankUnavailable, match="check the path"):
        CaseBank.open(tmp_path / "file" / "bank.db")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "give a file"),
        ("a\x00b", "give a file"),
        (":memory:", "temporary folder"),
        ("sqlite://", "temporary folder"),
        ("mysql://user:secret@host/db", "mysql is not supported"),
        ("postgresql+asyncpg://user:secret@host/db", "write postgresql://"),
        ("sqlite:///a.db?mode=ro", "BankConfig"),
        ("no scheme://x", "URL"),
    ],
)
def test_a_location_that_is_no_file_is_refused(location, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        CaseBank.open(location)
    assert "secret" not in str(caught.value)


def test_a_relative_bank_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with CaseBank.open("bank.db") as bank:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        bank.add([NewCase("a")])
        assert bank.path == tmp_path / "bank.db"
    assert not (tmp_path / "elsewhere" / "bank.db").exists()


def test_the_database_is_set_up_for_safety(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        bank.add([NewCase("a secret that must go")])
        assert execute(tmp_path / "bank.db", "PRAGMA journal_mode") == [[("wal",)]]
        with bank._store.read() as connection:
            pragmas = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("foreign_keys", "secure_delete", "synchronous", "busy_timeout")
            }
        assert pragmas == {
            "foreign_keys": 1,
            "secure_delete": 1,
            "synchronous": 2,  # FULL
            "busy_timeout": 30_000,
        }


def test_a_writer_that_waited_in_vain_says_so_and_stores_nothing(tmp_path):
    path = tmp_path / "bank.db"
    with CaseBank.open(path, config=BankConfig(busy_timeout_s=0.1)) as bank:
        bank.add([NewCase("a")])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BankBusy, match=r"0\.1 s.*try again"):
            bank.add([NewCase("b")])
        assert [case.query for case in bank.list()] == ["a"], "readers do not wait"
        assert len(bank.block("default")) == 1
        other.execute("ROLLBACK")
        other.close()
        bank.add([NewCase("b")])
        assert bank.count() == 2


def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        bank.add([NewCase("kept")])
        with bank._store.read() as connection:
            # SQLite's own way to run out of space; it holds for the one pooled connection.
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        with pytest.raises(BankUnavailable, match=r"full.*nothing was written"):
            bank.add([NewCase("x" * 100_000)])
        assert [case.query for case in bank.list()] == ["kept"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_error(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(BankUnavailable, match="permissions"):
            CaseBank.open(tmp_path / "bank.db")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_a_damaged_bank_says_so(tmp_path):
    path = tmp_path / "bank.db"
    with CaseBank.open(path) as bank:
        bank.add([NewCase("x" * 2000) for _ in range(50)])
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(ForeignBank, match="damaged"):
        CaseBank.open(path)


def test_the_texts_of_cases_stay_out_of_errors_of_the_driver(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        bank.add([NewCase("a")])
        execute(bank.path, "DROP TABLE vectors", "DROP TABLE case_vectors", "DROP TABLE cases")
        with pytest.raises(Exception, match="cases") as caught:
            bank.add([NewCase("very private words")])
        assert "private" not in str(caught.value)


def test_a_forked_child_must_open_its_own_bank(tmp_path):
    # In a process of its own: forking this one, with all its threads, would be asking for trouble.
    code = """
import os, sys
from memory import BankClosed, CaseBank, NewCase
with CaseBank.open(sys.argv[1]) as bank:
    bank.add([NewCase("a")])
    child = os.fork()
    if child == 0:
        try:
            bank.count()
        except BankClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert bank.count() == 1
"""
    command = [sys.executable, "-c", code, str(tmp_path / "bank.db")]
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)


@pytest.mark.parametrize(
    "options", [{"busy_timeout_s": -1}, {"busy_timeout_s": float("nan")}, {"embed_batch": 0}]
)
def test_an_impossible_configuration_is_refused_by_name(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        BankConfig(**options)


def test_importing_memory_brings_neither_torch_nor_faiss_nor_the_retriever():
    code = (
        "import sys, memory\n"
        "heavy = {'torch', 'faiss', 'onnxruntime', 'retriever', 'service', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
