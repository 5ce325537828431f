"""The GPU's kernels alone: what they may read, what they must not hide, and what they take.

`test_gpu_scan_interpreted` runs this file once more with Triton's interpreter.
"""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from retriever.errors import NonFiniteScore
from retriever.kernels import torch_candidates, torch_kernels
from retriever.kernels.rescoring import bound
from retriever.kernels.torch_kernels import GROUP, TILE, Prepared
from retriever.kernels.torch_scan import triton_kernels
from tests.repo.imports import imports_below, within
from tests.search.test_gpu_scan import (
    INTERPRETED,
    assert_best,
    draw,
    projected,
    scanner,
    slow_logits,
    way,
)

__all__ = ["way"]
CPU = torch.device("cpu")


def kernels():
    return triton_kernels(CPU) if INTERPRETED else torch_kernels


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("hidden", [8, 13, 37])
def test_a_broken_value_passes_no_loop_whether_or_not_eight_divides_the_width(way, value, hidden):
    head, vectors, asked = draw(hidden, 300, 2, hidden)
    for place in {3, hidden - 1}:  # of the loop written out, and of what it leaves
        broken = vectors.copy()
        broken[270, place] = value
        block = projected(broken)
        with pytest.raises(NonFiniteScore, match="query 0 and case 271"):
            scanner().top_k(block, head, asked, block.live, 2)


@pytest.mark.parametrize("asked", [1, 3])
def test_no_row_past_the_end_is_scored_though_memory_there_holds_rows(asked):
    """Two whole tiles and masks of rows that could be found, of which 300 are the bank's."""
    rows = 300
    head, vectors, queries = draw(41, 2 * TILE, asked, 7)
    tiles = torch.from_numpy(vectors.reshape(2, TILE, 7).transpose(0, 2, 1).copy())
    live = torch.ones(2 * TILE, dtype=torch.uint8)
    query = Prepared.of(head, queries, True, CPU)
    true = np.full((asked, 2 * TILE), -np.inf)
    true[:, :rows] = slow_logits(head, vectors[:rows], queries)
    grouped = true.reshape(asked, -1, GROUP)
    each, best = (kernels().scores(tiles, query, live, rows, size) for size in (1, GROUP))
    np.testing.assert_allclose(each.numpy(), true[:, :rows], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(best.numpy(), grouped.max(axis=2), rtol=1e-5, atol=1e-5)
    groups = torch.tensor([[9, 10, 15, 0]]).expand(asked, 4)  # 10 and 15 lie past the end
    found = kernels().picked(tiles, query, live, rows, groups)
    expected = grouped[:, [9, 10, 15, 0]].reshape(asked, -1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


class Misleading:
    """Kernels as far off as their bound lets them be, against the one row that is the best."""

    def __init__(self, best, off):
        self.best, self.off = best, off

    def scores(self, tiles, query, live, rows, group):
        marked = self.moved(torch_kernels.scores(tiles, query, live, rows, 1), torch.arange(rows))
        if group == 1:
            return marked
        padded = torch.full((len(marked), -(-rows // group) * group), -torch.inf)
        padded[:, :rows] = marked
        return padded.view(len(marked), -1, group).amax(dim=2)

    def picked(self, tiles, query, live, rows, groups):
        places = (groups[:, :, None] * GROUP + torch.arange(GROUP)).flatten(1)
        return self.moved(torch_kernels.picked(tiles, query, live, rows, groups), places)

    def moved(self, scores, places):
        return scores + torch.where(places == self.best, -0.9 * self.off, 0.9 * self.off)


def test_the_best_row_is_found_though_all_scores_err_by_the_whole_bound(way):
    head, vectors, asked = draw(42, 520, 1, 9)
    vectors[:], asked = vectors[0], np.abs(asked)  # the query's ReLUs are open
    scan, limits = scanner(), bound(head, asked)
    block = projected(vectors)
    scan.top_k(block, head, asked, block.live, 1)
    off = float(limits.slope[0] * scan.resident("default").longest + limits.fixed[0])
    vectors[:, 0] = 2.0
    vectors[77, 0] += 0.2 * off / head.weight[0]
    lead = np.diff(np.sort(slow_logits(head, vectors, asked)[0])[-2:])
    assert 0.1 * off < lead < 0.3 * off
    block = projected(vectors, version=2)
    scan._kernels = Misleading(77, off)
    found = scan.top_k(block, head, asked, block.live, 1)
    assert found[0].rows.tolist() == [77]
    assert_best(found, head, vectors, asked, block, block.live, 1)


class Held(TorchDispatchMode):
    """The most bytes of tensors alive at a time, of those made inside; `known` was there before."""

    def __init__(self, known):
        super().__init__()
        self.known = known.untyped_storage().data_ptr()
        self.now = self.most = 0
        self.alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for made in found if isinstance(found, tuple | list) else [found]:
            if isinstance(made, torch.Tensor):
                self.count(made)
        return found

    def count(self, made):
        memory = made.untyped_storage()
        key, size = memory.data_ptr(), memory.nbytes()
        if key == self.known:
            return
        holders, _ = self.alive.get(key, (0, 0))
        self.alive[key] = holders + 1, size
        self.now += 0 if holders else size
        self.most = max(self.most, self.now)
        weakref.finalize(made, self.gone, key)

    def gone(self, key):
        holders, size = self.alive.pop(key)
        if holders > 1:
            self.alive[key] = holders - 1, size
        else:
            self.now -= size


@pytest.mark.parametrize("crowded", [False, True])
def test_plain_torch_stays_within_its_memory_however_many_queries_there_are(monkeypatch, crowded):
    monkeypatch.setattr(torch_candidates, "SCORES", 1 << 13)
    monkeypatch.setattr(torch_candidates, "DIRECT", 1 << 12)
    monkeypatch.setattr(torch_kernels, "TEMPORARY", 1 << 12)
    monkeypatch.setattr(torch_kernels, "ROWS", 1 << 9)
    head, vectors, asked = draw(43, 6000, 16, 4)
    if crowded:  # every row ties: every group must be looked at
        vectors[:] = vectors[0]
    block = projected(vectors)
    scan = scanner()
    scan._kernels = None
    scan.top_k(block, head, asked[:1], block.live, 8)
    with Held(scan.resident("default").tiles) as held:
        found = scan.top_k(block, head, asked, block.live, 8)
    assert_best(found, head, vectors, asked, block, block.live, 8)
    # What is scored at a time and chosen of it, two or three temporaries, and the mask.
    assert held.most <= 4 * ((1 << 13) + 3 * (1 << 12)) + 8 * len(vectors)
    assert held.most > 1 << 14, "nothing was counted"


def test_what_the_scan_is_made_of_does_not_import_the_scan():
    above = [i for i in imports_below("retriever/kernels") if within(i.module, "retriever.scan")]
    assert [str(i) for i in above] == []
    assert Path("retriever/kernels/scanner.py").is_file()
