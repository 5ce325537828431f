"""The FAISS index against a full sort, and its saved copy against every kind of damage."""

import hashlib
import json
import logging
import shutil
import threading
import weakref

import numpy as np
import pytest

from retriever.errors import (
    ConfigError,
    DeviceUnavailable,
    IndexUnavailable,
    InvalidInput,
    NonFiniteScore,
)
from retriever.index import CosineIndex
from retriever.saved_index import ARRAYS_FILE, INDEX_FILE, ROWS_FILE, STAMP_FILE
from retriever.tiers.settings import IndexSettings
from tests.search.search_blocks import TinyBlock, block_of, changed, first, vectors_of

FLAT = IndexSettings(kind="flat", device="cpu")


def slow_search(block, query, k):
    vectors = vectors_of(block).astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = vectors @ query / np.where(lengths == 0, 1, lengths) / np.linalg.norm(query)
    best = sorted((-round(c, 6), block.ids[i]) for i, c in enumerate(cosines) if block.live[i])
    return [identity for _, identity in best[:k]]


def ids_of(block, found):
    return [block.ids[rows].tolist() for rows, _ in found]


def random_block(seed, count, width=8, **more):
    rng = np.random.default_rng(seed)
    return block_of(rng.standard_normal((count, width)), **more)


@pytest.mark.parametrize("seed", range(8))
def test_the_index_equals_a_full_sort_with_ties_and_dead_cases(seed):
    rng = np.random.default_rng(seed)
    # Few distinct vectors: long runs of exact ties, also across the k-th place.
    vectors = rng.integers(-1, 2, (600, 3)).astype(np.float32)
    block = block_of(vectors, live=rng.random(600) < 0.6)
    queries = rng.standard_normal((4, 3)).astype(np.float32)
    index = CosineIndex(FLAT)
    for k in (1, 3, 40, 600, 5000):
        found = index.search(block, queries, k)
        assert ids_of(block, found) == [slow_search(block, query, k) for query in queries]


def test_a_bank_larger_than_the_candidate_limit_is_searched_exactly():
    block = random_block(1, 5000)
    queries = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float32)
    vectors = vectors_of(block)
    lengths = np.linalg.norm(vectors, axis=1)
    for k in (5, 3000):
        for query, (rows, cosines) in zip(
            queries, CosineIndex(FLAT).search(block, queries, k), strict=True
        ):
            every = vectors @ query / lengths / np.linalg.norm(query)
            np.testing.assert_allclose(cosines, np.sort(every)[::-1][:k], atol=1e-5)
            np.testing.assert_allclose(cosines, every[rows], atol=1e-5)
            assert len(set(rows.tolist())) == k


def test_thousands_of_equal_vectors_come_back_in_order_of_id():
    block = block_of(np.tile([0.3, -0.7, 0.2], (4000, 1)))
    ((rows, cosines),) = CosineIndex(FLAT).search(block, np.ones((1, 3), np.float32), 7)
    assert block.ids[rows].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert len(set(cosines.tolist())) == 1


def test_cosine_ignores_length_and_a_zero_vector_is_near_nothing():
    block = block_of([[0, 0], [5, 0], [0.1, 0], [-3, 0]])
    ((rows, cosines),) = CosineIndex(FLAT).search(block, np.array([[2, 0]], np.float32), 4)
    assert block.ids[rows].tolist() == [2, 3, 1, 4]
    np.testing.assert_allclose(cosines, [1, 1, 0, -1], atol=1e-6)


def test_one_case_and_an_empty_bank():
    one = block_of([[1.0, 0.0]])
    assert ids_of(one, CosineIndex(FLAT).search(one, np.ones((1, 2), np.float32), 3)) == [[1]]
    none = block_of(np.empty((0, 2)))
    ((rows, cosines),) = CosineIndex(FLAT).search(none, np.ones((1, 2), np.float32), 3)
    assert len(rows) == len(cosines) == 0


def test_rows_are_added_overwritten_or_the_index_is_built_anew_as_the_block_demands():
    full = random_block(3, 50)
    index = CosineIndex(FLAT)
    start = first(full, 30)
    assert index.follow(start) == "rebuilt"
    assert index.follow(start) == "same"
    assert index.follow(first(full, 30, version=2)) == "same"
    assert index.follow(changed(full, version=3)) == "extended"
    vectors = vectors_of(full)
    vectors[4] = -vectors[4]
    stamps = np.where(np.arange(50) == 4, 4, full.stamps)
    patched = changed(full, vectors=vectors, stamps=stamps, version=4)
    assert index.follow(patched) == "updated"
    assert ids_of(patched, index.search(patched, vectors[4][None], 1)) == [[5]]
    fewer = first(patched, 49, version=5)
    assert index.follow(fewer) == "rebuilt"
    turned = changed(fewer, ids=fewer.ids[::-1], vectors=vectors_of(fewer)[::-1], version=6)
    assert index.follow(turned) == "rebuilt"
    assert index.follow(changed(turned, bank="b2")) == "rebuilt"
    assert index.follow(changed(turned, bank="b2", embeddings_key="other")) == "rebuilt"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_index_stays_right_through_deletes_updates_and_reused_rows(seed, dtype):
    rng = np.random.default_rng(seed)
    index, count, next_id = CosineIndex(FLAT), 40, 41
    vectors = rng.integers(-2, 3, (count, 4)).astype(dtype)
    ids, stamps, live = np.arange(1, count + 1), np.ones(count, np.int64), np.ones(count, bool)
    for version in range(1, 25):
        block = block_of(
            vectors,
            ids=ids,
            stamps=stamps,
            live=live,
            cuts=(7, 7, 30),
            dtype=dtype,
            version=version,
        )
        queries = rng.standard_normal((2, 4)).astype(np.float32)
        for k in (1, 6):
            expected = [slow_search(block, query, k) for query in queries]
            assert ids_of(block, index.search(block, queries, k)) == expected
        # The arrays are new every time, as a block's never change.
        vectors, ids, stamps, live = (x.copy() for x in (vectors, ids, stamps, live))
        for row in rng.choice(len(ids), 5, replace=False):
            if live[row] and rng.random() < 0.5:
                live[row] = False
                vectors[row] = np.nan  # what stands in a dead row means nothing
                continue
            if not live[row]:
                ids[row], next_id = next_id, next_id + 1
            vectors[row], stamps[row], live[row] = rng.integers(-2, 3, 4), version + 1, True
        if version % 3 == 0:
            vectors = np.vstack([vectors, rng.integers(-2, 3, (2, 4)).astype(dtype)])
            ids = np.append(ids, [next_id, next_id + 1])
            stamps, live = np.append(stamps, [version + 1] * 2), np.append(live, [True] * 2)
            next_id += 2


def test_a_row_that_died_leaves_zeros_in_the_index():
    block = random_block(8, 40)
    index = CosineIndex(FLAT)
    index.follow(block)
    dead = changed(block, live=np.arange(40) != 3, version=2)
    assert index.follow(dead) == "updated"
    held = index._tier.copy.tier.state()[0]
    assert not held.reconstruct(3).any()
    assert held.reconstruct(4).any()
    assert index.follow(changed(block, live=np.zeros(40, bool), version=3)) == "rebuilt"
    assert index._tier.copy.tier is None
    assert ids_of(block, index.search(dead, np.ones((1, 8), np.float32), 40))[0][-1] != 4


def test_the_index_keeps_no_block_from_being_let_go():
    index = CosineIndex(FLAT)
    block = random_block(9, 20)
    index.search(block, np.ones((1, 8), np.float32), 3)
    gone = weakref.ref(block)
    del block
    assert gone() is None


def test_only_eligible_rows_are_found_and_the_others_may_hold_anything():
    rng = np.random.default_rng(10)
    vectors = rng.standard_normal((300, 8))
    eligible = rng.random(300) < 0.1
    block = block_of(vectors, cuts=(100,))
    query = rng.standard_normal((1, 8)).astype(np.float32)
    for k in (1, 5, 300):
        found = CosineIndex(FLAT).search(block, query, k, eligible)
        assert ids_of(block, found) == [slow_search(changed(block, live=eligible), query[0], k)]
    assert len(CosineIndex(FLAT).search(block, query, 3, np.zeros(300, bool))[0][0]) == 0


def test_a_dropped_index_scans_until_it_may_take_blocks_in_again(tmp_path):
    block = random_block(11, 100)
    query = np.ones((1, 8), np.float32)
    index = CosineIndex(FLAT)
    index.follow(block)
    index.drop()
    assert index.follow(block) == "older"
    assert ids_of(block, index.search(block, query, 5)) == [slow_search(block, query[0], 5)]
    assert index.save(tmp_path / "index") is None
    index.accept(2)
    assert index.follow(block) == "older"
    assert index.follow(changed(block, version=2)) == "rebuilt"


def test_a_slower_search_on_an_older_snapshot_never_sees_newer_cases():
    old = block_of([[1, 0], [0, 1]])
    new = block_of([[1, 0], [0, 1], [1, 1]], version=2)
    index = CosineIndex(FLAT)
    query = np.array([[1, 1]], np.float32)
    assert ids_of(new, index.search(new, query, 1)) == [[3]]
    assert ids_of(old, index.search(old, query, 5)) == [[1, 2]]
    assert ids_of(new, index.search(new, query, 1)) == [[3]]


def test_threads_searching_while_the_bank_grows_get_their_own_snapshot():
    full = random_block(4, 400)
    blocks = [first(full, n, version=n) for n in range(100, 401, 25)]
    index, wrong = CosineIndex(FLAT), []
    query = np.random.default_rng(5).standard_normal((1, 8)).astype(np.float32)

    def work(order):
        for block in order:
            if ids_of(block, index.search(block, query, 5)) != [slow_search(block, query[0], 5)]:
                wrong.append(block.version)

    threads = [threading.Thread(target=work, args=(order,)) for order in (blocks, blocks[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_vectors_and_queries_that_are_no_numbers_are_refused():
    with pytest.raises(NonFiniteScore, match="case 2"):
        CosineIndex(FLAT).search(block_of([[1, 0], [np.nan, 0]]), np.ones((1, 2), np.float32), 1)
    with pytest.raises(NonFiniteScore):
        CosineIndex(FLAT).search(block_of([[1, 0]]), np.full((1, 2), np.inf, np.float32), 1)


def test_wrong_width_wrong_k_and_missing_embeddings_say_what_to_do():
    block = block_of([[1, 0]])
    with pytest.raises(InvalidInput, match=r"\(1, 3\) must be \(Q, 2\)"):
        CosineIndex(FLAT).search(block, np.ones((1, 3), np.float32), 1)
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        CosineIndex(FLAT).search(block, np.ones((1, 2), np.float32), 0)
    bare = TinyBlock(np.arange(1), np.ones(1, bool))
    with pytest.raises(IndexUnavailable, match="cosine_encoder"):
        CosineIndex(FLAT).search(bare, np.ones((1, 2), np.float32), 1)


def test_a_device_that_is_not_there_is_refused_by_name():
    import faiss

    with pytest.raises(ConfigError, match="tpu"):
        IndexSettings(device="tpu")
    if not hasattr(faiss, "StandardGpuResources"):
        with pytest.raises(DeviceUnavailable, match="cuda"):
            CosineIndex(IndexSettings(device="cuda"))
        assert str(CosineIndex(IndexSettings(device="auto")).device) == "cpu"


@pytest.fixture
def saved(tmp_path):
    block = random_block(6, 40)
    index = CosineIndex(FLAT)
    index.follow(block)
    folder = tmp_path / "index"
    index.save(folder)
    return block, folder


def test_a_saved_index_is_reloaded_and_answers_the_same(saved):
    block, folder = saved
    index = CosineIndex(FLAT)
    assert index.load(folder, block)
    assert index.follow(block) == "same"
    query = np.ones((1, 8), np.float32)
    assert ids_of(block, index.search(block, query, 5)) == [slow_search(block, query[0], 5)]


def test_a_saved_index_of_a_shorter_bank_is_extended(saved):
    block, folder = saved
    more = random_block(7, 3)
    grown = block_of(np.vstack([vectors_of(block), vectors_of(more)]), version=9)
    index = CosineIndex(FLAT)
    assert index.load(folder, grown)
    assert index.follow(grown) == "same"
    assert ids_of(grown, index.search(grown, vectors_of(more)[2:], 1)) == [[43]]


def test_a_saved_index_takes_in_what_changed_since(saved):
    block, folder = saved
    vectors, live = vectors_of(block), np.arange(40) != 7
    vectors[3] = np.arange(8)
    stamps = np.where(np.arange(40) == 3, 5, block.stamps)
    now = changed(block, vectors=vectors, stamps=stamps, live=live, version=5)
    index = CosineIndex(FLAT)
    assert index.load(folder, now)
    assert index.unsaved == 2
    for query in (vectors[3], vectors_of(block)[7]):
        found = index.search(now, query[None], 4)
        assert ids_of(now, found) == [slow_search(now, query, 4)]


def test_a_saved_index_whose_rows_have_moved_is_built_anew(saved, caplog):
    block, folder = saved
    turned = changed(block, ids=block.ids[::-1], vectors=vectors_of(block)[::-1])
    index = CosineIndex(FLAT)
    assert not index.load(folder, turned)
    assert "where they were" in caplog.text
    assert index.follow(turned) == "rebuilt"


def test_a_broken_vector_stays_refused_after_loading(saved):
    block, folder = saved
    broken = block_of(np.vstack([vectors_of(block), np.full((1, 8), np.nan)]), version=2)
    index, query = CosineIndex(FLAT), np.ones((1, 8), np.float32)
    assert index.load(folder, broken)
    for _ in range(2):
        with pytest.raises(NonFiniteScore, match="case 41"):
            index.search(broken, query, 1)
        found = index.search(broken, query, 3, np.arange(41) < 40)
        assert ids_of(block, found) == [slow_search(block, query[0], 3)]


def flip_a_byte(folder):
    path = folder / INDEX_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def cut_off(folder):
    path = folder / INDEX_FILE
    path.write_bytes(path.read_bytes()[:-40])


def restamp(**values):
    def damage(folder):
        stamp = json.loads((folder / STAMP_FILE).read_text())
        (folder / STAMP_FILE).write_text(json.dumps(stamp | values))

    return damage


def rearrayed(data):
    """Other bytes for the arrays, with the digest that is theirs."""

    def damage(folder):
        (folder / ARRAYS_FILE).write_bytes(data)
        restamp(arrays_sha256=hashlib.sha256(data).hexdigest())(folder)

    return damage


def unstamped(folder):
    (folder / STAMP_FILE).unlink()
    (folder / STAMP_FILE).mkdir()


def plain_file(folder):
    shutil.rmtree(folder)
    folder.write_text("no index")


def linked(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


@pytest.mark.parametrize(
    "damage",
    [
        rearrayed(b""),
        rearrayed(b"PK\x03\x04junk"),
        rearrayed(b"junk"),
        unstamped,
        plain_file,
        linked,
        lambda folder: (folder / STAMP_FILE).write_text("[" * 100_000),
        lambda folder: (folder / STAMP_FILE).write_text('"text"'),
        restamp(trained_at="abc"),
        restamp(trained_at=None),
        restamp(trained_at=True),
        restamp(trained_at=-5),
        restamp(trained_at=0),
        restamp(trained_at=41),
        restamp(version=0.5),
        restamp(version="1"),
        restamp(version=None),
        restamp(sha256=None),
        restamp(kind=["flat"]),
        flip_a_byte,
        cut_off,
        lambda folder: (folder / INDEX_FILE).write_bytes(b""),
        lambda folder: (folder / INDEX_FILE).unlink(),
        lambda folder: (folder / STAMP_FILE).unlink(),
        lambda folder: (folder / STAMP_FILE).write_text("{"),
        lambda folder: (folder / STAMP_FILE).write_text("[]"),
        lambda folder: (folder / STAMP_FILE).write_bytes(b"\xff\xfe"),
        restamp(bank="another"),
        restamp(namespace="another"),
        restamp(embedder="another"),
        restamp(storage="int8"),
        restamp(kind="ivf"),
        restamp(space="another"),
        restamp(version=2),
        restamp(count=41),
        restamp(count=0),
        restamp(count=39),
        restamp(count="40"),
        restamp(sha256="0" * 64),
        restamp(rows_sha256="0" * 64),
        restamp(arrays_sha256="0" * 64),
        lambda folder: (folder / ARRAYS_FILE).unlink(),
        lambda folder: (folder / ROWS_FILE).write_bytes((folder / ROWS_FILE).read_bytes()[8:]),
        lambda folder: (folder / ROWS_FILE).unlink(),
        restamp(format="old"),
        restamp(surplus=1),
    ],
)
def test_a_damaged_or_foreign_copy_is_noticed_and_rebuilt(saved, damage, caplog):
    block, folder = saved
    damage(folder)
    index = CosineIndex(FLAT)
    with caplog.at_level(logging.WARNING):
        assert not index.load(folder, block)
    assert "will be rebuilt" in caplog.text
    assert index.follow(block) == "rebuilt"


def test_an_index_is_not_saved_through_a_link(saved):
    block, folder = saved
    linked(folder)
    before = (folder / STAMP_FILE).read_bytes()
    index = CosineIndex(FLAT)
    index.follow(changed(block, version=7))
    with pytest.raises(OSError, match="symbolic link"):
        index.save(folder)
    assert (folder / STAMP_FILE).read_bytes() == before


def test_a_copy_of_other_vectors_with_the_same_version_is_not_served(saved):
    block, folder = saved
    impostor = changed(block, vectors=vectors_of(block)[::-1].copy())
    assert not CosineIndex(FLAT).load(folder, impostor)


def test_a_missing_copy_is_no_news(tmp_path, caplog):
    assert not CosineIndex(FLAT).load(tmp_path / "none", block_of([[1, 0]]))
    assert caplog.text == ""


def test_saving_leaves_only_its_files_and_an_empty_index_none(saved, tmp_path):
    block, folder = saved
    index = CosineIndex(FLAT)
    index.follow(block)
    index.save(folder)
    assert {path.name for path in folder.iterdir()} == {
        INDEX_FILE,
        ROWS_FILE,
        ARRAYS_FILE,
        STAMP_FILE,
    }
    assert [path.name for path in folder.parent.iterdir()] == ["index"]
    empty = CosineIndex(FLAT)
    empty.save(tmp_path / "empty")
    empty.follow(block_of(np.empty((0, 2))))
    empty.save(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
