"""How fast the CPU scans a whole bank, and how near its rankings are to float64.

    python -m benchmarks.scan [--quick] [--cases 1000000] [--rounds 7]

Sides that are compared take turns in one process, round by round; a figure is a median over the
rounds, a ratio the median of the rounds' ratios. Vectors are drawn from a normal distribution in
the chunks that a bank keeps (16,384 rows), D = 512. "Cached" is the same scan over as many rows
whose chunks are all the same megabyte of memory. Every search gives the 8 best cases in full: the
proof and the float64 scores of the rows returned are in its time. Only the comparison with the
cache leaves them out on both sides, for a bank of equal rows ties everywhere.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, result_line
from retriever.cores import granted_cores
from retriever.head import Head
from retriever.kernels import cpu_scan
from retriever.kernels.compact import CompactCopy
from retriever.kernels.cpu import spare
from retriever.kernels.pool import spread
from retriever.kernels.source import Source, bank_source
from retriever.kernels.tasks import Tasks

HIDDEN, K = 512, 8
CHUNK_ROWS = 16_384
CACHED_BYTES = 1 << 20
MEMENTO_CASES = 1278
RECORD_CASES = 1_000_000  # targets are about banks of this size; smaller ones are held against none

Chunks = list[np.ndarray]


@numba.njit(nogil=True)
def _summed(words: Any) -> Any:
    total = np.uint64(0)
    for word in words:
        total += word
    return total


def plain_read(arrays: Chunks, threads: int) -> None:
    """Read every byte once, through the pool that the scan uses."""
    words = [array.reshape(-1).view(np.uint64) for array in arrays]
    parts = [one[at : at + (1 << 18)] for one in words for at in range(0, len(one), 1 << 18)]

    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            _summed(parts[number])

    spread(work, len(parts), threads)


class Bench:
    """What all measurements share."""

    def __init__(self, rounds: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.rounds, self.threads = rounds, granted_cores()
        self._wholes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.head = Head(self.rng.standard_normal(HIDDEN).astype(np.float32), 0.1)

    def chunks(self, rows: int) -> Chunks:
        """Normal float32 vectors, chunk by chunk."""
        return [
            self.rng.standard_normal((min(CHUNK_ROWS, rows - at), HIDDEN), dtype=np.float32)
            for at in range(0, rows, CHUNK_ROWS)
        ]

    def queries(self, count: int) -> np.ndarray:
        """Normal float32 queries."""
        return self.rng.standard_normal((count, HIDDEN), dtype=np.float32)

    def search(self, source: Source, chunks: Chunks, queries: np.ndarray, storage: str) -> Any:
        """The K best of all rows, as the scanner finds them, and how many took a second look."""
        every, ids = self.whole(source.rows)
        return cpu_scan.best(
            *(source, chunks, self.head, queries, every, ids),
            *(K, True, self.threads, spare(storage, source.rows)),
        )

    def whole(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """(N,) twice: every row is eligible, and what its id is."""
        if rows not in self._wholes:
            self._wholes = {rows: (np.ones(rows, np.bool_), np.arange(rows))}
        return self._wholes[rows]

    def timed(self, sides: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds of each side, round by round; the first round is not counted."""
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(self.rounds + 1):
            for name, side in sides.items():
                began = time.perf_counter()
                side()
                if number:
                    times[name].append(time.perf_counter() - began)
        return times


def ratio(over: list[float], under: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def loops(bench: Bench, source: Source, query: np.ndarray, storage: str) -> Any:
    """The compiled loops alone, as a search begins."""
    tasks = Tasks(source, bench.head, query, bench.threads)
    return tasks.candidates(bench.whole(source.rows)[0], K + spare(storage, source.rows))


def compact(chunks: Chunks, head: Head, storage: str) -> tuple[CompactCopy, Source]:
    """The copy that a scanner would keep of these rows."""
    rows = sum(len(chunk) for chunk in chunks)

    class Everything:
        projections, ids, live = chunks, np.arange(rows), np.ones(rows, np.bool_)

    copy = CompactCopy(storage)
    copy.wanted = head
    copy.build(Everything())  # type: ignore[arg-type]
    source = copy.source(head)
    assert source is not None
    return copy, source


def repeated(source: Source, bytes_a_row: int, rows: int) -> Source:
    """As many rows, all of the same first megabyte."""
    size = CACHED_BYTES // bytes_a_row
    first = source.chunks[0]
    spans = [(at, min(rows, at + size)) for at in range(0, rows, size)]
    return replace(
        source, chunks=tuple(first._replace(first=start, end=end) for start, end in spans)
    )


def single_query(bench: Bench, rows: int) -> dict[str, Figure]:
    """One query over a large bank: each storage against a plain read and against the cache."""
    query, head = bench.queries(1), bench.head
    full = bench.chunks(rows)
    whole = bank_source(full, head)
    assert whole is not None
    figures: dict[str, Figure] = {}

    for name in ("float32", "float16", "bfloat16", "int8"):
        storage = name if name in ("bfloat16", "int8") else "bank"
        vectors, stored, source = full, full, whole
        if name == "float16":
            vectors = stored = [chunk.astype(np.float16) for chunk in full]
            found = bank_source(vectors, head)
            assert found is not None
            source = found
        elif storage != "bank":
            copy, source = compact(full, head, storage)
            stored = copy.arrays()
        bytes_a_row = HIDDEN * source.kind.itemsize
        cached = repeated(source, bytes_a_row, rows)
        times = bench.timed(
            {
                "read": partial(plain_read, stored, bench.threads),
                "scan": partial(bench.search, source, vectors, query, storage),
                "loops": partial(loops, bench, source, query, storage),
                "cached": partial(loops, bench, cached, query, storage),
                "float32": partial(bench.search, whole, full, query, "bank"),
            }
        )
        seconds = statistics.median(times["scan"])
        label = f"single_{name}@{rows}"
        gigabytes = rows * bytes_a_row / 1e9
        read = Figure(gigabytes / statistics.median(times["read"]), "GB/s")
        figures[f"{label}_ms"] = Figure(1000 * seconds, "ms")
        figures[f"{label}_plain_read"] = read
        figures[f"{label}_of_plain_read"] = Figure(
            ratio(times["read"], times["scan"]), "x", 0.9 if name == "float32" else None
        )
        figures[f"{label}_of_cached"] = Figure(
            ratio(times["cached"], times["loops"]),
            "x",
            0.85 if name in ("float16", "int8") else None,
        )
        slower = [max(pair) for pair in zip(times["read"], times["cached"], strict=True)]
        figures[f"{label}_of_nearer_limit"] = Figure(ratio(slower, times["loops"]), "x")
        if name != "float32":
            figures[f"{label}_over_float32"] = Figure(ratio(times["float32"], times["scan"]), "x")
        print(f"  {label}: {1000 * seconds:.1f} ms", file=sys.stderr, flush=True)
    return figures


def batches(bench: Bench, rows: int) -> dict[str, Figure]:
    """Many queries at once, against an inner-product index and a matrix product."""
    head, chunks = bench.head, bench.chunks(rows)
    source = bank_source(chunks, head)
    assert source is not None
    whole = np.concatenate(chunks)
    index = _faiss(whole, bench.threads)
    figures: dict[str, Figure] = {}
    for count in (64, 256):
        queries = bench.queries(count)
        product = np.empty((count, rows), np.float32)
        sides: dict[str, Callable[[], Any]] = {
            "scan": partial(bench.search, source, chunks, queries, "bank"),
            "product": partial(np.matmul, queries, whole.T, out=product),
        }
        if index is not None:
            sides["faiss"] = partial(index.search, queries, K)
        with _blas(bench.threads):
            times = bench.timed(sides)
        for name, taken in times.items():
            figures[f"batch{count}_{name}@{rows}"] = Figure(
                count * rows / statistics.median(taken) / 1e6, "M pairs/s"
            )
        figures[f"batch{count}_over_product@{rows}"] = Figure(
            ratio(times["product"], times["scan"]), "x", 0.5 if count == 256 else None
        )
        if "faiss" in times:
            figures[f"batch{count}_over_faiss@{rows}"] = Figure(
                ratio(times["faiss"], times["scan"]), "x", 3.0 if count == 64 else None
            )
        print(f"  batches of {count} done", file=sys.stderr, flush=True)
    return figures


def _faiss(vectors: np.ndarray, threads: int) -> Any:
    try:
        import faiss
    except ImportError:
        print("  FAISS is not installed: no comparison with it", file=sys.stderr)
        return None
    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


@contextmanager
def _blas(threads: int) -> Iterator[None]:
    """Let numpy's product use as many threads as the scan, whatever the environment says."""
    try:
        import threadpoolctl
    except ImportError:
        yield
        return
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        yield


def agreement(bench: Bench, rows: int, count: int) -> dict[str, Figure]:
    """The K best of random queries against float64 on the unrounded vectors."""
    head, chunks, queries = bench.head, bench.chunks(rows), bench.queries(count)
    truth = _twin(head, np.concatenate(chunks), queries, bench.threads)
    figures: dict[str, Figure] = {}
    halves = [chunk.astype(np.float16) for chunk in chunks]
    whole, half = bank_source(chunks, head), bank_source(halves, head)
    assert whole is not None
    assert half is not None
    cases = {
        "float32": (whole, chunks, "bank", 1.0, None),
        "float16": (half, halves, "bank", None, 0.99),
        "bfloat16": (compact(chunks, head, "bfloat16")[1], chunks, "bfloat16", None, None),
        "int8": (compact(chunks, head, "int8")[1], chunks, "int8", None, 0.97),
    }
    for name, (source, vectors, storage, same, overlap) in cases.items():
        raw = np.empty((count, rows), np.float32)
        for first in range(0, count, 200):
            part = slice(first, first + 200)
            Tasks(source, head, queries[part], bench.threads).logits(raw[part])
        by_kernel = [np.lexsort((np.arange(rows), -row))[:K] for row in raw]
        found, again = bench.search(source, vectors, queries, storage)
        shipped = [best.rows for best in found]
        figures[f"{name}_kernel_overlap"] = Figure(_overlap(by_kernel, truth), "share", overlap)
        figures[f"{name}_kernel_same_order"] = Figure(_same(by_kernel, truth), "share")
        figures[f"{name}_answer_overlap"] = Figure(_overlap(shipped, truth), "share")
        figures[f"{name}_answer_same_order"] = Figure(_same(shipped, truth), "share", same)
        figures[f"{name}_second_looks"] = Figure(again / count, "share")
    return figures


def _twin(head: Head, vectors: np.ndarray, queries: np.ndarray, threads: int) -> list[np.ndarray]:
    """The K best rows by a float64 sort; the lower row first among equals."""
    doubles = vectors.astype(np.float64)
    weight = head.weight.astype(np.float64)

    def best(query: np.ndarray) -> np.ndarray:
        scores = np.empty(len(doubles))
        for first in range(0, len(doubles), 256):
            part = slice(first, first + 256)
            scores[part] = np.maximum(doubles[part] + query, 0.0) @ weight
        return np.lexsort((np.arange(len(scores)), -scores))[:K]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(best, queries))


def _overlap(found: list[np.ndarray], truth: list[np.ndarray]) -> float:
    return float(
        np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, truth, strict=True)])
    )


def _same(found: list[np.ndarray], truth: list[np.ndarray]) -> float:
    return float(np.mean([np.array_equal(a, b) for a, b in zip(found, truth, strict=True)]))


def small_bank(bench: Bench) -> dict[str, Figure]:
    """A bank of the size of Memento's: what one search takes."""
    chunks = bench.chunks(MEMENTO_CASES)
    source = bank_source(chunks, bench.head)
    assert source is not None
    one, many = bench.queries(1), bench.queries(64)
    bench.rounds, kept = 20 * bench.rounds, bench.rounds
    times = bench.timed(
        {
            "one": lambda: bench.search(source, chunks, one, "bank"),
            "many": lambda: bench.search(source, chunks, many, "bank"),
        }
    )
    bench.rounds = kept
    return {
        f"one_query@{MEMENTO_CASES}": Figure(1e6 * statistics.median(times["one"]), "us"),
        f"batch64_a_query@{MEMENTO_CASES}": Figure(
            1e6 * statistics.median(times["many"]) / 64, "us"
        ),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the sizes that depend on them; `record`: targets are about these sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, help="of the largest bank: 1,000,000; --quick 100,000")
    parser.add_argument("--rounds", type=int, help="7; 5 with --quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, in under a minute")
    options = parser.parse_args(arguments)
    quick, usual = (100_000, 20_000, 2_000, 200, 5), (RECORD_CASES, 100_000, 20_000, 1000, 7)
    cases, batch, agreed, asked, rounds = quick if options.quick else usual
    for name, value in (("cases", cases), ("rounds", rounds)):
        if getattr(options, name) is None:
            setattr(options, name, value)
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    options.batch_cases = min(batch, options.cases)
    options.agreed = min(agreed, options.cases), asked
    options.record = options.cases >= RECORD_CASES and not options.quick
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and one line of JSON."""
    options = parse(arguments)
    bench = Bench(options.rounds)
    figures = small_bank(bench)
    figures |= single_query(bench, options.cases)
    figures |= batches(bench, options.batch_cases)
    figures |= agreement(bench, *options.agreed)
    if not options.record:
        figures = {name: replace(figure, target=None) for name, figure in figures.items()}
    table = Table("figure", "value", "unit", "target", "met")
    for name, figure in figures.items():
        target = "" if figure.target is None else f"{figure.target:g}"
        met = {None: "", True: "yes", False: "no"}[figure.met]
        table.add_row(name, f"{figure.value:,.4g}", figure.unit, target, met)
    Console().print(table)
    print(result_line("scan", figures, threads=bench.threads, numba=numba.__version__))


if __name__ == "__main__":
    main()
