"""A copy that follows a bank: when it is built, patched, left alone, and that it is never half."""

import threading
import weakref

import numpy as np
import pytest

from retriever.following import Contents, Follower
from tests.search.search_blocks import block_of, changed, first, vectors_of


class Listed:
    """The rows as a list of Python lists; remembers what was asked of it."""

    def __init__(self):
        self.rows, self.calls, self.refuses, self.fails = [], [], False, False

    def build(self, block):
        self.calls.append("build")
        if self.fails:
            raise RuntimeError("broken")
        self.rows = [self.row(block, i) for i in range(len(block.ids))]

    def patch(self, block, stale, start):
        self.calls.append(("patch", stale.tolist(), start))
        if self.refuses:
            return False
        for i in stale:
            self.rows[i] = self.row(block, i)
            if self.fails:
                raise RuntimeError("broken")
        self.rows += [self.row(block, i) for i in range(start, len(block.ids))]
        return True

    def clear(self):
        self.rows = []

    @staticmethod
    def row(block, i):
        return np.concatenate(block.embeddings)[i].tolist() if block.live[i] else None


def wanted(block):
    return [Listed.row(block, i) for i in range(len(block.ids))]


def followed(follower, block, **how):
    with follower.held(block, **how) as done:
        return done


@pytest.mark.parametrize("seed", range(5))
def test_the_copy_equals_the_block_through_random_changes(seed):
    rng = np.random.default_rng(seed)
    copy = Listed()
    follower, count = Follower(copy, "embeddings"), 20
    vectors, ids = rng.standard_normal((count, 2)), np.arange(1, count + 1)
    stamps, live = np.ones(count, np.int64), np.ones(count, bool)
    for version in range(1, 40):
        block = block_of(vectors, ids=ids, stamps=stamps, live=live, version=version)
        assert followed(follower, block) in ("same", "extended", "updated", "rebuilt")
        assert copy.rows == wanted(block)
        vectors, ids, stamps, live = (x.copy() for x in (vectors, ids, stamps, live))
        for row in rng.choice(len(ids), rng.integers(0, 4), replace=False):
            if live[row] and rng.random() < 0.5:
                live[row], vectors[row] = False, np.nan
                continue
            if not live[row]:
                ids[row] = 1000 * version + row  # the slot of a case that is gone
            vectors[row], stamps[row], live[row] = rng.standard_normal(2), version + 1, True
        if rng.random() < 0.3:
            vectors = np.vstack([vectors, rng.standard_normal((2, 2))])
            ids = np.append(ids, 1000 * version + np.array([900, 901]))
            stamps, live = np.append(stamps, [version + 1] * 2), np.append(live, [True] * 2)
    assert copy.calls.count("build") == 1


def test_what_happened_is_said_and_only_what_differs_is_touched():
    full = block_of(np.arange(20.0).reshape(10, 2))
    copy = Listed()
    follower = Follower(copy, "embeddings")
    start = first(full, 6)
    assert followed(follower, start) == "rebuilt"
    assert followed(follower, start) == "same"
    assert copy.calls == ["build"]
    assert followed(follower, changed(full, version=2)) == "extended"
    dead = changed(full, version=3, live=np.arange(10) != 4)
    assert followed(follower, dead) == "updated"
    assert copy.calls[1:] == [("patch", [], 6), ("patch", [4], 10)]
    assert follower.changed == 6 + 4 + 1
    assert followed(follower, full) == "older"
    assert copy.rows == wanted(dead)


@pytest.mark.parametrize(
    "other",
    [
        {"bank": "another"},
        {"namespace": "another"},
        {"embeddings_key": "another"},
        {"stamps": np.full(10, 9)},
    ],
)
def test_another_bank_namespace_embedder_or_most_rows_mean_building_anew(other):
    block = block_of(np.arange(20.0).reshape(10, 2))
    follower = Follower(Listed(), "embeddings")
    followed(follower, block)
    assert followed(follower, changed(block, version=2, **other)) == "rebuilt"


def test_another_embedder_of_the_other_role_changes_nothing():
    block = block_of(np.arange(20.0).reshape(10, 2))
    follower = Follower(Listed(), "embeddings")
    followed(follower, block)
    assert followed(follower, changed(block, version=2, projections_key="another")) == "same"


def test_a_copy_that_refuses_a_patch_is_built_anew():
    block = block_of(np.arange(20.0).reshape(10, 2))
    copy = Listed()
    follower = Follower(copy, "embeddings")
    followed(follower, block)
    copy.refuses = True
    dead = changed(block, version=2, live=np.arange(10) != 4)
    assert followed(follower, dead, build=False) == "unbuilt"
    assert copy.rows == []  # what died must not wait for whoever builds
    assert followed(follower, dead) == "rebuilt"
    assert copy.rows == wanted(dead)


def test_who_does_not_wait_leaves_an_empty_copy_empty():
    block = block_of(np.arange(20.0).reshape(10, 2))
    copy = Listed()
    follower = Follower(copy, "embeddings")
    assert followed(follower, block, build=False) == "unbuilt"
    assert copy.calls == []
    assert followed(follower, block) == "rebuilt"
    assert followed(follower, block, build=False) == "same"


def test_who_does_not_wait_is_not_kept_by_another_thread_that_builds():
    block = block_of(np.arange(20.0).reshape(10, 2))
    copy, begun, may_go = Listed(), threading.Event(), threading.Event()
    follower = Follower(copy, "embeddings")
    build = copy.build

    def slow(block):
        begun.set()
        may_go.wait(20)
        build(block)

    copy.build = slow
    with follower.locked():  # so that both wait for the lock
        builder = threading.Thread(target=followed, args=(follower, block))
        builder.start()
        seen = []
        other = threading.Thread(target=lambda: seen.append(followed(follower, block, build=False)))
        builder_first = begun.wait(0.05)
        other.start()
    assert not builder_first
    other.join(10)
    assert seen == ["unbuilt"]
    may_go.set()
    builder.join(20)
    assert copy.rows == wanted(block)


def test_after_a_failure_in_the_middle_the_copy_is_empty_and_begins_anew():
    block = block_of(np.arange(20.0).reshape(10, 2))
    copy = Listed()
    follower = Follower(copy, "embeddings")
    followed(follower, block)
    dead = changed(block, version=2, live=np.arange(10) > 3)
    copy.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        followed(follower, dead)
    assert copy.rows == []
    assert follower.contents is None
    with pytest.raises(RuntimeError, match="broken"):
        followed(follower, dead)
    assert not follower.building
    copy.fails = False
    assert followed(follower, dead) == "rebuilt"
    assert copy.rows == wanted(dead)


def test_a_dropped_copy_takes_nothing_in_until_a_version_is_accepted():
    block = block_of(np.arange(20.0).reshape(10, 2), version=5)
    copy = Listed()
    follower = Follower(copy, "embeddings")
    followed(follower, block)
    follower.drop()
    assert copy.rows == []
    assert followed(follower, block) == "older"
    assert followed(follower, changed(block, version=6)) == "older"
    follower.accept(6)
    assert followed(follower, block) == "older"
    with pytest.raises(ValueError, match="before the copy was emptied"), follower.locked():
        follower.adopt(Contents.of(block, block.embeddings_key))
    assert followed(follower, changed(block, version=6)) == "rebuilt"


def test_an_adopted_copy_is_patched_from_what_it_holds():
    block = block_of(np.arange(20.0).reshape(10, 2))
    copy = Listed()
    follower = Follower(copy, "embeddings")
    copy.rows = wanted(block)
    with follower.locked():
        follower.adopt(Contents.of(block, block.embeddings_key))
    dead = changed(block, version=2, live=np.arange(10) != 4)
    assert followed(follower, dead) == "updated"
    assert copy.calls == [("patch", [4], 10)]


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_outlives_a_block_that_lacks_one_of_its_cases_wherever_they_are(seed):
    rng = np.random.default_rng(seed)
    live = rng.random(30) < 0.8
    block = block_of(rng.standard_normal((30, 2)), live=live, stamps=rng.integers(1, 5, 30))
    held = Contents.of(block, "k")
    order = rng.permutation(30)
    more = first(block, 30, version=2)
    grown = block_of(
        rng.standard_normal((35, 2)),
        ids=np.append(more.ids[order], np.arange(90, 95)),
        live=np.append(more.live[order], np.ones(5, bool)),
        stamps=np.append(more.stamps[order], np.full(5, 9)),
    )
    for same in (block, more, grown):
        assert not held.outlived(same)
    row = int(rng.choice(np.flatnonzero(live[order])))
    for part in ("live", "stamps", "ids"):
        parts = {name: getattr(grown, name).copy() for name in ("live", "stamps", "ids")}
        parts[part][row] = False if part == "live" else 77
        lacking = block_of(vectors_of(grown), **parts)
        told = set(zip(held.ids[held.stamps >= 0], held.stamps[held.stamps >= 0], strict=True))
        there = lacking.live
        left = set(zip(lacking.ids[there], lacking.stamps[there], strict=True))
        assert told - left
        assert held.outlived(lacking)
    assert held.outlived(block_of(np.empty((0, 2))))
    assert held.outlived(changed(block, live=np.zeros(30, bool)))


def test_no_block_is_kept_from_being_let_go():
    block = block_of(np.arange(20.0).reshape(10, 2))
    follower = Follower(Listed(), "embeddings")
    followed(follower, block)
    gone = weakref.ref(block)
    del block
    assert gone() is None


def test_threads_wait_for_the_copy_in_turn():
    blocks = [block_of(np.arange(2 * n).reshape(n, 2), version=n) for n in range(1, 30)]
    copy = Listed()
    follower, wrong = Follower(copy, "embeddings"), []

    def work(order):
        for block in order:
            with follower.held(block) as done:
                if done != "older" and copy.rows != wanted(block):
                    wrong.append(block.version)

    threads = [threading.Thread(target=work, args=(order,)) for order in (blocks, blocks[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
