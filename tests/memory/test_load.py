"""Eight writers and eight readers at one bank: no error, no lost update, searches stay quick.

Prints the p99 of a search under writes (`pytest -s`). `PRECEDENT_LOAD_SECONDS` is how long; 4 by
default, 30 for a figure to quote.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from memory import CaseBank, NewCase, VersionConflict
from tests.memory.embedders import Digests

ROOT = Path(__file__).resolve().parents[2]
SHARED = 8  # cases that every writer counts up
PROCESSES = 2
EACH = 4  # writers, and readers, of a process

WORKER = """
import sys
from tests.memory.test_load import work
work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
"""


def write(bank, rng, until, tally):
    """Count shared cases up, each time for the version that was read, and store new ones."""
    while time.monotonic() < until:
        id_ = rng.randrange(SHARED) + 1
        while True:
            (case,) = bank.get([id_])
            changes = {"metadata": {"n": case.metadata["n"] + 1}}
            try:
                bank.update(id_, changes, if_version=case.version)
            except VersionConflict:
                tally["conflicts"] += 1
            else:
                tally["counted"] += 1
                break
        if rng.random() < 0.3:
            bank.add([NewCase(f"harbour number {rng.random()}")])
            tally["added"] += 1


def read(bank, rng, until, tally):
    """Search by words and by a scan of the vectors."""
    query = np.ones(3, np.float32)
    seen = 0
    while time.monotonic() < until:
        begun = time.monotonic()
        hits = bank.search_text(rng.choice(["harbour", "shared", "number"]), 5)
        tally["text"].append(time.monotonic() - begun)
        assert hits
        begun = time.monotonic()
        block = bank.block()
        chunks = block.projections if isinstance(block.projections, tuple) else [block.projections]
        scores = np.concatenate([chunk @ query for chunk in chunks])[block.live]
        assert len(scores) >= SHARED
        np.argmax(scores)
        tally["scan"].append(time.monotonic() - begun)
        assert block.version >= seen, "time does not run backwards"
        seen = block.version


def work(location, seconds, seed):
    """One process of the load: prints what its threads did."""
    tallies, errors, threads = [], [], []
    with CaseBank.open(location, projections=Digests()) as bank:
        tell("ready")
        sys.stdin.readline()
        until = time.monotonic() + seconds

        def guarded(task, rng, tally):
            try:
                task(bank, rng, until, tally)
            except BaseException as error:
                errors.append(f"{task.__name__}: {type(error).__name__}: {error}")

        for number in range(EACH):
            for task in (write, read):
                tally = {"conflicts": 0, "counted": 0, "added": 0, "text": [], "scan": []}
                tallies.append(tally)
                rng = random.Random(100 * seed + number)
                threads.append(threading.Thread(target=guarded, args=(task, rng, tally)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tell(json.dumps({"tallies": tallies, "errors": errors}))


def tell(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@pytest.mark.slow
def test_writers_and_readers_at_once_lose_no_update_and_see_no_error(bank_location):
    seconds = float(os.environ.get("PRECEDENT_LOAD_SECONDS", "4"))
    with CaseBank.open(bank_location, projections=Digests()) as bank:
        bank.add([NewCase(f"shared {i}", metadata={"n": 0}) for i in range(SHARED)])
        bank.add([NewCase(f"harbour number {i}") for i in range(200)])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, bank_location, str(seconds), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    reports = []
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            out, _ = process.communicate(timeout=seconds + 60)
            reports.append(json.loads(out))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [error for report in reports for error in report["errors"]] == []
    tallies = [tally for report in reports for tally in report["tallies"]]
    counted, added, conflicts = (
        sum(tally[name] for tally in tallies) for name in ("counted", "added", "conflicts")
    )
    figures = [f"{counted / seconds:.0f} updates/s", f"{conflicts} conflicts", f"{added} added"]
    for name in ("text", "scan"):
        times = 1000 * np.concatenate([tally[name] for tally in tallies])
        p50, p99 = np.percentile(times, [50, 99])
        figures.append(f"{name}: {len(times)} searches, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    engine = "postgres" if bank_location.startswith("postgresql") else "sqlite"
    tell(f"\n{engine}, {seconds:g} s: " + "; ".join(figures))
    with CaseBank.open(bank_location, projections=Digests()) as bank:
        stored = bank.get(range(1, SHARED + 1))
        assert sum(case.metadata["n"] for case in stored) == counted
        assert sum(case.version - 1 for case in stored) == counted
        assert bank.count() == SHARED + 200 + added
        assert bank.embed_missing() == 0
    assert counted > 0
