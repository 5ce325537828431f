"""The GPU's scan against a float64 one-liner, on the CPU: the kernels in plain torch.

`test_gpu_scan_interpreted` runs this file once more with Triton's interpreter.
"""

import logging
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from retriever.device import Device
from retriever.errors import DeviceUnavailable, IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.following import Follower
from retriever.head import Head
from retriever.kernels import torch_candidates
from retriever.kernels.numpy_scan import NumpyScanner
from retriever.kernels.torch_kernels import TILE
from retriever.kernels.torch_resident import Resident
from retriever.kernels.torch_scan import TorchScanner
from tests.search.search_blocks import block_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
STORAGES = ("bank", "float16", "bfloat16")


def scanner(storage="bank", **more):
    return TorchScanner(Device.parse("cpu"), storage, **more)


def projected(vectors, **more):
    block = block_of(vectors, **more)
    return replace(block, projections=block.embeddings)


def draw(seed, cases, queries, hidden, *, bias=False, rank=0):
    rng = np.random.default_rng(seed)
    head = Head(rng.standard_normal(hidden).astype(np.float32), float(rng.normal()), bias, rank)
    return (
        head,
        rng.standard_normal((cases, head.case_width)).astype(np.float32),
        rng.standard_normal((queries, head.query_width)).astype(np.float32),
    )


def slow_logits(head, vectors, queries):
    vectors, queries = vectors.astype(np.float64), queries.astype(np.float64)
    hidden = head.hidden
    sums = vectors[None, :, :hidden] + queries[:, None, :hidden]
    logits = np.maximum(sums, 0.0) @ head.weight.astype(np.float64) + head.offset
    if head.bias:
        logits += vectors[:, hidden]
    if head.rank:
        logits += queries[:, hidden:] @ vectors[:, -head.rank :].T
    return logits


def slow_best(logits, ids, eligible, k, rising=True):
    sign = 1 if rising else -1
    return [
        [i for _, _, i in sorted((-sign * s, ids[i], i) for i, s in enumerate(row) if eligible[i])][
            :k
        ]
        for row in logits.tolist()
    ]


def assert_best(found, head, vectors, queries, block, eligible, k, rising=True):
    logits = slow_logits(head, vectors, queries)
    expected = slow_best(logits, block.ids, eligible, k, rising)
    assert [best.rows.tolist() for best in found] == expected
    for best, row in zip(found, logits, strict=True):
        np.testing.assert_allclose(best.logits, row[best.rows], rtol=1e-12, atol=1e-12)


@pytest.fixture(params=["every score", "best of groups"])
def way(request, monkeypatch):
    """Both ways to the candidates, whatever the size of the bank."""
    if request.param == "best of groups":
        monkeypatch.setattr(torch_candidates, "DIRECT", 0)
        monkeypatch.setattr(torch_candidates, "SPARE", 2)


def test_the_kernels_are_those_that_this_run_is_about():
    assert scanner().describe().startswith("triton" if INTERPRETED else "torch")
    assert "storage bank" in scanner().describe()


@pytest.mark.parametrize(
    ("cases", "queries", "hidden", "bias", "rank"),
    [
        (1, 1, 1, False, 0),
        (2, 3, 5, True, 1),
        (256, 2, 37, False, 0),
        (257, 1, 37, True, 8),
        (300, 17, 9, True, 0),
        (257, 2, 3, False, 64),
        (129, 1, 384, False, 0),
        (129, 1, 512, True, 0),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_best_are_those_of_the_formula(way, cases, queries, hidden, bias, rank, dtype):
    head, vectors, asked = draw(cases + hidden, cases, queries, hidden, bias=bias, rank=rank)
    block = projected(vectors, cuts=(cases // 3, cases // 2), dtype=dtype)
    k = 5 if hidden < 100 else 1
    found = scanner().top_k(block, head, asked, block.live, k)
    assert_best(found, head, vectors.astype(dtype), asked, block, block.live, k)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("queries", "bias", "rank"), [(1, False, 0), (17, True, 3)])
def test_every_logit_is_that_of_the_formula(queries, bias, rank, dtype):
    head, vectors, asked = draw(queries, 300, queries, 13, bias=bias, rank=rank)
    block = projected(vectors, dtype=dtype)
    logits = scanner().logits(block, head, asked)
    assert logits.dtype == np.float32
    expected = slow_logits(head, vectors.astype(dtype), asked)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("storage", STORAGES)
def test_fewer_bits_in_the_copy_change_no_answer(way, storage):
    head, vectors, asked = draw(1, 520, 3, 11, bias=True, rank=3)
    block = projected(vectors)
    found = scanner(storage).top_k(block, head, asked, block.live, 9)
    assert_best(found, head, vectors, asked, block, block.live, 9)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_answer_is_that_of_the_cpu_to_the_last_bit(way, storage):
    head, vectors, asked = draw(31, 400, 3, 21, bias=True, rank=2)
    block = projected(vectors, cuts=(7, 300), dtype=np.float16)
    found = scanner(storage).top_k(block, head, asked, block.live, 6)
    expected = NumpyScanner().top_k(block, head, asked, block.live, 6)
    for best, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(best.rows, other.rows)
        np.testing.assert_array_equal(best.logits, other.logits)


@pytest.mark.parametrize("rising", [True, False])
def test_only_eligible_rows_are_found_and_the_lowest_first_where_asked(way, rising):
    head, vectors, asked = draw(2, 800, 3, 9, bias=True, rank=2)
    rng = np.random.default_rng(3)
    eligible = rng.random(800) < 0.1
    eligible[256:512] = False  # a whole tile
    block = projected(vectors, ids=rng.permutation(10_000)[:800])
    found = scanner().top_k(block, head, asked, eligible, 6, rising=rising)
    assert_best(found, head, vectors, asked, block, eligible, 6, rising)


def test_more_than_there_are_gives_all_of_them(way):
    head, vectors, asked = draw(4, 300, 2, 8)
    block = projected(vectors)
    eligible = np.zeros(300, bool)
    eligible[[3, 299]] = True
    for allowed in (eligible, block.live):
        found = scanner().top_k(block, head, asked, allowed, 1000)
        assert_best(found, head, vectors, asked, block, allowed, 1000)


def test_nothing_to_find_gives_nothing():
    head, vectors, asked = draw(5, 40, 2, 8)
    none = np.zeros(40, bool)
    empty = projected(vectors[:0])
    assert [len(best.rows) for best in scanner().top_k(empty, head, asked, empty.live, 3)] == [0, 0]
    block = projected(vectors)
    assert [len(best.rows) for best in scanner().top_k(block, head, asked, none, 3)] == [0, 0]
    assert scanner().top_k(block, head, asked[:0], block.live, 3) == []
    assert scanner().logits(empty, head, asked).shape == (2, 0)
    assert scanner().logits(block, head, asked[:0]).shape == (0, 40)


def test_equal_cases_tie_and_the_lower_id_goes_first(way):
    head, vectors, asked = draw(6, 3, 2, 9, rank=1)
    many = np.concatenate(
        [np.repeat(vectors[:1], 400, axis=0), np.repeat(vectors[1:], 200, axis=0)]
    )
    order = np.random.default_rng(7).permutation(len(many))
    block = projected(many[order], ids=np.random.default_rng(8).permutation(len(many)) + 1)
    found = scanner().top_k(block, head, asked, block.live, 12)
    assert_best(found, head, many[order], asked, block, block.live, 12)


@pytest.mark.parametrize("storage", STORAGES)
def test_scores_that_float32_cannot_tell_apart_come_in_their_true_order(way, storage):
    head, vectors, asked = draw(9, 1, 2, 9)
    near = np.repeat(vectors, 520, axis=0)
    near[:, 0] *= 1 + np.float32(2e-7) * np.random.default_rng(10).integers(0, 40, 520)
    block = projected(near)
    found = scanner(storage).top_k(block, head, asked, block.live, 5)
    assert_best(found, head, near, asked, block, block.live, 5)


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_scores_that_fewer_bits_put_in_a_wrong_order_come_in_their_true_order(way, storage):
    head, vectors, asked = draw(32, 1, 2, 9)
    noise = np.random.default_rng(33).standard_normal((520, 9)).astype(np.float32)
    near = vectors * (1 + np.float32(2e-3 if storage == "bfloat16" else 3e-4) * noise)
    block = projected(near)
    found = scanner(storage).top_k(block, head, asked, block.live, 5)
    assert_best(found, head, near, asked, block, block.live, 5)


def test_near_ties_crowded_into_one_group_come_in_their_true_order(way):
    head, vectors, asked = draw(34, 520, 2, 9)
    best = vectors[slow_logits(head, vectors, asked)[0].argmax()]
    crowd = np.arange(64, 96)
    vectors[crowd] = best
    vectors[crowd, 0] *= 1 + np.float32(2e-7) * np.random.default_rng(35).permutation(32)
    vectors[:, :] *= np.where(np.isin(np.arange(520), crowd), 3, 1)[:, None]
    block = projected(vectors)
    found = scanner().top_k(block, head, asked[:1], block.live, 3)
    assert set(found[0].rows.tolist()) <= set(crowd.tolist())
    assert_best(found, head, vectors, asked[:1], block, block.live, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["hidden", "bias", "rank"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_broken_case_is_refused_by_name_where_it_may_be_found(way, value, place, dtype):
    head, vectors, asked = draw(11, 400, 2, 6, bias=True, rank=2)
    vectors[300, {"hidden": 5, "bias": 6, "rank": 8}[place]] = value
    block = projected(vectors, dtype=dtype, ids=np.arange(1000, 1400))
    with pytest.raises(NonFiniteScore, match="query 0 and case 1300"):
        scanner().top_k(block, head, asked, block.live, 2)
    eligible = block.live.copy()
    eligible[300] = False
    found = scanner().top_k(block, head, asked, eligible, 2)
    assert_best(found, head, vectors.astype(dtype), asked, block, eligible, 2)


def test_a_dead_row_may_hold_anything(way):
    head, vectors, asked = draw(12, 500, 2, 6)
    live = np.ones(500, bool)
    live[::7] = False
    held = vectors.copy()
    held[~live] = np.nan
    block = projected(held, live=live)
    found = scanner().top_k(block, head, asked, live, 4)
    assert_best(found, head, np.where(live[:, None], vectors, 0), asked, block, live, 4)


def test_a_broken_query_is_refused(way):
    head, vectors, asked = draw(13, 400, 2, 6)
    asked[1, 3] = np.nan
    block = projected(vectors)
    with pytest.raises(NonFiniteScore, match="query 1"):
        scanner().top_k(block, head, asked, block.live, 2)


def test_overflow_is_refused_and_not_ranked(way):
    head = Head(np.ones(4, np.float32), 0.0)
    block = projected(np.full((300, 4), 3e38, np.float32))
    with pytest.raises(NonFiniteScore):
        scanner().top_k(block, head, np.ones((1, 4), np.float32), block.live, 1)


def test_values_beyond_float16_keep_their_place_and_the_log_says_what_it_costs(way, caplog):
    head, vectors, asked = draw(14, 400, 2, 6)
    vectors[7] *= 1e6
    block = projected(vectors)
    with caplog.at_level(logging.WARNING):
        found = scanner("float16").top_k(block, head, asked, block.live, 3)
    assert_best(found, head, vectors, asked, block, block.live, 3)
    assert "beyond torch.float16" in caplog.text


def test_queries_beyond_what_is_scored_at_a_time_are_scored_in_turn(way, monkeypatch):
    monkeypatch.setattr(torch_candidates, "SCORES", 1000)
    head, vectors, asked = draw(15, 400, 5, 4)
    block = projected(vectors)
    found = scanner().top_k(block, head, asked, block.live, 3)
    assert_best(found, head, vectors, asked, block, block.live, 3)
    together = scanner().logits(block, head, asked)
    np.testing.assert_allclose(together, slow_logits(head, vectors, asked), rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_the_head_is_refused():
    head, vectors, asked = draw(16, 10, 2, 6)
    block = projected(vectors)
    with pytest.raises(InvalidInput, match="k must be at least 1, got 0"):
        scanner().top_k(block, head, asked, block.live, 0)
    with pytest.raises(InvalidInput, match=r"\(10, 6\).*\(2, 5\)"):
        scanner().top_k(block, head, asked[:, :5], block.live, 1)
    with pytest.raises(IndexUnavailable, match="no projections"):
        scanner().top_k(block_of(vectors), head, asked, block.live, 1)
    with pytest.raises(InvalidInput, match="int8 is of the CPU"):
        scanner("int8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(DeviceUnavailable, match="device=cuda:0"):
        TorchScanner(Device.parse("cuda"))


def changed_blocks(head, vectors, rng):
    """A bank's life: rows change, are appended, forgotten, used again; (block, vectors) each."""
    ids, stamps = np.arange(1, 401), np.ones(400, np.int64)
    live, held = np.ones(400, bool), vectors[:400].copy()
    made = []
    for version in range(1, 6):
        if version > 1:
            rows = rng.choice(len(ids), 9, replace=False)
            held[rows[:3]] = rng.standard_normal((3, head.case_width))
            stamps[rows[:3]] = version  # updated
            live[rows[3:6]] = False  # forgotten
            live[rows[6:]] = True
            ids[rows[6:]] = 1000 * version + np.arange(3)  # slots used again
            held[rows[6:]] = rng.standard_normal((3, head.case_width))
            stamps[rows[6:]] = version
            more = vectors[len(ids) : len(ids) + 120]  # appended
            ids = np.concatenate([ids, 500 * version + 50_000 + np.arange(len(more))])
            live = np.concatenate([live, np.ones(len(more), bool)])
            stamps = np.concatenate([stamps, np.full(len(more), version)])
            held = np.concatenate([held, more])
        content = held.copy()
        content[~live] = np.nan
        block = projected(
            content, ids=ids.copy(), live=live.copy(), stamps=stamps.copy(), version=version
        )
        made.append((block, np.where(live[:, None], held, 0.0).astype(np.float32)))
    return made


@pytest.mark.parametrize("storage", STORAGES)
def test_the_copy_follows_the_bank_and_older_blocks_are_read_from_it(storage):
    head, vectors, asked = draw(17, 2000, 2, 10, bias=True)
    made = changed_blocks(head, vectors, np.random.default_rng(18))
    scan = scanner(storage)
    for block, held in [*made, made[2], made[-1]]:
        found = scan.top_k(block, head, asked, block.live, 8)
        assert_best(found, head, held, asked, block, block.live, 8)
        exact = slow_logits(head, held, asked)[:, block.live]
        logits = scan.logits(block, head, asked)[:, block.live]
        np.testing.assert_allclose(logits, exact, atol=0.2 if storage == "bfloat16" else 0.02)


def resident(storage="bank"):
    copy = Resident(torch.device("cpu"), storage, lambda need: None)
    return copy, Follower(copy, "projections")


def rows_of(copy, count):
    return copy.tiles.float().transpose(1, 2).reshape(-1, copy.tiles.shape[1])[:count].numpy()


def test_every_change_reaches_the_tiles_and_forgotten_rows_are_zero_there():
    head, vectors, _ = draw(19, 2000, 1, 10)
    copy, follower = resident()
    done = []
    for block, held in changed_blocks(head, vectors, np.random.default_rng(20)):
        with follower.held(block) as state:
            done.append(state)
            np.testing.assert_array_equal(rows_of(copy, len(held)), held)
            assert not copy.tiles.transpose(1, 2).reshape(-1, 10)[len(held) :].any()
    assert done == ["rebuilt"] + ["updated"] * 4


def test_memory_that_is_given_back_was_overwritten():
    _, vectors, _ = draw(21, 2000, 1, 10)
    copy, follower = resident()
    with follower.held(projected(vectors[:300])):
        first = copy.tiles
    with follower.held(projected(vectors, version=2)):
        second = copy.tiles
    assert second is not first
    assert not first.any(), "the tiles that became too few"
    assert second.any()
    follower.drop()
    assert copy.tiles is None
    assert not second.any(), "the tiles that were dropped"


def test_after_a_drop_the_bank_is_read_until_copies_are_accepted_again():
    head, vectors, asked = draw(22, 300, 2, 7)
    block = projected(vectors, version=5)
    scan = scanner(max_bytes=10**6)
    for step in (None, scan.drop, scan.accept):
        if step is not None:
            step(*("default", 5)[: 1 + (step == scan.accept)])
        found = scan.top_k(block, head, asked, block.live, 3)
        assert_best(found, head, vectors, asked, block, block.live, 3)
        np.testing.assert_allclose(
            scan.logits(block, head, asked), slow_logits(head, vectors, asked), atol=1e-4
        )


def test_a_namespace_that_does_not_fit_is_refused_with_the_need_and_the_remedy():
    head, vectors, asked = draw(23, 3000, 1, 16)
    size = 12 * 16 * TILE * 4
    block = projected(vectors)
    with pytest.raises(IndexUnavailable, match=r"need 0\.2 MiB.*0\.1 MiB are free.*device=cpu"):
        scanner(max_bytes=size - 2**16).top_k(block, head, asked, block.live, 3)
    scan = scanner(max_bytes=size)  # without any to spare for growth
    assert_best(
        scan.top_k(block, head, asked, block.live, 3), head, vectors, asked, block, block.live, 3
    )
    other = replace(projected(vectors[:1]), namespace="other")
    with pytest.raises(IndexUnavailable, match="drop another namespace"):
        scan.top_k(other, head, asked, other.live, 1)
    scan.drop("default")
    assert len(scan.top_k(other, head, asked, other.live, 1)[0].rows) == 1


def test_no_room_to_grow_beside_the_old_tiles_makes_the_copy_anew():
    head, vectors, asked = draw(24, 700, 1, 8)
    scan = scanner(max_bytes=3 * 8 * TILE * 4)
    for version, count in ((1, 500), (2, 700)):
        block = projected(vectors[:count], version=version)
        found = scan.top_k(block, head, asked, block.live, 3)
        assert_best(found, head, vectors[:count], asked, block, block.live, 3)


def test_namespaces_do_not_meet():
    head, vectors, asked = draw(25, 60, 1, 8)
    scan = scanner()
    for name, part in (("a", vectors[:30]), ("b", vectors[30:]), ("a", vectors[:30])):
        block = projected(part, namespace=name)
        found = scan.top_k(block, head, asked, block.live, 4)
        assert_best(found, head, part, asked, block, block.live, 4)


def test_many_threads_search_while_the_bank_changes():
    head, vectors, asked = draw(26, 2000, 1, 10)
    made = changed_blocks(head, vectors, np.random.default_rng(27))
    expected = [
        slow_best(slow_logits(head, held, asked), block.ids, block.live, 5) for block, held in made
    ]
    scan, failures = scanner(), []

    def search(seed):
        rng = np.random.default_rng(seed)
        try:
            for place in rng.integers(0, len(made), 6):
                block = made[place][0]
                found = scan.top_k(block, head, asked, block.live, 5)
                assert [best.rows.tolist() for best in found] == expected[place]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


class Failing:
    """Kernels that a compiler refuses."""

    def scores(self, *arguments):
        raise RuntimeError("no ptxas here\nand much more")


def test_where_triton_fails_plain_torch_scans_and_the_log_says_so_once(caplog):
    head, vectors, asked = draw(28, 50, 2, 8)
    block = projected(vectors)
    scan = scanner()
    scan._kernels = Failing()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = scan.top_k(block, head, asked, block.live, 3)
            assert_best(found, head, vectors, asked, block, block.live, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "scanning in plain torch: triton failed: RuntimeError: no ptxas here"
    ]
    assert scan.describe().startswith("torch")


class Exhausted:
    """A device without memory for scores."""

    def scores(self, *arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")


def test_a_device_that_runs_out_of_memory_is_named_with_a_remedy():
    head, vectors, asked = draw(29, 50, 2, 8)
    block = projected(vectors)
    scan = scanner()
    scan._kernels = Exhausted()
    with pytest.raises(IndexUnavailable, match=r"does not fit on cpu .*fewer queries.*device=cpu"):
        scan.top_k(block, head, asked, block.live, 3)


@pytest.mark.parametrize("storage", STORAGES)
def test_warming_up_leaves_nothing_behind(storage):
    head, vectors, asked = draw(30, 50, 2, 8, bias=True, rank=2)
    scan = scanner(storage, max_bytes=2 * TILE * 11 * 4)
    scan.warm_up(head)
    block = projected(vectors)
    assert_best(
        scan.top_k(block, head, asked, block.live, 3), head, vectors, asked, block, block.live, 3
    )
