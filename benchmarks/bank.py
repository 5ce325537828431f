"""How fast the case bank stores, starts and forgets, and what a case costs in memory.

    python -m benchmarks.bank [--sizes 100000 1000000] [--quick] [--keep FOLDER]

Cases of about 200 characters are stored with 512 fp16 projections (and, for the second memory
figure, 384 fp16 embeddings) made from their digest, so that no encoder is timed. Everything runs in
fresh processes where memory or a start is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, result_line
from memory import BankConfig, ByIds, CaseBank, NewCase

PROJECTION, EMBEDDING = 512, 384
BATCH = 1000
_WORDS = [
    "harbour",
    "register",
    "captain",
    "engine",
    "ledger",
    "mountain",
    "river",
    "parish",
    "county",
    "bridge",
    "archive",
    "census",
    "treaty",
    "orbit",
    "enzyme",
    "quartz",
    "violin",
    "sonnet",
    "glacier",
    "senate",
    "ferry",
    "meadow",
    "lantern",
    "compass",
    "granite",
    "orchard",
    "council",
    "furnace",
    "tunnel",
    "mirror",
    "saddle",
    "anchor",
    "velvet",
    "copper",
    "thunder",
    "island",
]


class Digested:
    """Vectors from a text's digest: as wide as real ones, and free."""

    def __init__(self, name: str, dim: int) -> None:
        self.key, self.dim = f"bench:{name}:{dim}", dim

    def text(self, case: Any) -> str:
        """What is embedded."""
        return f"{case.query}\n{case.plan}"

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(n, dim), unit length."""
        rows = np.empty((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts, strict=True):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            row[:] = np.random.default_rng(seed).standard_normal(self.dim, dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def made_cases(start: int, count: int) -> list[NewCase]:
    """Cases by number: equal numbers, equal cases."""
    return list(_cases(start, count))


def _cases(start: int, count: int) -> Iterator[NewCase]:
    for number in range(start, start + count):
        rng = np.random.default_rng(number)
        words = [_WORDS[i] for i in rng.integers(0, len(_WORDS), 24)]
        yield NewCase(
            f"Question {number}: {' '.join(words[:12])}?",
            plan=f"Look up {' '.join(words[12:])}.",
            outcome=float(number % 2),
            kind="case",
            external_id=f"case-{number}",
            derived_from=(f"case-{number - 1}",) if number % 10 == 1 else (),
        )


def opened(path: Path, *, both: bool = False, snapshots: bool = True) -> CaseBank:
    """The bank as every part of the benchmark opens it."""
    return CaseBank.open(
        path,
        projections=Digested("projection", PROJECTION),
        embeddings=Digested("embedding", EMBEDDING) if both else None,
        config=BankConfig(vectors="float16", snapshots=snapshots),
    )


def fill(path: Path, size: int, *, both: bool) -> dict[str, float]:
    """Store cases up to a size; rates of the last batches."""
    rates = []
    with opened(path, both=both, snapshots=False) as bank:
        have = bank.count()
        # A bank that is kept from an earlier run lacks the few cases that were purged there.
        for start in range(have if have < 0.99 * size else size, size, BATCH):
            batch = made_cases(start, min(BATCH, size - start))
            began = time.perf_counter()
            bank.add(batch)
            rates.append(len(batch) / (time.perf_counter() - began))
            if (start // BATCH) % 100 == 99:
                print(f"  {start + BATCH:,} cases stored", file=sys.stderr, flush=True)
    return {"batch_rate": statistics.median(rates[-50:]) if rates else 0.0}


def singles(path: Path, count: int) -> dict[str, float]:
    """Store cases one by one, each seen in the block before the next."""
    visible, rates = [], []
    with opened(path) as bank:
        block = bank.block()
        number = (
            10_000_000 + bank.newest(1)[0].id
        )  # never stored before, also in a bank that is kept
        for case in made_cases(number, count):
            began = time.perf_counter()
            bank.add([case])
            stored = time.perf_counter()
            block = bank.block()
            seen = time.perf_counter()
            rates.append(1 / (stored - began))
            visible.append(1000 * (seen - stored))
        assert len(block) >= count
    return {"single_rate": statistics.median(rates), "visible_ms": statistics.median(visible)}


def restart(path: Path, *, both: bool, snapshot: bool) -> dict[str, float]:
    """Open the bank and bring a namespace's block up, in this fresh process."""
    before = _resident()
    began = time.perf_counter()
    with opened(path, both=both, snapshots=snapshot) as bank:
        block = bank.block()
        seconds = time.perf_counter() - began
        held = _resident() - before
        rows = len(block)
        del block
    return {"seconds": seconds, "bytes_per_case": held / max(1, rows), "rows": float(rows)}


def purge(path: Path, count: int) -> dict[str, float]:
    """Purge single cases, each with the case derived from it, one request each."""
    times = []
    with opened(path) as bank:
        bank.block()
        ids = [case.id for case in bank.list(limit=10 * count + 10)]
        for id_ in ids[: 10 * count : 10]:
            began = time.perf_counter()
            receipt = bank.forget(ByIds((id_,)))
            times.append(1000 * (time.perf_counter() - began))
            assert receipt.count >= 1
            assert receipt.erased == "done", receipt
    return {"purge_ms": statistics.median(times), "purge_max_ms": max(times)}


def write_snapshot(path: Path, *, both: bool) -> dict[str, float]:
    """Bring the block up and close, which writes the snapshot."""
    bank = opened(path, both=both)
    bank.block()
    began = time.perf_counter()
    bank.close()
    return {"seconds": time.perf_counter() - began}


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


_PARTS = {
    "fill": fill,
    "singles": singles,
    "restart": restart,
    "purge": purge,
    "snapshot": write_snapshot,
}


def _fresh(part: str, path: Path, **options: Any) -> dict[str, float]:
    """Run a part in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bank", "--part", part, "--path", str(path)]
    done = subprocess.run(
        [*command, "--options", json.dumps(options)], stdout=subprocess.PIPE, check=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(folder: Path, size: int, repeats: int) -> dict[str, Figure]:
    """All figures at one size."""
    path = folder / f"bank-{size}" / "bank.db"
    big = size >= 1_000_000
    figures: dict[str, Figure] = {}
    filled = _fresh("fill", path, size=size, both=False)
    if filled["batch_rate"]:
        figures["insert_batches_of_1000"] = Figure(filled["batch_rate"], "cases/s")
    cold = [_fresh("restart", path, both=False, snapshot=False) for _ in range(repeats)]
    figures["restart_from_database"] = Figure(
        statistics.median(r["seconds"] for r in cold), "s", 12.0 if big else None, at_most=True
    )
    figures["bytes_per_case_projections"] = Figure(
        statistics.median(r["bytes_per_case"] for r in cold), "B", 1300, at_most=True
    )
    figures["snapshot_write"] = Figure(_fresh("snapshot", path, both=False)["seconds"], "s")
    warm = [_fresh("restart", path, both=False, snapshot=True) for _ in range(repeats)]
    figures["restart_from_snapshot"] = Figure(
        statistics.median(r["seconds"] for r in warm), "s", 10.0 if big else None, at_most=True
    )
    one = _fresh("singles", path, count=50)
    figures["insert_single"] = Figure(one["single_rate"], "cases/s")
    figures["visible_after_insert"] = Figure(one["visible_ms"], "ms", 5.0, at_most=True)
    gone = _fresh("purge", path, count=10)
    figures["purge_one_with_closure"] = Figure(
        gone["purge_ms"], "ms", 250.0 if big else None, at_most=True
    )
    figures["purge_one_slowest"] = Figure(gone["purge_max_ms"], "ms")
    _fresh("fill", path, size=0, both=True)
    both = _fresh("restart", path, both=True, snapshot=False)  # embeds what lacks once, untimed
    both = _fresh("restart", path, both=True, snapshot=False)
    figures["bytes_per_case_both"] = Figure(both["bytes_per_case"], "B", 2100, at_most=True)
    return {f"{name}@{size}": figure for name, figure in figures.items()}


def main() -> None:
    """Measure, print a table, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="5,000 cases, once")
    parser.add_argument("--keep", type=Path, help="build the banks here, and leave them")
    parser.add_argument("--part", choices=_PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, default={}, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(_PARTS[arguments.part](arguments.path, **arguments.options)))
        return
    sizes, repeats = ([5_000], 1) if arguments.quick else (arguments.sizes, arguments.repeats)
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        for size in sizes:
            figures |= measured(folder, size, repeats)
    table = Table("figure", "value", "unit", "target", "met")
    for name, figure in figures.items():
        target = "" if figure.target is None else f"{figure.target:g}"
        met = {None: "", True: "yes", False: "no"}[figure.met]
        table.add_row(name, f"{figure.value:,.4g}", figure.unit, target, met)
    Console().print(table)
    print(result_line("bank", figures))


if __name__ == "__main__":
    main()
