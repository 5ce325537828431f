"""The GPU tiers against a fake that enforces the limits of the real ones."""

import threading

import faiss
import numpy as np
import pytest

from retriever.errors import DeviceUnavailable
from retriever.head import Head
from retriever.index import CandidateIndex, CosineIndex
from retriever.tiers import plan
from retriever.tiers.settings import IndexSettings
from tests.search import faiss_gpu_fake
from tests.search.search_blocks import block_of
from tests.search.test_tiers import HIDDEN, Bank, cosines_of, head_of, projected, used

STORAGES = ("float32", "float16", "int8")


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(plan, "LEAST_ROWS", 50)
    faiss_gpu_fake.installed(monkeypatch)


def on_gpu(kind, storage="float32", **more):
    return IndexSettings(
        kind=kind, storage=storage, lists=8, probes=8, width=16, **({"candidates": 120} | more)
    )


@pytest.mark.parametrize("kind", ["flat", "ivf"])
@pytest.mark.parametrize("storage", STORAGES)
def test_cosine_search_on_a_gpu_is_right_through_changes_and_filters(gpu, kind, storage):
    bank, rng = Bank(1, 300, 6), np.random.default_rng(2)
    index, done = CosineIndex(on_gpu(kind, storage)), []
    assert str(index.device) == "cuda:0"
    for step in range(8):
        block = block_of(**bank.state())
        done.append(index.follow(block))
        eligible = block.live if step % 2 else block.live & (rng.random(len(block.live)) < 0.3)
        for query in rng.standard_normal((2, 6)).astype(np.float32):
            ((rows, _),) = index.search(block, query[None], 5, eligible)
            right = cosines_of(np.nan_to_num(bank.vectors), query)
            assert (
                rows.tolist() == sorted(np.flatnonzero(eligible), key=lambda row: -right[row])[:5]
            )
        bank.change(6 * (step % 2), 5)
    # Nothing can be overwritten on a GPU, only appended to.
    assert done == ["rebuilt", "extended"] * 4


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_candidates_from_a_gpu_are_eligible_or_left_to_the_scan(gpu, kind):
    bank, rng = Bank(3, 600, HIDDEN), np.random.default_rng(4)
    index = CandidateIndex(head_of(5), on_gpu(kind))
    block = projected(**bank.state())
    queries = rng.standard_normal((6, HIDDEN)).astype(np.float32)
    for share in (0.15, 0.3, 0.5, 1.0):
        eligible = rng.random(600) < share
        for rows in index.candidates(block, queries, 60, eligible):
            assert rows is None or (len(rows) >= 60 and eligible[rows].all())
    assert all(rows is not None for rows in index.candidates(block, queries, 60))


def test_no_more_is_asked_of_a_gpu_than_it_gives(gpu):
    bank = Bank(6, 5000, 4)
    query = np.random.default_rng(7).standard_normal((1, 4)).astype(np.float32)
    eligible = np.random.default_rng(8).random(5000) < 0.3
    block = block_of(**bank.state())
    for settings in (on_gpu("flat"), on_gpu("ivf", candidates=2048)):
        for k in (100, 600, 1500):
            ((rows, _),) = CosineIndex(settings).search(block, query, k, eligible)
            right = cosines_of(bank.vectors, query[0])
            assert eligible[rows].all()
            best = np.sort(right[eligible])[::-1][:k]
            np.testing.assert_allclose(right[rows], best, atol=1e-5)
    head = Head(np.ones(4, np.float32), 0.0)
    index = CandidateIndex(head, on_gpu("flat"))
    # 30 % of the 2,048 that it gives.
    (rows,) = index.candidates(projected(**bank.state()), query, 1024, eligible)
    assert 400 < len(rows) < 900
    assert eligible[rows].all()
    few = np.arange(5000) % 20 == 0
    assert index.candidates(projected(**bank.state()), query, 240, few)[0] is not None


@pytest.mark.parametrize("kind", ["flat", "ivf"])
@pytest.mark.parametrize("share", [0.999, 0.9, 0.81, 0.79, 0.5, 0.1])
def test_a_gpus_index_is_used_under_a_light_a_middle_and_a_heavy_filter(gpu, kind, share):
    rng = np.random.default_rng(21)
    head, block = head_of(22), projected(rng.standard_normal((6000, HIDDEN)))
    index = CandidateIndex(head, IndexSettings(kind=kind, width=16))
    used(index, head, block, rng.random(6000) < share)


def test_threads_of_several_banks_share_one_resource_in_turns(gpu):
    indexes = [CosineIndex(on_gpu(kind)) for kind in ("flat", "ivf")]
    blocks = [block_of(**Bank(seed, 400, 6).state()) for seed in (9, 10)]
    query, failed = np.ones((1, 6), np.float32), []

    def work(index, block):
        try:
            for _ in range(20):
                index.search(block, query, 3)
        except RuntimeError as error:
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in [*zip(indexes, blocks, strict=True)] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert faiss_gpu_fake.StandardGpuResources.made == 1


@pytest.mark.parametrize("kind", ["flat", "ivf"])
@pytest.mark.parametrize("storage", STORAGES)
def test_an_index_of_a_gpu_is_saved_and_loaded(gpu, tmp_path, kind, storage):
    bank = Bank(11, 300, 6)
    block = block_of(**bank.state())
    index = CosineIndex(on_gpu(kind, storage))
    index.follow(block)
    assert index.save(tmp_path / "index") == 1
    again = CosineIndex(on_gpu(kind, storage))
    assert again.load(tmp_path / "index", block)
    assert again.follow(block) == "same"
    query = np.ones((2, 6), np.float32)
    for ours, theirs in zip(
        index.search(block, query, 5), again.search(block, query, 5), strict=True
    ):
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_flat_vectors_are_halved_on_the_gpu_where_less_than_float32_is_asked_for(gpu):
    block = block_of(**Bank(12, 60, 6).state())
    for storage, half in (("float32", False), ("float16", True), ("int8", True)):
        index = CosineIndex(on_gpu("flat", storage))
        index.follow(block)
        assert index._tier.copy.tier._index.half is half


def test_dead_rows_never_reach_the_gpu(gpu):
    vectors = np.random.default_rng(13).standard_normal((100, 6)).astype(np.float32)
    live = np.arange(100) % 2 == 0
    vectors[~live] = np.nan
    block = block_of(vectors, live=live)
    for kind in ("flat", "ivf"):
        index = CosineIndex(on_gpu(kind))
        ((rows, cosines),) = index.search(block, np.ones((1, 6), np.float32), 9)
        assert live[rows].all()
        assert np.isfinite(cosines).all()


def test_a_gpu_that_is_not_there_is_named(gpu):
    with pytest.raises(DeviceUnavailable, match="cuda:3"):
        CosineIndex(IndexSettings(device="cuda:3"))
    assert str(CosineIndex(IndexSettings(device="cpu")).device) == "cpu"


def test_a_graph_stays_on_the_cpu_where_auto_finds_a_gpu(gpu):
    index = CosineIndex(on_gpu("hnsw"))
    assert str(index.device) == "cpu"
    block = block_of(**Bank(14, 100, 6).state())
    assert len(index.search(block, np.ones((1, 6), np.float32), 3)[0][0]) == 3


def test_the_fake_refuses_what_the_real_ones_refuse(gpu):
    flat = faiss.IndexFlatIP(4)
    flat.add(np.eye(4, dtype=np.float32))
    moved = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, flat)
    with pytest.raises(RuntimeError, match="remove_ids"):
        moved.remove_ids(np.array([1]))
    with pytest.raises(RuntimeError, match="add_with_ids"):
        moved.add_with_ids(np.eye(4, dtype=np.float32), np.arange(4))
    with pytest.raises(RuntimeError, match="2048"):
        moved.search(np.eye(4, dtype=np.float32), 2049)
    nothing = faiss.SearchParameters(sel=faiss.IDSelectorBatch(np.array([2])))
    assert set(moved.search(np.eye(4, dtype=np.float32), 4, params=nothing)[1].ravel()) == {
        0,
        1,
        2,
        3,
    }
    with pytest.raises(RuntimeError, match="not implemented on GPU"):
        faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, faiss.IndexHNSWFlat(4, 8))
