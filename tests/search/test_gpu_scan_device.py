"""What the GPU's scan does about its device: memory, the current device, kernels that fail."""

import logging
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from retriever.errors import IndexUnavailable
from retriever.kernels import torch_kernels
from retriever.kernels.torch_resident import Resident
from tests.search.test_gpu_scan import assert_best, draw, projected, resident, scanner

MIB = 2**20


def test_a_mask_that_can_change_is_read_again_and_one_that_cannot_travels_once():
    _, vectors, _ = draw(50, 40, 1, 4)
    copy, _ = resident()
    live = np.ones(40, bool)
    block = replace(projected(vectors), live=live)
    copy.mask(block, live)
    live[7] = False
    assert copy.mask(block, live).tolist() == live.astype(int).tolist()
    live.flags.writeable = False
    kept = copy.mask(block, live)
    assert copy.mask(block, live) is kept
    some = np.zeros(40, bool)
    assert copy.mask(block, some).sum() == 0


def test_what_brought_rows_to_the_tiles_was_overwritten(monkeypatch):
    _, vectors, _ = draw(51, 700, 1, 6)
    brought, given, stored = [], [], Resident._stored

    def watched(self, values, live, dtype):
        given.append(values)
        brought.append(stored(self, values, live, dtype))
        assert brought[-1].any()
        return brought[-1]

    monkeypatch.setattr(Resident, "_stored", watched)
    copy, follower = resident()
    with follower.held(projected(vectors[:600])) as state:
        assert (state, len(brought)) == ("rebuilt", 1)
    with follower.held(projected(vectors, version=2)) as state:
        assert state in ("extended", "updated")
    assert len(brought) == 2
    assert not any(rows.any() for rows in [*brought, *given])
    assert copy.tiles.any()


class Cuda:
    """The parts of torch.cuda that a scan asks, for a device that is none."""

    def __init__(self, monkeypatch, free=1024 * MIB, reserved=0, allocated=0):
        self.current = []
        self.done = []
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(torch.cuda, "synchronize", self.done.append)

    @contextmanager
    def device(self, device):
        self.current.append(device)
        yield
        self.current.pop()


def test_vectors_leave_half_a_gigabyte_of_the_device_to_everything_else(monkeypatch):
    Cuda(monkeypatch, free=700 * MIB, reserved=400 * MIB, allocated=76 * MIB)
    scan = scanner()
    scan.device = torch.device("cuda", 1)
    scan._room(512 * MIB)  # 700, and 324 that the allocator keeps free, less 512
    with pytest.raises(IndexUnavailable, match=r"need 512\.1 MiB.*512\.0 MiB are free"):
        scan._room(512 * MIB + 100_000)


def test_every_kernel_is_launched_with_the_scans_device_the_current_one(monkeypatch):
    cuda, launched = Cuda(monkeypatch), []
    head, vectors, asked = draw(52, 300, 2, 6)
    block = projected(vectors)
    scan = scanner()
    scan.resident("default")  # on the CPU, where there is one
    there = scan.device = torch.device("cuda", 1)

    class Launched:
        def __getattr__(self, name):
            launched.append((name, list(cuda.current)))
            return getattr(torch_kernels, name)

    scan._kernels = Launched()
    found = scan.top_k(block, head, asked, block.live, 3)
    assert_best(found, head, vectors, asked, block, block.live, 3)
    assert launched == [("scores", [there])]
    assert cuda.current == []
    scan.drop("default")
    assert cuda.done == [there]


class Refusing:
    """Kernels that fail some times, then work."""

    def __init__(self, *errors):
        self.errors, self.calls = list(errors), 0

    def scores(self, *arguments):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return torch_kernels.scores(*arguments)


def searched(kernels, times):
    head, vectors, asked = draw(53, 50, 2, 8)
    block = projected(vectors)
    scan = scanner()
    scan._kernels = kernels
    for _ in range(times):
        found = scan.top_k(block, head, asked, block.live, 3)
        assert_best(found, head, vectors, asked, block, block.live, 3)
    return scan


def test_a_file_that_cannot_be_written_once_does_not_end_triton(caplog):
    kernels = Refusing(PermissionError("cache"))
    with caplog.at_level(logging.WARNING):
        scan = searched(kernels, 3)
    assert scan._kernels is kernels
    assert kernels.calls == 3
    assert [record.getMessage() for record in caplog.records] == [
        "scanning in plain torch this once: triton failed: PermissionError: cache"
    ]


def test_files_that_can_never_be_written_end_it_at_the_third_failure(caplog):
    kernels = Refusing(*[OSError("no space left")] * 9)
    with caplog.at_level(logging.WARNING):
        scan = searched(kernels, 5)
    assert scan._kernels is None
    assert kernels.calls == 3
    assert ["this once" in record.getMessage() for record in caplog.records] == [True, True, False]


def test_a_compiler_that_fails_is_not_asked_again():
    kernels = Refusing(RuntimeError("no compiler"))
    assert searched(kernels, 3)._kernels is None
    assert kernels.calls == 1


@pytest.mark.parametrize("seen", ["at the launch", "before it"])
def test_threads_that_fail_together_give_one_warning(caplog, seen):
    """Either both are inside when they fail, or one finds the kernels just taken away."""
    scan, both, found = scanner(), threading.Barrier(2), []
    head, vectors, asked = draw(54, 60, 1, 8)

    class Together:
        def __getattr__(self, name):
            if seen == "before it":
                both.wait(10)

            def fails(*arguments):
                if seen == "at the launch":
                    both.wait(10)
                raise RuntimeError("no ptxas here")

            return fails

    def search(name):
        block = replace(projected(vectors), namespace=name)
        found.append((block, scan.top_k(block, head, asked, block.live, 3)))

    scan._kernels = Together()
    threads = [threading.Thread(target=search, args=(name,)) for name in ("a", "b")]
    with caplog.at_level(logging.WARNING):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for block, best in found:
        assert_best(best, head, vectors, asked, block, block.live, 3)
    assert len(found) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "scanning in plain torch: triton failed: RuntimeError: no ptxas here"
    ]
