"""Several processes at one bank, and processes that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memory import CaseBank, NewCase
from memory.storage.bytescan import scan
from tests.memory.embedders import Digests

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys
from memory import CaseBank, NewCase
from tests.memory.embedders import Digests
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with CaseBank.open(path, projections=Digests()) as bank:
    for i in range(count):
        print(bank.add([NewCase(f"{name} {i} {part}") for part in "ab"])[0], flush=True)
"""

IMPORTER = """
import sys
from memory import CaseBank
from tests.memory.embedders import Digests
path, cases = sys.argv[1:3]
def acknowledged(done, total):
    print(done, bank.count(), flush=True)
with CaseBank.open(path, projections=Digests(pause_s=0.02)) as bank:
    report = bank.import_jsonl(cases, batch_size=5, progress=acknowledged)
    print(report.added, report.resumed, flush=True)
"""


@pytest.fixture
def start():
    """Start a script; whatever still runs at the end of the test is killed."""
    running = []

    def run(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def output_of(process):
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.split("\n")[:-1]


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(bank_location, start):
    # They also race to make the bank.
    writers = [start(WRITER, bank_location, name, 25) for name in ("one", "two", "three")]
    acknowledged = [int(line) for writer in writers for line in output_of(writer)]
    assert len(set(acknowledged)) == 75
    with CaseBank.open(bank_location, projections=Digests()) as bank:
        assert bank.count() == 150
        assert len(bank.get(acknowledged)) == 75
        found = {case.query for case in bank.list(limit=1000)}
        assert found == {
            f"{name} {i} {part}"
            for name in ("one", "two", "three")
            for i in range(25)
            for part in "ab"
        }
        assert len(bank.block("default")) == 150
        assert bank.embed_missing() == 0


@pytest.mark.parametrize("wait_s", [0.0, 0.02])
def test_a_killed_writer_loses_no_acknowledged_case_and_leaves_none_half_written(
    tmp_path, start, wait_s
):
    path = tmp_path / "bank.db"
    writer = start(WRITER, path, "w", 100_000)
    acknowledged = [int(writer.stdout.readline()) for _ in range(10)]
    time.sleep(wait_s)
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    with CaseBank.open(path, projections=Digests()) as bank:
        assert len(bank.get(acknowledged)) == len(acknowledged)
        count = bank.count()
        assert count % 2 == 0, "two cases were added together"
        assert len(bank.block("default")) == count


def test_an_import_that_was_killed_is_repeated_without_loss_or_repetition(tmp_path, start):
    path, cases = tmp_path / "bank.db", tmp_path / "cases.jsonl"
    rows = [{"query": f"q{i}", "id": f"e{i}"} for i in range(60)]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    importer = start(IMPORTER, path, cases)
    stored = 0
    while stored < 15:
        stored = int(importer.stdout.readline().split()[1])
    importer.kill()
    importer.wait()
    with CaseBank.open(path, projections=Digests()) as bank:
        after_kill = bank.count()
        assert 15 <= after_kill < 60
        assert after_kill % 5 == 0, "batches are whole"
    added, resumed = output_of(start(IMPORTER, path, cases))[-1].split()
    assert (int(added), int(resumed)) == (60 - after_kill, after_kill)
    with CaseBank.open(path, projections=Digests()) as bank:
        assert [case.query for case in bank.list(limit=1000)] == [row["query"] for row in rows]
        assert bank.import_jsonl(cases).already_imported


@pytest.mark.slow
def test_two_processes_that_import_one_file_add_every_case_once(bank_location, tmp_path, start):
    cases = tmp_path / "cases.jsonl"
    rows = [{"query": f"q{i}", "id": f"e{i}"} for i in range(40)]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    both = [start(IMPORTER, bank_location, cases) for _ in range(2)]
    for process in both:
        output_of(process)
    with CaseBank.open(bank_location) as bank:
        assert sorted(case.query for case in bank.list(limit=1000)) == sorted(
            row["query"] for row in rows
        )


@pytest.mark.parametrize("act", ["verify", "open again"])
def test_nothing_that_one_process_does_drops_the_locks_it_holds(tmp_path, act):
    """Closing any handle of a file drops all locks that a process has on it."""
    path = tmp_path / "bank.db"
    other = (
        "import sys\n"
        "from memory import BankConfig, CaseBank, NewCase\n"
        "from memory.errors import BankBusy\n"
        "config = BankConfig(busy_timeout_s=0.2)\n"
        "try:\n"
        "    CaseBank.open(sys.argv[1], config=config).add([NewCase('other')])\n"
        "except BankBusy:\n"
        "    print('had to wait')\n"
    )
    with CaseBank.open(path) as bank:
        bank.add([NewCase("a text that nobody asked for")])
        with bank._store.write():
            if act == "verify":
                scan([path, tmp_path / "bank.db-wal", tmp_path / "bank.db-shm"], [(0, b"nothing")])
            else:
                CaseBank.open(path).close()
            done = subprocess.run(
                [sys.executable, "-c", other, str(path)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            assert done.stdout.strip() == "had to wait"
