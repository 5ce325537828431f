"""Every kind of index through every kind of change: never a wrong row, never bytes left behind."""

import logging
import threading
import time

import faiss
import numpy as np
import pytest

from retriever.errors import ConfigError, IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.head import Head
from retriever.index import CandidateIndex, CosineIndex
from retriever.saved_index import STAMP_FILE
from retriever.tiers import plan, tier_index
from retriever.tiers.settings import IndexSettings
from tests.search.search_blocks import TinyBlock, block_of, changed, vectors_of

KINDS = ("flat", "ivf", "hnsw")
STORAGES = ("float32", "float16", "int8")
HIDDEN, RANK = 12, 3
COUNT = 300


def settings(kind, storage="float32", **more):
    return IndexSettings(kind=kind, storage=storage, device="cpu", width=16, **more)


def exhaustive(kind, storage="float32", **more):
    """Settings with which even an approximate index sees every row."""
    return settings(kind, storage, lists=16, probes=16, breadth=2000, candidates=COUNT, **more)


@pytest.fixture
def small_is_enough(monkeypatch):
    """Lists and graphs from a few hundred rows on, so that tests stay small."""
    monkeypatch.setattr(plan, "LEAST_ROWS", 50)


def head_of(seed, *, bias=False, rank=0):
    rng = np.random.default_rng(seed)
    return Head(rng.standard_normal(HIDDEN).astype(np.float32), 0.0, bias=bias, rank=rank)


def projected(vectors, **more):
    """A block whose projections are these vectors."""
    block = block_of(vectors, **more)
    return TinyBlock(
        **{name: getattr(block, name) for name in TinyBlock.__dataclass_fields__}
        | {"projections": block.embeddings, "embeddings": None}
    )


def slow_logits(head, vectors, query):
    """One by one, in float64."""
    out = []
    for case in vectors.astype(np.float64):
        score = sum(
            w * max(p + a, 0.0)
            for w, p, a in zip(head.weight.tolist(), case[:HIDDEN], query[:HIDDEN], strict=True)
        )
        if head.bias:
            score += case[HIDDEN]
        score += float(case[HIDDEN + head.bias :] @ query[HIDDEN:].astype(np.float64))
        out.append(score)
    return np.array(out)


def cosines_of(vectors, query):
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors @ query / np.where(lengths == 0, 1, lengths) / np.linalg.norm(query)


def memory_of(index):
    """All that FAISS holds of an index, also behind the ends of its lists."""
    held = index._tier.copy.tier.state()[0]
    if isinstance(held, faiss.IndexIVF):
        parts = []
        for home in range(held.nlist):
            size = held.invlists.list_size(home)
            room = max(size, index.reserved.get(home, 0))
            index.reserved[home] = room
            if room:
                codes = faiss.rev_swig_ptr(held.invlists.get_codes(home), room * held.code_size)
                parts.append(codes.tobytes())
        return b"".join(parts)
    storage = faiss.downcast_index(held.storage) if hasattr(held, "storage") else held
    return faiss.rev_swig_ptr(storage.codes.data(), storage.ntotal * storage.code_size).tobytes()


class Bank:
    """A bank that changes at random: cases die, change, take the rows of others, are added."""

    def __init__(self, seed, count, width):
        self.rng = np.random.default_rng(seed)
        self.width, self.version, self.next_id = width, 1, count + 1
        self.vectors = self.rng.standard_normal((count, width)).astype(np.float32)
        self.ids, self.stamps = np.arange(1, count + 1), np.ones(count, np.int64)
        self.live = np.ones(count, bool)

    def state(self):
        return {
            "vectors": self.vectors,
            "ids": self.ids,
            "stamps": self.stamps,
            "live": self.live,
            "version": self.version,
            "cuts": (17, 90),
        }

    def change(self, rows, added):
        self.version += 1
        self.vectors, self.ids, self.stamps, self.live = (
            x.copy() for x in (self.vectors, self.ids, self.stamps, self.live)
        )
        for row in self.rng.choice(len(self.ids), rows, replace=False):
            if self.live[row] and self.rng.random() < 0.5:
                self.live[row] = False
                self.vectors[row] = np.nan
                continue
            if not self.live[row]:
                self.ids[row], self.next_id = self.next_id, self.next_id + 1
            self.vectors[row] = self.rng.standard_normal(self.width)
            self.stamps[row], self.live[row] = self.version, True
        new = self.rng.standard_normal((added, self.width)).astype(np.float32)
        self.vectors = np.vstack([self.vectors, new])
        self.ids = np.append(self.ids, np.arange(self.next_id, self.next_id + added))
        self.next_id += added
        self.stamps = np.append(self.stamps, np.full(added, self.version))
        self.live = np.append(self.live, np.ones(added, bool))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", STORAGES)
def test_cosine_search_is_right_through_changes_when_every_row_is_seen(
    small_is_enough, kind, storage
):
    bank = Bank(1, 240, 6)
    index = CosineIndex(exhaustive(kind, storage))
    rng, done = np.random.default_rng(2), set()
    for step in range(12):
        block = block_of(**bank.state())
        done.add(index.follow(block))
        eligible = block.live if step % 2 else block.live & (rng.random(len(block.live)) < 0.4)
        for query in rng.standard_normal((3, 6)).astype(np.float32):
            ((rows, cosines),) = index.search(block, query[None], 5, eligible)
            right = cosines_of(np.nan_to_num(bank.vectors), query)
            best = sorted(np.flatnonzero(eligible), key=lambda row: -right[row])[:5]
            assert rows.tolist() == best
            np.testing.assert_allclose(cosines, right[rows], atol=1e-6)
        bank.change(8, 5 * (step % 2))
    assert done <= {"rebuilt", "updated"}
    assert "updated" in done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bias", "rank"), [(False, 0), (True, RANK)])
def test_candidates_are_eligible_and_hold_the_heads_best_through_changes(
    small_is_enough, kind, bias, rank
):
    head = head_of(3, bias=bias, rank=rank)
    bank = Bank(4, 400, head.case_width)
    index = CandidateIndex(head, exhaustive(kind))
    rng, found, asked = np.random.default_rng(5), 0, 0
    for step in range(8):
        block = projected(**bank.state())
        eligible = block.live if step % 2 else block.live & (rng.random(len(block.live)) < 0.6)
        queries = rng.standard_normal((3, head.query_width)).astype(np.float32)
        for rising in (True, False):
            given = index.candidates(block, queries, 80, eligible, rising=rising)
            for query, rows in zip(queries, given, strict=True):
                assert rows.dtype == np.int64
                assert len(set(rows.tolist())) == len(rows) >= 80
                assert eligible[rows].all()
                logits = slow_logits(head, np.nan_to_num(bank.vectors), query)
                order = sorted(
                    np.flatnonzero(eligible), key=lambda row: logits[row], reverse=rising
                )
                found += len(set(order[:5]) & set(rows[:80].tolist()))
                asked += 5
        bank.change(10, 6)
    assert found >= 0.97 * asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_row_that_died_or_changed_leaves_no_bytes_in_the_index(small_is_enough, kind, storage):
    bank = Bank(6, 200, 8)
    index = CosineIndex(exhaustive(kind, storage, rebuild_share=0.9))
    index.reserved = {}
    index.follow(block_of(**bank.state()))
    held = index._tier.copy.tier
    memory_of(index)
    rows = np.arange(0, 200, 9)
    codes = {}
    for row in rows:
        unit = held.stored(np.array([row]))
        codes[row] = coded(held.state()[0], unit)
        assert codes[row] in memory_of(index)
    for step, row in enumerate(rows):
        bank.version += 1
        bank.live, bank.stamps = bank.live.copy(), bank.stamps.copy()
        bank.vectors = bank.vectors.copy()
        if step % 2:
            bank.live[row] = False
        else:
            bank.vectors[row], bank.stamps[row] = -bank.vectors[row], bank.version
        assert index.follow(block_of(**bank.state())) == "updated"
        assert index._tier.copy.tier is held
        assert codes[row] not in memory_of(index)


def coded(held, unit):
    if isinstance(held, faiss.IndexIVFScalarQuantizer):
        return held.sq.compute_codes(unit).tobytes()
    if isinstance(held, faiss.IndexIVF):
        return unit.tobytes()
    storage = faiss.downcast_index(held.storage) if hasattr(held, "storage") else held
    return storage.sa_encode(unit).tobytes()


def test_a_graph_with_too_many_empty_nodes_is_built_anew(small_is_enough):
    bank = Bank(7, 200, 6)
    index = CosineIndex(exhaustive("hnsw", rebuild_share=0.1))
    index.follow(block_of(**bank.state()))
    done = []
    for row in range(30):
        bank.version, bank.live = bank.version + 1, bank.live.copy()
        bank.live[row] = False
        done.append(index.follow(block_of(**bank.state())))
    assert done.count("rebuilt") == 1
    assert done.index("rebuilt") == 20  # the 21st of 200 is past a tenth


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_learns_anew_when_the_bank_has_outgrown_what_it_learnt(small_is_enough, kind):
    head = head_of(8)
    vectors = np.random.default_rng(9).standard_normal((450, HIDDEN))
    index = CandidateIndex(head, exhaustive(kind, retrain_growth=1.5))
    steps = [
        index.follow(projected(vectors[:count], version=count)) for count in (200, 290, 320, 450)
    ]
    assert steps == ["rebuilt", "extended", "rebuilt", "extended"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_that_leaves_few_rows_is_answered_in_full(small_is_enough, kind):
    bank = Bank(10, 400, HIDDEN)
    rng = np.random.default_rng(11)
    few = np.zeros(400, bool)
    few[rng.choice(400, 7, replace=False)] = True
    query = rng.standard_normal((1, HIDDEN)).astype(np.float32)
    cosine, head = block_of(**bank.state()), projected(**bank.state())
    tight = settings(kind, lists=16, probes=1, candidates=20)
    for k in (1, 7, 50):
        ((rows, _),) = CosineIndex(tight).search(cosine, query, k, few)
        right = cosines_of(bank.vectors, query[0])
        assert rows.tolist() == sorted(np.flatnonzero(few), key=lambda r: -right[r])[:k]
    (rows,) = CandidateIndex(head_of(12), tight).candidates(head, query, 20, few)
    assert rows.tolist() == np.flatnonzero(few).tolist()
    (none,) = CandidateIndex(head_of(12), tight).candidates(head, query, 20, np.zeros(400, bool))
    assert len(none) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_returned_short_when_the_filter_leaves_just_enough(small_is_enough, kind):
    bank = Bank(13, 400, HIDDEN)
    head, block = head_of(14), projected(**bank.state())
    index = CandidateIndex(head, settings(kind, lists=16, probes=1))
    rng = np.random.default_rng(15)
    for share in (0.06, 0.1, 0.3, 0.9):
        eligible = rng.random(400) < share
        for rows in index.candidates(
            block, rng.standard_normal((4, HIDDEN)).astype(np.float32), 20, eligible
        ):
            assert rows is None or (len(rows) >= 20 and eligible[rows].all())


def used(index, head, block, eligible):
    """That the index answers under the filter, with about the best of what may be found."""
    rng = np.random.default_rng(60)
    queries = rng.standard_normal((6, head.query_width)).astype(np.float32)
    given = index.candidates(block, queries, 1024, eligible)
    may = np.flatnonzero(eligible)
    vectors, found = np.concatenate(block.projections), 0
    for query, rows in zip(queries, given, strict=True):
        assert rows is not None
        assert len(set(rows.tolist())) == len(rows) >= min(128, len(may))
        assert eligible[rows].all()
        # In float64, as `slow_logits`, which six thousand cases would take long for.
        wide = np.maximum(vectors[may, :HIDDEN].astype(np.float64) + query[:HIDDEN], 0)
        best = may[np.argsort(-(wide @ head.weight.astype(np.float64)))[:10]]
        found += len(set(best.tolist()) & set(rows.tolist()))
    assert found >= 54, "nine tenths of the best"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.999, 0.9, 0.81, 0.79, 0.5, 0.1])
def test_an_index_is_used_under_a_light_a_middle_and_a_heavy_filter(kind, share):
    rng = np.random.default_rng(61)
    head, block = head_of(62), projected(rng.standard_normal((6000, HIDDEN)))
    used(CandidateIndex(head, settings(kind)), head, block, rng.random(6000) < share)


@pytest.mark.parametrize("count", [1024, 2048])
def test_a_flat_index_gives_all_that_was_asked_for_though_a_filter_takes_some_of_the_best(count):
    head = head_of(63)
    block = projected(np.random.default_rng(64).standard_normal((9000, HIDDEN)))
    query = np.ones((1, HIDDEN), np.float32)
    index = CandidateIndex(head, settings("flat"))
    (best,) = index.candidates(block, query, 1024)
    eligible = np.ones(9000, bool)
    eligible[best[:: 9000 // 1024]] = False
    (rows,) = index.candidates(block, query, count, eligible)
    assert len(rows) >= count


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_the_fewer_rows_may_be_found_the_more_lists_are_visited(
    small_is_enough, monkeypatch, share
):
    vectors = np.random.default_rng(65).standard_normal((800, 6))
    block = block_of(vectors)
    index = CosineIndex(settings("ivf", lists=40, probes=4, candidates=4))
    index.follow(block)
    visited, plain = [], faiss.IndexIVFFlat.search

    def noted(self, queries, k, *, params=None, **more):
        visited.append(params.nprobe)
        return plain(self, queries, k, params=params, **more)

    monkeypatch.setattr(faiss.IndexIVFFlat, "search", noted)
    eligible = np.arange(800) % 4 < 4 * share
    index.search(block, np.ones((1, 6), np.float32), 1, eligible)
    assert visited == [4 / share]


def test_probes_grow_until_enough_rows_are_seen(small_is_enough):
    bank = Bank(16, 400, HIDDEN)
    index = CandidateIndex(head_of(17), settings("ivf", lists=40, probes=1))
    queries = np.random.default_rng(18).standard_normal((5, HIDDEN)).astype(np.float32)
    for rows in index.candidates(projected(**bank.state()), queries, 150):
        assert rows is not None
        assert len(rows) == 150


def test_more_than_faiss_gives_well_is_left_to_a_scan(small_is_enough):
    bank = Bank(19, 3000, 4)
    query = np.random.default_rng(20).standard_normal((1, 4)).astype(np.float32)
    index = CosineIndex(settings("ivf", lists=8, probes=1))
    ((rows, _),) = index.search(block_of(**bank.state()), query, 2900)
    right = cosines_of(bank.vectors, query[0])
    np.testing.assert_allclose(right[rows], np.sort(right)[::-1][:2900], atol=1e-6)
    head = Head(np.ones(4, np.float32), 0.0)
    candidates = CandidateIndex(head, settings("flat"))
    assert candidates.candidates(projected(**bank.state()), query, 2500) == [None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_saved_index_of_any_kind_is_reloaded_and_follows_on(
    small_is_enough, tmp_path, kind, storage
):
    bank = Bank(21, 300, HIDDEN)
    rng = np.random.default_rng(22)
    queries = rng.standard_normal((3, HIDDEN)).astype(np.float32)
    head = head_of(23)
    for index_of, block_from, ask in (
        (lambda s: CosineIndex(s), block_of, lambda i, b: i.search(b, queries, 4)),
        (
            lambda s: CandidateIndex(head, s),
            projected,
            lambda i, b: [np.sort(rows) for rows in i.candidates(b, queries, 60)],
        ),
    ):
        index = index_of(exhaustive(kind, storage))
        bank.change(9, 4)
        index.follow(block_from(**bank.state()))
        bank.change(9, 4)
        block = block_from(**bank.state())
        index.follow(block)
        assert index.save(tmp_path / "index") == bank.version
        assert index.unsaved == 0
        again = index_of(exhaustive(kind, storage))
        assert again.load(tmp_path / "index", block)
        assert again.follow(block) == "same"
        for ours, theirs in zip(ask(index, block), ask(again, block), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        bank.change(9, 4)
        later = block_from(**bank.state())
        for each in (index, again):
            assert each.follow(later) == "updated"
        for ours, theirs in zip(ask(index, later), ask(again, later), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda head: CandidateIndex(head_of(99), exhaustive("ivf")), "space"),
        (lambda head: CandidateIndex(head, exhaustive("flat")), "it is ivf"),
        (lambda head: CandidateIndex(head, exhaustive("ivf", "int8")), "storage"),
    ],
)
def test_a_saved_index_of_another_head_kind_or_storage_is_not_used(
    small_is_enough, tmp_path, caplog, other, named
):
    head, bank = head_of(24), Bank(25, 300, HIDDEN)
    block = projected(**bank.state())
    index = CandidateIndex(head, exhaustive("ivf"))
    index.follow(block)
    index.save(tmp_path / "index")
    another = other(head)
    with caplog.at_level(logging.WARNING):
        assert not another.load(tmp_path / "index", block)
    assert named in caplog.text
    assert another.follow(block) == "rebuilt"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_saved_index_of_other_vectors_is_not_used(small_is_enough, tmp_path, kind, storage):
    bank = Bank(26, 300, HIDDEN)
    block = block_of(**bank.state())
    index = CosineIndex(exhaustive(kind, storage))
    index.follow(block)
    index.save(tmp_path / "index")
    impostor = changed(block, vectors=vectors_of(block)[::-1].copy())
    assert not CosineIndex(exhaustive(kind, storage)).load(tmp_path / "index", impostor)


def test_the_same_bank_and_seed_give_the_same_index(small_is_enough, tmp_path):
    block = projected(**Bank(27, 300, HIDDEN).state())
    stamps = []
    for name in ("one", "two"):
        index = CandidateIndex(head_of(28), settings("ivf", "int8", sample=256))
        index.follow(block)
        index.save(tmp_path / name)
        stamps.append((tmp_path / name / STAMP_FILE).read_text())
    assert stamps[0] == stamps[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_candidate_index_leaves_everything_to_the_scan(small_is_enough, tmp_path, kind):
    bank = Bank(29, 200, HIDDEN)
    block = projected(**bank.state())
    query = np.ones((1, HIDDEN), np.float32)
    index = CandidateIndex(head_of(30), exhaustive(kind))
    index.follow(block)
    index.save(tmp_path / "index")
    index.drop()
    assert index.candidates(block, query, 50) == [None]
    assert index.save(tmp_path / "other") is None
    assert not index.load(tmp_path / "index", block)
    index.accept(2)
    assert index.candidates(block, query, 50) == [None]
    bank.change(3, 3)
    assert index.candidates(projected(**bank.state()), query, 50)[0] is not None


def test_while_one_thread_builds_the_others_scan(small_is_enough, monkeypatch):
    bank = Bank(31, 200, HIDDEN)
    block, query = projected(**bank.state()), np.ones((1, HIDDEN), np.float32)
    index, seen = CandidateIndex(head_of(32), exhaustive("flat")), []
    fit = index._space.fit

    def slow_fit(*given):
        # As another thread would: the lock is held by this one, so only the flag can answer.
        seen.append(index.candidates(block, query, 50))
        fit(*given)

    monkeypatch.setattr(index._space, "fit", slow_fit)
    assert index.follow(block) == "rebuilt"
    assert seen == [[None]]
    assert index.candidates(block, query, 50)[0] is not None


def test_a_large_index_is_built_in_a_thread_while_searches_scan(small_is_enough, monkeypatch):
    monkeypatch.setattr(tier_index, "BUILT_LATER_ROWS", 150)
    bank = Bank(43, 200, HIDDEN)
    query = np.ones((1, HIDDEN), np.float32)
    block, nearest = projected(**bank.state()), block_of(**bank.state())
    index, cosine = CandidateIndex(head_of(44), exhaustive("ivf")), CosineIndex(exhaustive("ivf"))
    may_go = threading.Event()
    fit = index._space.fit
    monkeypatch.setattr(index._space, "fit", lambda *given: may_go.wait(20) and fit(*given))
    assert index.candidates(block, query, 50) == [None]
    assert index.candidates(block, query, 50) == [None]  # nobody waits, and no second thread
    assert [t.name for t in threading.enumerate()].count("precedent-index") == 1
    may_go.set()
    joined()
    assert index.candidates(block, query, 50)[0] is not None
    ((rows, _),) = cosine.search(nearest, query, 4)
    assert rows.tolist() == np.argsort(-cosines_of(bank.vectors, query[0]))[:4].tolist()
    joined()
    assert cosine.unsaved == 200
    bank.change(2, 2)
    assert index.candidates(projected(**bank.state()), query, 50)[0] is not None  # a patch is quick


def test_dropping_an_index_does_not_wait_for_the_thread_that_builds_it(
    small_is_enough, monkeypatch, caplog
):
    monkeypatch.setattr(tier_index, "BUILT_LATER_ROWS", 150)
    block, query = projected(**Bank(45, 200, HIDDEN).state()), np.ones((1, HIDDEN), np.float32)
    index = CandidateIndex(head_of(46), exhaustive("flat"))
    begun, dropped, fit = threading.Event(), threading.Event(), index._space.fit

    def slow_fit(*given):
        begun.set()
        # As training does, it looks for nothing; the batches after it do.
        assert dropped.wait(20)
        fit(*given)

    monkeypatch.setattr(index._space, "fit", slow_fit)
    assert index.candidates(block, query, 50) == [None]
    assert begun.wait(20)
    dropping = threading.Thread(target=index.drop)
    dropping.start()
    while not index._tier.copy.abandon:  # it stays so until the builder lets go of the lock
        time.sleep(0.001)
    dropped.set()
    with caplog.at_level(logging.INFO):
        dropping.join(20)
        joined()
    assert "not finished" in caplog.text
    assert index._tier.copy.tier is None
    assert index.candidates(block, query, 50) == [None]


def test_a_search_whose_small_index_is_dropped_while_it_builds_scans(small_is_enough, monkeypatch):
    block, query = projected(**Bank(49, 200, HIDDEN).state()), np.ones((1, HIDDEN), np.float32)
    index = CandidateIndex(head_of(50), exhaustive("flat"))
    fit = index._space.fit

    def dropped_meanwhile(*given):
        fit(*given)
        index._tier.copy.abandon = True  # as `drop` does first of all

    monkeypatch.setattr(index._space, "fit", dropped_meanwhile)
    assert index.candidates(block, query, 50) == [None]
    assert index.follow(block) == "older"


def test_a_build_that_fails_in_its_thread_is_logged_and_not_tried_at_every_search(
    small_is_enough, monkeypatch, caplog
):
    monkeypatch.setattr(tier_index, "BUILT_LATER_ROWS", 150)
    block = projected(**Bank(47, 200, HIDDEN).state())
    query = np.ones((1, HIDDEN), np.float32)
    index = CandidateIndex(head_of(48), exhaustive("flat"))

    def failing(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(index._space, "fit", failing)
    for _ in range(3):
        assert index.candidates(block, query, 50) == [None]
        joined()
    assert caplog.text.count("could not be built") == 1
    assert "no room" in caplog.text


def joined():
    for thread in threading.enumerate():
        if thread.name == "precedent-index":
            thread.join(20)


def test_an_older_block_is_scanned(small_is_enough):
    bank = Bank(33, 200, HIDDEN)
    old = projected(**bank.state())
    bank.change(5, 5)
    index, query = CandidateIndex(head_of(34), exhaustive("ivf")), np.ones((1, HIDDEN), np.float32)
    assert index.candidates(projected(**bank.state()), query, 50)[0] is not None
    assert index.candidates(old, query, 50) == [None]


def test_an_empty_bank_one_case_and_equal_cases(small_is_enough):
    query = np.ones((1, HIDDEN), np.float32)
    for kind in KINDS:
        index = CandidateIndex(head_of(35), exhaustive(kind))
        (none,) = index.candidates(projected(np.empty((0, HIDDEN))), query)
        assert len(none) == 0
        (one,) = index.candidates(projected(np.ones((1, HIDDEN)), version=2), query)
        assert one.tolist() == [0]
        equal = projected(np.tile(np.arange(HIDDEN), (120, 1)), version=3)
        (some,) = index.candidates(equal, query, 50)
        assert some is None or len(set(some.tolist())) >= 50


def test_broken_vectors_and_wrong_shapes_are_refused_by_name():
    vectors = np.zeros((30, HIDDEN), np.float32)
    vectors[4, 2] = np.nan
    index, query = CandidateIndex(head_of(36), settings("flat")), np.ones((2, HIDDEN), np.float32)
    with pytest.raises(NonFiniteScore, match="case 5"):
        index.candidates(projected(vectors), query, 10)
    sound = projected(np.zeros((30, HIDDEN)))
    query[1, 0] = np.inf
    with pytest.raises(NonFiniteScore, match="query 1"):
        index.candidates(sound, query, 10)
    with pytest.raises(InvalidInput, match=r"must be \(Q, 12\)"):
        index.candidates(sound, query[:, :3], 10)
    with pytest.raises(InvalidInput, match="count must be at least 1"):
        index.candidates(sound, query[:1], 0)
    with pytest.raises(IndexUnavailable, match="this head reads 12"):
        index.candidates(projected(np.zeros((30, 5))), query[:1], 10)
    with pytest.raises(IndexUnavailable, match="no projections"):
        index.candidates(block_of(np.zeros((30, 5))), query[:1], 10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("mode", ["cosine", "ann"])
def test_a_case_whose_vector_is_no_number_stops_only_searches_that_may_find_it(
    small_is_enough, tmp_path, caplog, kind, storage, mode
):
    bank = Bank(52, 300, HIDDEN)
    bank.vectors[[8, 40]] = [[np.nan] * HIDDEN, [np.inf] + [-np.inf] * (HIDDEN - 1)]
    head, made = head_of(53), settings(kind, storage, lists=16, probes=16, candidates=60)
    query = np.ones((1, HIDDEN), np.float32)
    if mode == "cosine":
        make, block_from = (lambda: CosineIndex(made)), block_of
    else:
        make, block_from = (lambda: CandidateIndex(head, made)), projected

    def ask(index, block, eligible=None):
        if mode == "cosine":
            return index.search(block, query, 5, eligible)[0][0]
        return index.candidates(block, query, 60, eligible)[0]

    block = block_from(**bank.state())
    sound = np.isfinite(bank.vectors).all(axis=1)
    for _ in range(2):
        index = make()
        with pytest.raises(NonFiniteScore, match="case 9 "):
            ask(index, block)
        with pytest.raises(NonFiniteScore, match="case 41 "):
            ask(index, block, np.arange(300) != 8)
        rows = ask(index, block, sound)
        assert rows is not None
        assert sound[rows].all()
        assert "2 cases are not in an index" in caplog.text
        index.save(tmp_path / "index")
        again = make()
        assert again.load(tmp_path / "index", block)
        np.testing.assert_array_equal(ask(again, block, sound), rows)
        with pytest.raises(NonFiniteScore, match="case 9 "):
            ask(again, block)
    # One gets a sound vector, the other dies: nothing is broken any more, until another is.
    bank.version, bank.stamps, bank.live = 2, bank.stamps.copy(), bank.live.copy()
    bank.vectors = bank.vectors.copy()
    bank.vectors[8], bank.stamps[8], bank.live[40] = 1.0, 2, False
    now = block_from(**bank.state())
    assert index.follow(now) == "updated"
    assert ask(index, now) is not None
    bank.version, bank.stamps, bank.vectors = 3, bank.stamps.copy(), bank.vectors.copy()
    bank.vectors[100], bank.stamps[100] = np.nan, 3
    assert index.follow(block_from(**bank.state())) == "updated"
    with pytest.raises(NonFiniteScore, match="case 101 "):
        ask(index, block_from(**bank.state()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bank_without_one_sound_vector_has_no_index_and_gets_one_later(small_is_enough, kind):
    vectors = np.full((200, HIDDEN), np.nan, np.float32)
    index, query = CandidateIndex(head_of(54), exhaustive(kind)), np.ones((1, HIDDEN), np.float32)
    assert index.candidates(projected(vectors), query, 20, np.arange(200) < 90) == [None]
    vectors = np.random.default_rng(55).standard_normal((200, HIDDEN))
    mended = projected(vectors, stamps=np.full(200, 2), version=2)
    assert index.candidates(mended, query, 20)[0] is not None


def test_dead_rows_may_hold_anything(small_is_enough):
    vectors = np.random.default_rng(37).standard_normal((200, HIDDEN)).astype(np.float32)
    live = np.arange(200) % 3 > 0
    vectors[~live] = np.nan
    for kind in KINDS:
        block = projected(vectors, live=live)
        (rows,) = CandidateIndex(head_of(38), exhaustive(kind)).candidates(
            block, np.ones((1, HIDDEN), np.float32), 40
        )
        assert live[rows].all()


def test_auto_chooses_by_size_mode_and_device_and_says_why():
    auto = IndexSettings(device="cpu")

    def kinds(mode, gpu):
        sizes = (10, 80_000, 600_000, 20_000_000)
        return [plan.planned(auto, mode, size, gpu).kind for size in sizes]

    assert kinds("cosine", gpu=False) == ["flat", "flat", "ivf", "ivf"]
    assert kinds("cosine", gpu=True) == ["flat", "flat", "flat", "ivf"]
    assert kinds("ann", gpu=False) == ["none", "flat", "ivf", "ivf"]
    assert kinds("ann", gpu=True) == ["none", "none", "none", "ivf"]
    for mode in ("cosine", "ann"):
        for size in (10, 100_000, 600_000):
            assert "rows" in plan.planned(auto, mode, size, gpu=False).reason
    asked = IndexSettings(kind="ivf", lists=100, probes=500)
    assert plan.planned(asked, "ann", 5000, gpu=False)[:3] == ("ivf", 100, 100)
    assert "too few" in plan.planned(asked, "ann", 200, gpu=False).reason


def test_the_choice_and_its_reason_are_logged_and_a_small_bank_has_no_index(caplog):
    block = projected(np.random.default_rng(39).standard_normal((60, HIDDEN)))
    index = CandidateIndex(head_of(40), IndexSettings(device="cpu"))
    with caplog.at_level(logging.INFO):
        assert index.candidates(block, np.ones((1, HIDDEN), np.float32), 10) == [None]
    assert "none on cpu" in caplog.text
    assert "scoring every case is as quick" in caplog.text
    assert index.unsaved == 0


def test_the_index_changes_its_kind_when_the_bank_grows_past_a_size(monkeypatch):
    monkeypatch.setattr(plan, "SCAN_ROWS", 100)
    monkeypatch.setattr(plan, "FLAT_ROWS", 150)
    monkeypatch.setattr(plan, "LEAST_ROWS", 20)
    vectors = np.random.default_rng(41).standard_normal((200, HIDDEN))
    index, kinds = CandidateIndex(head_of(42), IndexSettings(device="cpu")), []
    for count in (60, 110, 130, 160, 190):
        index.follow(projected(vectors[:count], version=count))
        kinds.append(index._tier.copy.plan.kind)
    assert kinds == ["none", "none", "flat", "flat", "ivf"]


@pytest.mark.parametrize(
    ("kind", "mode", "size"),
    [
        ("ivf", "cosine", "LEAST_ROWS"),
        ("hnsw", "ann", "LEAST_ROWS"),
        ("auto", "ann", "SCAN_ROWS"),
        ("auto", "ann", "FLAT_ROWS"),
        ("auto", "cosine", "COSINE_FLAT_ROWS"),
    ],
)
def test_an_index_near_a_size_where_kinds_change_keeps_its_kind(kind, mode, size):
    asked, limit = IndexSettings(kind=kind, device="cpu"), getattr(plan, size)

    def kind_of(rows, present=None):
        return plan.planned(asked, mode, rows, False, present).kind

    below, above = kind_of(limit - 1), kind_of(limit)
    assert below != above
    for rows in (limit - 1, limit, round(0.85 * limit), round(1.15 * limit)):
        assert kind_of(rows, below) == below
        assert kind_of(rows, above) == above
    assert kind_of(round(1.25 * limit), below) == above
    assert kind_of(round(0.8 * limit), above) == below
    assert kind_of(limit, "another") == above


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_case_that_comes_and_goes_at_a_size_does_not_have_the_index_built_anew(
    small_is_enough, tmp_path, kind
):
    vectors = np.random.default_rng(51).standard_normal((50, 6))
    index, done = CosineIndex(settings(kind)), []
    for version in range(1, 8):
        live = np.arange(50) != 3 if version % 2 == 0 else np.ones(50, bool)
        stamps = np.where(np.arange(50) == 3, version, 1)
        block = block_of(vectors, live=live, stamps=stamps, version=version)
        done.append(index.follow(block))
        index.save(tmp_path / "index")
        assert CosineIndex(settings(kind)).load(tmp_path / "index", block)
    assert done == ["rebuilt"] + ["updated"] * 6


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kind": "lsh"}, "index.kind"),
        ({"device": "tpu"}, "device"),
        ({"kind": "hnsw", "device": "cuda"}, "index.device"),
        ({"storage": "int4"}, "index.storage"),
        ({"candidates": 0}, "index.candidates"),
        ({"candidates": 5000}, "index.candidates"),
        ({"width": 1}, "index.width"),
        ({"lists": 0}, "index.lists"),
        ({"probes": 0}, "index.probes"),
        ({"links": 1}, "index.links"),
        ({"sample": 10}, "index.sample"),
        ({"rebuild_share": 0.0}, "index.rebuild_share"),
        ({"retrain_growth": 1.0}, "index.retrain_growth"),
        ({"seed": -1}, "index.seed"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given, named):
    with pytest.raises(ConfigError, match=named):
        IndexSettings(**given)
