"""Which scanner is opened, on how many threads, and what happens where numba is missing."""

import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from retriever import scan
from retriever.errors import ConfigError, InvalidInput
from retriever.head import Head
from retriever.kernels import pool
from retriever.kernels.numpy_scan import NumpyScanner
from tests.repo.imports import ROOT
from tests.search.search_blocks import block_of

HEAD = Head(np.linspace(-1, 2, 32).astype(np.float32), 0.5)


def block_and_queries(count=4000, queries=40):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((count, 32), dtype=np.float32)
    block = replace(block_of(np.zeros((count, 1))), projections=(vectors,))
    return block, rng.standard_normal((queries, 32), dtype=np.float32)


def same(found, expected):
    return all(
        np.array_equal(one.rows, other.rows) and np.array_equal(one.logits, other.logits)
        for one, other in zip(found, expected, strict=True)
    )


def test_what_was_chosen_is_logged_with_its_reason(caplog):
    caplog.set_level(logging.INFO, "retriever.scan")
    scanner = scan.open_scanner("cpu", "int8", 3)
    assert "on the CPU (asked for)" in caplog.text
    described = scanner.describe()
    assert "3 threads" in described
    assert "int8" in described
    assert described in caplog.text


def test_unknown_storages_devices_and_thread_counts_are_refused():
    with pytest.raises(InvalidInput, match="storage must be one of bank"):
        scan.open_scanner("cpu", "int4")
    with pytest.raises(InvalidInput, match="threads must be at least 1, got 0"):
        scan.open_scanner("cpu", threads=0)
    with pytest.raises(InvalidInput, match="open the bank with vectors=float16"):
        scan.open_scanner("cpu", "float16")
    with pytest.raises(ConfigError, match="tpu"):
        scan.open_scanner("tpu")


def test_without_numba_numpy_scans_and_one_line_says_so(caplog, monkeypatch):
    block, queries = block_and_queries()
    expected = scan.open_scanner("cpu", threads=1).top_k(block, HEAD, queries, block.live, 4)
    monkeypatch.setitem(sys.modules, "retriever.kernels.compiled", None)
    monkeypatch.delattr("retriever.kernels.compiled", raising=False)
    scan._numba_is_missing.cache_clear()
    try:
        scanner = scan.open_scanner("cpu")
        assert isinstance(scanner, NumpyScanner)
        lines = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert len(lines) == 1
        assert "numba cannot be used" in lines[0]
        assert "numpy" in scanner.describe()
        assert same(scanner.top_k(block, HEAD, queries, block.live, 4), expected)
        assert scan.logits(HEAD, block.projections, queries).shape == (40, 4000)
    finally:
        scan._numba_is_missing.cache_clear()


def test_importing_the_scan_brings_neither_numba_nor_torch():
    code = (
        "import sys, retriever.scan, retriever.kernels.rescoring\n"
        "print([name for name in ('numba', 'llvmlite', 'torch', 'triton') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_searches_from_many_threads_at_once_find_what_one_finds():
    block, queries = block_and_queries(count=20_000)
    expected = scan.open_scanner("cpu", threads=1).top_k(block, HEAD, queries, block.live, 4)
    for storage in ("bank", "int8"):
        scanner = scan.open_scanner("cpu", storage, 2)
        right = []

        def search(scanner=scanner, right=right):
            for _ in range(3):
                found = scanner.top_k(block, HEAD, queries, block.live, 4)
                right.append(same(found, expected))

        threads = [threading.Thread(target=search) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right == [True] * 18


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_after_a_search_searches_on_threads_of_its_own():
    block, queries = block_and_queries(count=20_000)
    scanner = scan.open_scanner("cpu", threads=2)
    expected = scanner.top_k(block, HEAD, queries, block.live, 4)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if same(scanner.top_k(block, HEAD, queries, block.live, 4), expected) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_every_task_is_done_once_and_by_no_more_threads_than_allowed():
    done, used = [], set()

    def work(numbers):
        used.add(threading.get_ident())
        for number in numbers:
            done.append(number)
        return len(done)

    for threads in (1, 2, 5):
        done.clear()
        used.clear()
        pool.spread(work, 200, threads)
        assert sorted(done) == list(range(200))
        assert len(used) <= threads
    assert pool.spread(lambda numbers: list(numbers), 0, 4) == [[]]


def test_an_error_on_any_thread_reaches_the_caller():
    gate = threading.Barrier(2, timeout=20)

    def work(numbers):
        for number in numbers:
            gate.wait()
            if number == 1:
                raise ValueError("task 1")

    with pytest.raises(ValueError, match="task 1"):
        pool.spread(work, 2, 2)


@pytest.mark.parametrize("storage", ["bank", "bfloat16", "int8"])
def test_a_warm_scanner_compiles_nothing_at_its_first_search(storage):
    from retriever.kernels import compiled

    scanner = scan.open_scanner("cpu", storage, threads=1)
    scanner.warm_up(HEAD)
    functions = (compiled.planned, compiled.scan, compiled.exact, compiled.alone)
    before = [len(function.signatures) for function in functions]
    block, queries = block_and_queries(count=300, queries=3)
    for dtype in (np.float32, np.float16):
        chunks = tuple(chunk.astype(dtype) for chunk in block.projections)
        for array in (block.live, block.ids, *chunks, queries):
            array.flags.writeable = False  # as a bank's are
        given = replace(block, projections=chunks)
        scanner.top_k(given, HEAD, queries, block.live, 2)
        scanner.top_k(given, HEAD, queries[:1], block.live, 2)
        scanner.top_k(given, HEAD, queries[:1], block.live, 300)
    assert [len(function.signatures) for function in functions] == before
    scanner.warm_up(Head(np.ones(3, np.float32), 0.0))


def test_where_nothing_can_be_written_the_loops_are_compiled_for_the_process_alone(
    monkeypatch,
):
    from retriever.kernels import compiling

    real = compiling.numba.njit

    def njit(**options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    def plus_one(value):
        return value + 1

    monkeypatch.setattr(compiling.numba, "njit", njit)
    assert compiling.compiled_by(0)(plus_one)(2) == 3


COMPILED = """
import logging, sys
from retriever.kernels.compiling import compiled_by
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)

@compiled_by(0)
def plus_one(value):
    return value + 1

print(plus_one(2), sum(plus_one.stats.cache_hits.values()))
"""


def test_a_damaged_cache_of_compiled_code_costs_a_warning_not_the_scan(tmp_path):
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(COMPILED)

    def start():
        return subprocess.run(
            [sys.executable, script],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stdout

    def damage():
        kept = [path for path in cache.rglob("*") if path.suffix in (".nbc", ".nbi")]
        assert len(kept) == 2
        for path in kept:
            path.write_bytes(b"junk")

    assert start() == "3 0\n"
    assert start() == "3 1\n"
    damage()
    again = start()
    assert again.endswith("3 0\n")
    assert "could not be read" in again
    assert "delete the folder's" in again
