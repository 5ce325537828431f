"""How many of the exact scan's best cases the FAISS tiers find, and in what time.

    python -m benchmarks.tiers [--size 1000000] [--quick] [--heads trained untrained]

A bank of noisy copies of Memento's projections (`tiers_world`); queries are real ones that the head
was not trained on. Recall@8 counts, of the 8 cases that the exact scan puts first, those that
candidates and exact rescoring find. Everything that has a default was chosen on the dev queries;
the figures, and the curves printed, are of the test queries. Times are of single queries, scan and
tiers in turns, one after the other; a row of a curve is the median.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, result_line
from benchmarks.tiers_world import SyntheticBlock, bank_of, encoded, substitute, world
from retriever.head import Head
from retriever.index import CandidateIndex
from retriever.kernels.rescoring import rescored
from retriever.scan import Scanner, open_scanner
from retriever.tiers.narrowing import narrowed
from retriever.tiers.plan import planned
from retriever.tiers.settings import STORAGES, IndexSettings
from retriever.types import Floats, Ids

K = 8
CANDIDATES = (64, 128, 256, 512, 1024, 2048)
PROBES = (4, 16, 64, 256)
NOISE = 0.5
LEAST = 1000  # cases, for the lists of an IVF to be trained


class Point(NamedTuple):
    """One setting of one tier: recall over all queries, milliseconds at the median."""

    name: str
    candidates: int
    recall: float
    find_ms: float
    rescore_ms: float
    scan_ms: float
    scanned: int  # queries that fell back to a scan


def answered(
    index: CandidateIndex, block: SyntheticBlock, head: Head, query: Floats, count: int
) -> tuple[Ids | None, float, float]:
    """One query the two-stage way: its rows, and seconds of both stages."""
    began = time.perf_counter()
    (rows,) = index.candidates(block, query[None], count)
    found = time.perf_counter()
    if rows is None:
        return None, found - began, 0.0
    few = narrowed(head, block.projections, query, rows, K)
    best = rescored(head, block.projections, query, few, block.ids, K)
    return best.rows, found - began, time.perf_counter() - found


class Asked(NamedTuple):
    """What is asked of what, and the right answers."""

    head: Head
    block: SyntheticBlock
    queries: Floats
    right: list[Ids]
    scan: Callable[[Floats], float]  # seconds of an exact scan for one query


def point(name: str, index: CandidateIndex, asked: Asked, count: int) -> Point:
    """Ask every query, the exact scan in between on some of them."""
    hits, find, rescore, scans, fell = 0, [], [], [], 0
    for number, (query, best) in enumerate(zip(asked.queries, asked.right, strict=True)):
        rows, finding, rescoring = answered(index, asked.block, asked.head, query, count)
        fell += rows is None
        hits += K if rows is None else len(np.intersect1d(rows, best))
        find.append(1000 * finding)
        rescore.append(1000 * rescoring)
        if number % 15 == 0:
            scans.append(1000 * asked.scan(query))
    return Point(
        name,
        count,
        hits / (K * len(asked.right)),
        statistics.median(find),
        statistics.median(rescore),
        statistics.median(scans),
        fell,
    )


def followed(
    head: Head, block: SyntheticBlock, settings: IndexSettings, folder: Path
) -> tuple[CandidateIndex, float]:
    """An index that was built, and the seconds that took; saved, so that others can load it."""
    index = CandidateIndex(head, settings)
    began = time.perf_counter()
    index.follow(block)
    seconds = time.perf_counter() - began
    index.save(folder)
    return index, seconds


def asked_of(head: Head, queries: Floats, block: SyntheticBlock, scanner: Scanner) -> Asked:
    """The queries with what the exact scan answers."""

    def scan(query: Floats) -> float:
        began = time.perf_counter()
        scanner.top_k(block, head, query[None], block.live, K)
        return time.perf_counter() - began

    best = scanner.top_k(block, head, queries, block.live, K)
    return Asked(head, block, queries, [found.rows for found in best], scan)


def curves(asked: Asked, storage: str, folder: Path) -> tuple[list[Point], dict[str, Figure]]:
    """All points of one head, and what its indexes cost."""
    head, block, count = asked.head, asked.block, len(asked.block.ids)
    points: list[Point] = []
    costs: dict[str, Figure] = {}
    for kind in ("flat", "ivf"):
        settings = IndexSettings(kind=kind, device="cpu", storage=storage)
        index, seconds = followed(head, block, settings, folder / kind)
        size = (folder / kind / "index.faiss").stat().st_size
        costs[f"{kind}_build"] = Figure(seconds, "s")
        costs[f"{kind}_bytes_per_case"] = Figure(size / count, "B")
        chosen = planned(settings, "ann", count, gpu=False)
        name = kind if kind == "flat" else f"{kind} {chosen.probes}/{chosen.lists}"
        points += [point(name, index, asked, wanted) for wanted in CANDIDATES]
        for probes in PROBES if kind == "ivf" else ():
            other = CandidateIndex(head, replace(settings, probes=probes))
            if not other.load(folder / kind, block):
                raise RuntimeError("the index just saved could not be loaded")
            points.append(point(f"ivf {probes}/{chosen.lists}", other, asked, 1024))
            del other
        del index
        gc.collect()
    return points, costs


def figures_of(label: str, points: Sequence[Point], target: float | None) -> dict[str, Figure]:
    """The figures of record: both kinds at their defaults, 1,024 candidates."""
    figures: dict[str, Figure] = {}
    for kind in ("flat", "ivf"):
        at = next(p for p in points if p.name.startswith(kind) and p.candidates == 1024)
        total = at.find_ms + at.rescore_ms
        figures[f"{label}_{kind}_recall_at_8"] = Figure(at.recall, "", target)
        figures[f"{label}_{kind}_ms"] = Figure(total, "ms")
        figures[f"{label}_{kind}_scan_over_two_stage"] = Figure(at.scan_ms / total, "x")
    figures[f"{label}_scan_ms"] = Figure(statistics.median(p.scan_ms for p in points), "ms")
    return figures


def table_of(made: str, points: Sequence[Point]) -> Table:
    """The curves, readable."""
    table = Table(title=made)
    for column in ("tier", "candidates", "recall@8", "find ms", "rescore ms", "scan ms", "x"):
        table.add_column(column, justify="left" if column == "tier" else "right")
    for p in points:
        total = p.find_ms + p.rescore_ms
        fell = f" ({p.scanned} scanned)" if p.scanned else ""
        table.add_row(
            p.name + fell,
            str(p.candidates),
            f"{p.recall:.4f}",
            f"{p.find_ms:.2f}",
            f"{p.rescore_ms:.2f}",
            f"{p.scan_ms:.1f}",
            f"{p.scan_ms / total:.1f}",
        )
    return table


def main() -> None:
    """Measure, print the curves, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--heads", nargs="+", choices=("trained", "untrained"))
    parser.add_argument("--noise", type=float, default=NOISE, help="in deviations of a unit")
    parser.add_argument("--cache", type=Path, help="where the encodings are kept")
    parser.add_argument("--storage", choices=STORAGES, default="float32")
    parser.add_argument("--dev", action="store_true", help="ask the queries that choose defaults")
    parser.add_argument("--quick", action="store_true", help="50,000 cases, the trained head")
    given = parser.parse_args()
    if given.size < LEAST:
        parser.error(f"--size must be at least {LEAST}, got {given.size}: fewer are always scanned")
    size = 50_000 if given.quick else given.size
    heads = given.heads or (["trained"] if given.quick else ["trained", "untrained"])
    found = encoded(given.cache)
    source = "Memento's cases and queries under MiniLM"
    if found is None:
        print("Memento's files are absent (../shared/data): a substitute in 60 topics is used")
        found, source = substitute(), "synthetic topics"
    scanner = open_scanner("cpu")
    print(f"{size:,} cases: {source}, noise {given.noise}; scan: {scanner.describe()}")
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in heads:
            made = world(found, trained=label == "trained")
            block = bank_of(made.cases, size, given.noise)
            queries = made.dev if given.dev else made.test
            asked = asked_of(made.head, queries, block, scanner)
            points, costs = curves(asked, given.storage, Path(folder))
            Console(width=100).print(table_of(f"{made.made}, {len(queries)} queries", points))
            figures |= figures_of(label, points, 0.97 if size >= 1_000_000 else None)
            figures |= {f"{label}_{name}": figure for name, figure in costs.items()}
            del block, asked
            gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures["peak_memory"] = Figure(peak / 2**30, "GiB")
    table = Table("figure", "value", "unit", "target", "met")
    for name, figure in figures.items():
        target = "" if figure.target is None else f"{figure.target:g}"
        met = {None: "", True: "yes", False: "no"}[figure.met]
        table.add_row(name, f"{figure.value:,.4g}", figure.unit, target, met)
    Console(width=100).print(table)
    print(result_line("tiers", figures, cases=size, source=source, noise=given.noise))


if __name__ == "__main__":
    main()
