"""The arrays that searches read follow the bank, and stay as they are for who holds them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
import pytest

from memory import (
    BankBusy,
    BankClosed,
    BankConfig,
    ByIds,
    CaseBank,
    EmbeddingFailed,
    NewCase,
)
from memory.arrays.block import Blocks
from tests.memory.embedders import Broken, Digests
from tests.memory.feeds import FakeFeed, assert_holds, roles


def arrays(block):
    """Every array of a block."""
    for item in fields(block):
        value = getattr(block, item.name)
        for array in value if isinstance(value, tuple) else [value]:
            if isinstance(array, np.ndarray):
                yield array


def shown(block):
    """The live rows of every array, copied."""
    parts = [block.ids, block.stamps, *block.columns]
    parts += [np.concatenate(chunks) for chunks in (block.embeddings, block.projections)]
    return [part[block.live] for part in parts]


def assert_shows(block, rows):
    for now, then in zip(shown(block), rows, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("seed", range(3))
def test_a_block_is_the_bank_through_adds_updates_removals_and_invalidations(seed):
    rng = np.random.default_rng(seed)
    feed, embedders = FakeFeed(batch=int(rng.integers(1, 9))), roles()
    blocks = Blocks(feed, *embedders)
    kept, next_id = [], 1
    feed.put({})
    for step in range(60):
        known = list(feed.spaces["default"].cases)
        some = rng.choice(known, min(len(known), 3), replace=False).tolist() if known else []
        kind = rng.integers(5)
        if kind < 2:
            count = int(rng.integers(1, 12))
            fresh = rng.permutation(np.arange(next_id, next_id + count)).tolist()
            feed.put({id_: f"{rng.integers(20)}" for id_ in fresh}, valid_from=step)
            next_id += count
        elif kind == 2:
            feed.put({id_: f"again {step}" for id_ in some})
        elif kind == 3:
            feed.put({id_: "hidden" for id_ in some}, live=False)
        else:
            feed.remove(*some, 10**6)
        if rng.random() < 0.7:
            block = blocks.block("default")
            assert_holds(block, feed, embedders)
            kept.append((block, shown(block)))
            if len(kept) > 4:
                kept.pop(int(rng.integers(len(kept))))
        for old, rows in kept:
            assert_shows(old, rows)


def test_rows_are_used_again_once_nobody_holds_an_older_block():
    feed, embedders = FakeFeed(), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({id_: f"w{id_}" for id_ in range(1, 21)})
    sizes = []
    for step in range(30):
        feed.put({id_: f"{step} {id_}" for id_ in range(1, 11)})
        sizes.append(len(blocks.block("default")))
    assert max(sizes) <= 40
    held = blocks.block("default")
    rows = shown(held)
    for step in range(5):
        feed.put({id_: f"more {step} {id_}" for id_ in range(1, 11)})
        blocks.block("default")
    assert len(blocks.block("default")) > 60
    assert_shows(held, rows)
    assert_holds(blocks.block("default"), feed, embedders)


def test_no_row_moves_when_a_block_grows():
    feed = FakeFeed(batch=1000)
    blocks = Blocks(feed, *roles())
    feed.put({id_: "w" for id_ in range(1, 31)})
    small = blocks.block("default")
    feed.put({id_: "w" for id_ in range(31, 3001)})
    large = blocks.block("default")
    assert [len(chunk) for chunk in large.projections] == [16, 48, 192, 768, 1976]
    for role in ("embeddings", "projections"):
        assert np.shares_memory(getattr(small, role)[0], getattr(large, role)[0])
        assert np.shares_memory(getattr(small, role)[1], getattr(large, role)[1])


def test_what_was_removed_is_overwritten_as_soon_as_nobody_holds_it():
    feed = FakeFeed()
    blocks = Blocks(feed, *roles())
    feed.put({1: "secret", 2: "kept"})
    held = blocks.block("default")
    feed.remove(1)
    assert blocks.wipe("default") == 1
    assert_shows(held, shown(held))
    (row,) = np.flatnonzero(held.ids == 1)
    vector = held.projections[0][row]
    assert vector.any()
    now = blocks.block("default")
    assert now.ids[now.live].tolist() == [2]
    del held
    assert blocks.wipe("default") == 1, "one of its arrays is still held"
    del vector
    assert blocks.wipe("default") == 0
    assert not now.projections[0][row].any()
    assert not now.embeddings[0][row].any()
    assert now.ids[row] == 0


def test_wiping_embeds_nothing_loads_nothing_and_serves_nothing_old():
    feed, embedders = FakeFeed(), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({1: "a", 2: "b"})
    assert blocks.wipe("default") == blocks.wipe("nowhere") == 0
    assert blocks.namespaces() == [], "nothing was loaded"
    assert blocks.size("default") == 0
    blocks.block("default")
    assert blocks.size("default") == 2
    feed.put({3: "late"}, embedded=False)
    feed.remove(1)
    assert blocks.wipe("default") == 0
    assert feed.embedded == []
    assert_holds(blocks.block("default"), feed, embedders)
    feed.delete()
    held = blocks.block("default")
    assert (len(held), held.version) == (0, 0)


def test_a_namespace_that_is_deleted_leaves_memory_and_may_be_made_again():
    feed, embedders = FakeFeed(), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({id_: "of the old one" for id_ in range(1, 6)})
    held = blocks.block("default")
    rows = shown(held)
    feed.delete()
    assert blocks.wipe("default") == 5
    assert_shows(held, rows)
    del held
    assert blocks.namespaces() == []
    feed.put({9: "new"})
    assert_holds(blocks.block("default"), feed, embedders)
    feed.delete()
    feed.put({10: "newer"})
    assert_holds(blocks.block("default"), feed, embedders)


def test_a_database_that_went_back_is_read_anew():
    feed, embedders = FakeFeed(), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({1: "a"})
    feed.put({2: "b"})
    blocks.block("default")
    del feed.spaces["default"].cases[2]
    feed.spaces["default"].version = 1
    assert_holds(blocks.block("default"), feed, embedders)


def test_cases_without_vectors_are_embedded_first_and_read_once_more():
    feed, embedders = FakeFeed(batch=2), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({id_: f"w{id_}" for id_ in range(1, 6)})
    feed.put({id_: f"w{id_}" for id_ in range(6, 9)}, embedded=False)
    feed.put({9: "hidden"}, embedded=False, live=False)
    assert_holds(blocks.block("default"), feed, embedders)
    assert feed.embedded == [4]
    feed.put({3: "again"}, embedded=False)
    assert_holds(blocks.block("default"), feed, embedders)


def test_a_flood_of_changes_without_vectors_ends_in_an_error():
    feed = FakeFeed()
    blocks = Blocks(feed, *roles())
    feed.put({1: "a"})
    embed = feed.embed_missing

    def flooded(namespace, given):
        done = embed(namespace, given)
        feed.put({len(feed.embedded) + 1: "one more"}, embedded=False)
        return done

    feed.embed_missing = flooded
    feed.put({1: "a"}, embedded=False)
    with pytest.raises(BankBusy, match="wait=True"):
        blocks.block("default")
    feed.embed_missing = embed
    assert_holds(blocks.block("default"), feed, roles())


def test_an_attempt_that_broke_off_half_way_is_made_good_by_the_next():
    class Breaking(FakeFeed):
        left = None

        def _batches(self, rows, given):
            for batch in super()._batches(rows, given):
                if self.left is not None:
                    if not self.left:
                        raise OSError("the connection broke")
                    self.left -= 1
                yield batch

    feed, embedders = Breaking(batch=2), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({id_: f"w{id_}" for id_ in range(1, 10)})
    held = blocks.block("default")
    rows = shown(held)
    feed.put({2: "x", 3: "y", 11: "short-lived", 12: "z", 13: "q"})
    feed.left = 2
    for _ in range(2):
        with pytest.raises(OSError, match="broke"):
            blocks.block("default")
        feed.left = 1
    feed.remove(11, 4)
    feed.put({3: "yy"})
    feed.left = None
    assert_holds(blocks.block("default"), feed, embedders)
    assert_shows(held, rows)


def test_vectors_are_held_as_told_whatever_is_stored():
    feed, embedders = FakeFeed(dtype=np.float32), roles()
    feed.put({1: "a", 2: "b"})
    assert_holds(
        Blocks(feed, *embedders, dtype="float16").block("default"),
        feed,
        embedders,
        dtype=np.float16,
    )
    feed.dtype = np.float16
    block = Blocks(feed, *embedders).block("default")
    assert block.projections[0].dtype == np.float32
    np.testing.assert_array_equal(
        block.projections[0][0], embedders[1].vector("a").astype(np.float16)
    )


def test_a_value_that_half_precision_cannot_hold_is_refused_with_the_remedy():
    class Large(Digests):
        def vector(self, text):
            return np.full(self.dim, 7e4 if text == "large" else 1, np.float32)

    feed = FakeFeed()
    blocks = Blocks(feed, projections=Large(), dtype=np.float16)
    feed.put({1: "a"})
    blocks.block("default")
    feed.put({2: "large"})
    with pytest.raises(EmbeddingFailed, match="float32"):
        blocks.block("default")
    feed.put({2: "small"})
    assert blocks.block("default").ids.tolist()[0] == 1


def test_other_embedders_are_prepared_while_the_old_ones_serve_and_swapped_at_once():
    feed, old, new = FakeFeed(), roles(), (Digests("q2", 4), Digests("w2", 5))
    blocks = Blocks(feed, *old)
    feed.put({1: "a", 2: "b"})
    feed.put({3: "elsewhere"}, namespace="other")
    blocks.block("default")
    prepared = blocks.prepare(*new, ["default"])
    feed.put({4: "meanwhile"})
    assert_holds(blocks.block("default"), feed, old)
    held = prepared.block("default")
    feed.remove(1)
    assert blocks.wipe("default") == 1, "what waits for its swap is wiped, too"
    del held
    assert blocks.wipe("default") == 0
    blocks.swap(prepared)
    for namespace in ("default", "other"):
        block = blocks.block(namespace)
        assert_holds(block, feed, new)
        assert (block.embeddings_key, block.projections_key) == ("q2", "w2")


def test_a_swap_under_readers_gives_each_the_one_or_the_other():
    feed, old, new = FakeFeed(), roles(), (Digests("q2", 4), Digests("w2", 5))
    blocks = Blocks(feed, *old)
    feed.put({1: "a", 2: "b"})
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            block = blocks.block("default")
            try:
                assert_holds(block, feed, old if block.embeddings_key == "q" else new)
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for pair in [new, old] * 10:
        blocks.swap(blocks.prepare(*pair, ["default"]))
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_callers_of_one_namespace_share_the_work_and_other_namespaces_do_not_wait():
    class Slow(FakeFeed):
        opened = 0

        @contextmanager
        def changes(self, namespace, after, given):
            if namespace == "default":
                self.opened += 1
                entered.set()
                assert go_on.wait(30)
            with super().changes(namespace, after, given) as found:
                yield found

    entered, go_on = threading.Event(), threading.Event()
    feed = Slow()
    blocks = Blocks(feed, *roles())
    feed.put({1: "a"})
    feed.put({2: "b"}, namespace="other")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(blocks.block("default"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    assert len(blocks.block("other")) == 1
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len({id(block) for block in found}) == 1
    assert feed.opened <= 8
    opened = feed.opened
    assert blocks.block("default") is found[0]
    assert feed.opened == opened, "nothing changed, nothing was read"


def test_readers_that_hold_blocks_for_a_while_never_see_them_change():
    feed, embedders = FakeFeed(batch=50), roles()
    blocks = Blocks(feed, *embedders)
    feed.put({id_: f"w{id_}" for id_ in range(1, 41)})
    wrong, stop = [], threading.Event()

    def read(seed):
        rng, kept = np.random.default_rng(seed), []
        while not stop.is_set():
            block = blocks.block("default")
            kept.append((block, shown(block)))
            if len(kept) > 3:
                kept.pop(int(rng.integers(4)))
            try:
                for old, rows in kept:
                    assert_shows(old, rows)
                    assert (old.ids[old.live] > 0).all()
                    assert len(np.unique(old.ids[old.live])) == np.count_nonzero(old.live)
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(9)
    for step in range(150):
        feed.put({int(id_): f"{step}" for id_ in rng.integers(1, 41, 3)})
        blocks.wipe("default")
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert_holds(blocks.block("default"), feed, embedders)


# Through the bank.


@pytest.fixture
def embedders():
    return {"embeddings": Digests("q", 2, only_query=True), "projections": Digests("w", 3)}


def assert_rows_are(block, bank, embeddings, projections):
    """Every row against the slow way: one case, one text, one vector at a time."""
    cases = {case.id: case for case in bank.list(namespace=block.namespace, limit=10_000)}
    rows = np.flatnonzero(block.live)
    assert sorted(block.ids[rows].tolist()) == sorted(cases)
    for embedder, chunks in ((embeddings, block.embeddings), (projections, block.projections)):
        vectors = np.concatenate(chunks)
        assert vectors.dtype == np.float32
        for row in rows:
            expected = embedder.vector(embedder.text(cases[int(block.ids[row])]))
            np.testing.assert_array_equal(vectors[row], expected)


def test_a_block_holds_the_vectors_of_every_case(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a"), NewCase("b"), NewCase("a")])
        bank.add([NewCase("elsewhere")], namespace="other")
        bank.add([NewCase("c", plan="p")])
        block = bank.block("default")
        assert_rows_are(block, bank, **embedders)
        assert (block.bank, block.namespace) == (bank.uid, "default")
        assert (block.embeddings_key, block.projections_key) == ("q", "w")


def test_an_unknown_namespace_is_an_empty_block_of_version_zero(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        block = bank.block("nowhere")
        assert (len(block), block.version) == (0, 0)
        assert [chunk.shape for chunk in block.embeddings] == [(0, 2)]
        assert [chunk.shape for chunk in block.projections] == [(0, 3)]
        assert bank.namespaces() == []


def test_without_an_embedder_there_are_no_vectors(tmp_path):
    with CaseBank.open(tmp_path / "b.db") as bank:
        bank.add([NewCase("a")])
        block = bank.block("default")
        assert (block.embeddings, block.projections, block.projections_key) == (None, None, None)
        assert len(block) == 1


def test_a_block_never_changes(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a")])
        block = bank.block("default")
        before = shown(block)
        for array in arrays(block):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        for i in range(30):
            bank.add([NewCase(f"more {i}")])
            bank.block("default")
        assert_rows_are(bank.block("default"), bank, **embedders)
        assert_shows(block, before)


def test_the_same_block_is_given_while_nothing_changes(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a")])
        block = bank.block("default")
        bank.add([NewCase("elsewhere")], namespace="other")
        assert bank.block("default") is block
        bank.add([NewCase("b")])
        newer = bank.block("default")
        assert newer.version > block.version
        assert len(newer) == 2
        assert np.shares_memory(newer.projections[0], block.projections[0])


def test_every_commit_of_another_opening_is_in_the_next_block_on_either_engine(bank_location):
    with CaseBank.open(bank_location) as reader, CaseBank.open(bank_location) as writer:
        assert reader.block("default").version == 0
        versions, ids = [], []
        for number in range(3):
            ids += writer.add([NewCase(f"q {number}")])
            block = reader.block("default")
            versions.append(block.version)
            assert sorted(block.ids[block.live]) == ids
        assert versions == sorted(set(versions))
        writer.forget(ByIds((ids[0],)))
        block = reader.block("default")
        assert sorted(block.ids[block.live]) == ids[1:]
        assert reader.block("elsewhere").version == 0
    with pytest.raises(BankClosed, match="closed"):
        reader.block("default")


def test_a_write_of_another_bank_object_is_seen(tmp_path, embedders):
    with (
        CaseBank.open(tmp_path / "b.db", **embedders) as reader,
        CaseBank.open(tmp_path / "b.db", **embedders) as writer,
    ):
        writer.add([NewCase("a")])
        assert len(reader.block("default")) == 1
        writer.add([NewCase("b")])
        assert_rows_are(reader.block("default"), writer, **embedders)


def test_cases_added_without_waiting_get_their_vectors_with_the_next_block(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a")])
        bank.block("default")
        bank.add([NewCase("late")], wait=False)
        assert embedders["embeddings"].seen == ["a"]
        assert_rows_are(bank.block("default"), bank, **embedders)


def test_a_new_encoder_fills_the_bank_again(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase(f"q{i % 7}") for i in range(20)])
    newer = {**embedders, "projections": Digests("v2", 4)}
    config = BankConfig(embed_batch=6)
    with CaseBank.open(tmp_path / "b.db", config=config, **newer) as bank:
        assert_rows_are(bank.block("default"), bank, **newer)
        assert len(newer["projections"].seen) == 7
        assert len(embedders["embeddings"].seen) == 7, "the other vectors were there"
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        assert_rows_are(bank.block("default"), bank, **embedders)


def test_embedding_goes_on_where_it_was_interrupted(tmp_path):
    with CaseBank.open(tmp_path / "b.db") as bank:
        bank.add([NewCase(f"q{i}") for i in range(10)])
        bank.add([NewCase("elsewhere")], namespace="other")

    class Interrupted(Exception):
        pass

    def stop(done, total):
        assert total == 10
        if done == 6:
            raise Interrupted

    config = BankConfig(embed_batch=3)
    with (
        CaseBank.open(tmp_path / "b.db", projections=Digests(), config=config) as bank,
        pytest.raises(Interrupted),
    ):
        bank.embed_missing("default", progress=stop)
    rest, steps = Digests(), []
    with CaseBank.open(tmp_path / "b.db", projections=rest, config=config) as bank:
        assert bank.embed_missing(progress=lambda *at: steps.append(at)) == 5
        assert rest.seen == ["q6\nNone", "q7\nNone", "q8\nNone", "q9\nNone", "elsewhere\nNone"]
        assert steps == [(3, 4), (4, 4), (1, 1)]
        assert bank.embed_missing() == 0


def test_a_flood_of_cases_without_vectors_ends_in_an_error(tmp_path):
    class Flooded(Digests):
        def embed(self, texts):
            flood.add([NewCase(f"one more than {len(self.seen)}")], wait=False)
            return super().embed(texts)

    with (
        CaseBank.open(tmp_path / "b.db") as flood,
        CaseBank.open(tmp_path / "b.db", projections=Flooded()) as bank,
    ):
        flood.add([NewCase("first")])
        with pytest.raises(BankBusy, match="wait=True"):
            bank.block("default")


def test_a_failing_embedder_leaves_the_last_good_state_to_others(tmp_path):
    with CaseBank.open(tmp_path / "b.db", projections=Digests()) as bank:
        bank.add([NewCase("a")])
        with CaseBank.open(
            tmp_path / "b.db", projections=Broken(lambda n, dim: np.zeros((n, dim - 1)))
        ) as broken:
            assert len(broken.block("default")) == 1, "its vectors are there"
            bank.add([NewCase("b")], wait=False)
            with pytest.raises(Exception, match="shape"):
                broken.block("default")
        assert len(bank.block("default")) == 2
