"""Threads for kernels that release the GIL: one small pool a process, as many as cores are granted.

Needs neither OpenMP nor TBB, and may be called from any thread, also after a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from retriever.cores import granted_cores

T = TypeVar("T")

_pools: dict[int, ThreadPoolExecutor] = {}  # by process, for threads do not survive a fork


def spread(work: Callable[[Iterator[int]], T], tasks: int, threads: int) -> list[T]:
    """Call `work` on several threads, each with the numbers of the tasks that it is to do.

    The caller's thread is one of them, and alone where one thread, or one task, is all there is;
    whoever is quicker does more. The first exception of any thread is raised when all have ended.
    """
    helpers = min(threads, tasks) - 1
    if helpers < 1:
        return [work(iter(range(tasks)))]
    numbers = _Numbers(tasks)
    pool = _pool(threads)
    futures = [pool.submit(work, numbers) for _ in range(helpers)]
    try:
        found = [work(numbers)]
    finally:
        numbers.stop()
        # One that has not begun has nothing to do any more: other callers keep the pool busy.
        begun: list[Future[T]] = [future for future in futures if not future.cancel()]
        _wait(begun)
    return found + [future.result() for future in begun]


class _Numbers:
    """0, 1, ... below `count`, each given to one thread."""

    def __init__(self, count: int) -> None:
        self._next, self._count, self._lock = 0, count, threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            if self._next >= self._count:
                raise StopIteration
            self._next += 1
            return self._next - 1

    def stop(self) -> None:
        with self._lock:
            self._next = self._count


def _pool(threads: int) -> ThreadPoolExecutor:
    pool = _pools.get(os.getpid())
    if pool is None:
        # Threads start at the first task: of two made at once, one costs nothing. And no lock,
        # which a fork could find held.
        size = max(1, granted_cores() - 1, threads - 1)
        made = ThreadPoolExecutor(size, thread_name_prefix="scan")
        pool = _pools.setdefault(os.getpid(), made)
    return pool


def _wait(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.exception()
