"""Snapshot files: the same block as the feed gives, or noticed and rebuilt."""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib

import numpy as np
import pytest

from memory.arrays.block import Blocks
from memory.arrays.snapshot import Snapshots
from memory.errors import BankUnavailable, InvalidInput
from tests.memory.embedders import Digests
from tests.memory.feeds import FakeFeed, assert_holds, roles

TAIL = struct.Struct("<QI8s")


def names(namespace):
    return f"{zlib.crc32(namespace.encode()):08x}"


@pytest.fixture
def snapshots(tmp_path):
    return Snapshots(tmp_path / "blocks", names)


def filled(count=50, **more):
    feed = FakeFeed(**more)
    feed.put({id_: f"secret words {id_}" for id_ in range(1, count + 1)})
    return feed


def saved(feed, snapshots, embedders, **more):
    """Load, save, and let go."""
    blocks = Blocks(feed, *embedders, snapshots=snapshots, **more)
    blocks.block("default")
    return blocks.save("default")


def served(feed, snapshots, embedders, **more):
    return Blocks(feed, *embedders, snapshots=snapshots, **more).block("default")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_block_comes_back_from_its_file_without_reading_the_feed(snapshots, dtype):
    feed, embedders = filled(dtype=dtype), roles()
    feed.put({7: "of later", 60: "ends"}, valid_from=12, outcome=0.5)
    size = saved(feed, snapshots, embedders, dtype=dtype)
    assert size == snapshots.path("default").stat().st_size
    feed.read.clear()
    block = served(feed, snapshots, embedders, dtype=dtype)
    assert feed.read == []
    assert_holds(block, feed, embedders, dtype=dtype)
    assert (
        np.flatnonzero(block.columns.outcome == 0.5).tolist()
        == np.flatnonzero(np.isin(block.ids, [7, 60])).tolist()
    )


def contents(block):
    """{id: (stamp, vectors)} of the live rows."""
    embeddings, projections = np.concatenate(block.embeddings), np.concatenate(block.projections)
    return {
        int(block.ids[row]): (block.stamps[row], *embeddings[row], *projections[row])
        for row in np.flatnonzero(block.live)
    }


def test_a_file_of_many_chunks_is_compacted_and_complete(snapshots):
    feed, embedders = filled(18_000, batch=5000), roles()
    blocks = Blocks(feed, *embedders, snapshots=snapshots)
    held = blocks.block("default")
    feed.remove(*range(1, 9001, 2), *range(10_000, 12_000), 18_000)
    feed.put({5: "changed"})
    block = blocks.block("default")
    assert len(block) == len(held) + 1, "the removed rows are still there for who holds them"
    blocks.save("default")
    again = served(feed, snapshots, embedders)
    assert again.live.all()
    assert len(again) == 11_500
    assert contents(again) == contents(block)


def test_what_changed_since_the_file_was_written_is_brought_in(snapshots):
    feed, embedders = filled(), roles()
    saved(feed, snapshots, embedders)
    feed.put({3: "new", 51: "more"})
    feed.put({4: "hidden"}, live=False)
    feed.read.clear()
    block = served(feed, snapshots, embedders)
    assert feed.read == [3]
    assert_holds(block, feed, embedders)
    assert snapshots.path("default").exists()


def test_an_empty_namespace_and_one_without_vectors_have_files_too(snapshots):
    feed = filled(1)
    feed.remove(1)
    assert saved(feed, snapshots, roles()) > 0
    assert len(served(feed, snapshots, roles())) == 0
    feed.put({2: "b"})
    assert saved(feed, snapshots, (None, None)) > 0
    feed.read.clear()
    assert served(feed, snapshots, (None, None)).ids.tolist() == [2]
    assert feed.read == []


def test_a_file_is_written_only_when_there_is_something_new(snapshots):
    feed, embedders = filled(), roles()
    blocks = Blocks(feed, *embedders, snapshots=snapshots)
    assert blocks.save("default") == 0, "nothing is in memory"
    blocks.block("default")
    assert blocks.save("default") > 0
    assert blocks.save("default") == 0
    feed.put({1: "new"})
    blocks.block("default")
    assert blocks.save("default") > 0
    restarted = Blocks(feed, *embedders, snapshots=snapshots)
    restarted.block("default")
    assert restarted.save("default") == 0
    assert Blocks(feed, *embedders).save("default") == 0


def refooted(**values):
    """A change of the footer that its own checksum agrees with."""

    def damage(path):
        data = path.read_bytes()
        length, _, magic = TAIL.unpack(data[-TAIL.size :])
        body = data[: -TAIL.size - length]
        footer = json.loads(data[-TAIL.size - length : -TAIL.size]) | values
        for name in [name for name, value in footer.items() if value is None]:
            del footer[name]
        new = json.dumps(footer).encode()
        path.write_bytes(body + new + TAIL.pack(len(new), zlib.crc32(new), magic))

    return damage


def cut(count):
    return lambda path: path.write_bytes(path.read_bytes()[:count])


def swapped(old, new):
    def damage(path):
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))

    return damage


def not_json(path):
    data = path.read_bytes()
    new = b"[" * 40
    path.write_bytes(data[:8] + new + TAIL.pack(len(new), zlib.crc32(new), data[:8]))


def a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut(0), "0 bytes"),
        (cut(27), "27 bytes"),
        (cut(28), "no snapshot"),
        (cut(-1), "end is missing"),
        (cut(-100), "end is missing"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "end is missing"),
        (lambda path: path.write_bytes(b"x" * 5000), "no snapshot"),
        (lambda path: path.write_bytes(b"y" + path.read_bytes()[1:]), "no snapshot"),
        (lambda path: path.write_bytes(path.read_bytes()[:8] + path.read_bytes()), "should have"),
        (swapped(b'"origin": 1', b'"origin": 2'), "footer is damaged"),
        (not_json, "is not used"),
        (a_folder, "directory"),
        (refooted(format=2), "format is 2"),
        (refooted(byteorder="big"), "byteorder"),
        (refooted(bank="another"), "bank is 'another'"),
        (refooted(namespace="another"), "namespace is"),
        (refooted(keys={"embeddings": "q"}), "keys"),
        (refooted(version=10**6), "the database is at 1"),
        (refooted(version="1"), "version is '1'"),
        (refooted(rows=49), "bytes is"),
        (refooted(rows=-1), "rows is -1"),
        (refooted(rows=None), "rows"),
        (refooted(sections=[]), "should have 0 bytes"),
        (refooted(sections=None), "sections"),
    ],
)
def test_a_file_that_does_not_fit_is_noticed_and_the_block_rebuilt(
    snapshots, caplog, damage, reason
):
    feed, embedders = filled(), roles()
    saved(feed, snapshots, embedders)
    damage(snapshots.path("default"))
    assert_holds(served(feed, snapshots, embedders), feed, embedders)
    assert "is not used, the block is rebuilt" in caplog.text
    assert reason in caplog.text


def test_a_flipped_bit_anywhere_is_noticed(snapshots, caplog):
    feed, embedders = filled(20), roles()
    saved(feed, snapshots, embedders)
    path = snapshots.path("default")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, 8, len(whole) - 1, *rng.integers(0, len(whole), 60)]:
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        caplog.clear()
        assert_holds(served(feed, snapshots, embedders), feed, embedders)
        assert "is not used" in caplog.text


def test_another_encoder_dimension_or_precision_makes_another_block(snapshots, caplog):
    feed, embedders = filled(), roles()
    saved(feed, snapshots, embedders)
    for others, dtype in [
        ((embedders[0], Digests("w2", 3)), np.float32),
        ((embedders[0], None), np.float32),
        (roles(second=4), np.float32),
        (embedders, np.float16),
    ]:
        caplog.clear()
        block = served(feed, snapshots, others, dtype=dtype)
        assert "is not used" in caplog.text
        assert block.live.sum() == 50
        if others[1] is not None:
            assert_holds(block, feed, others, dtype=dtype)


def test_the_file_of_another_bank_or_of_an_older_namespace_of_that_name_is_not_served(
    snapshots, caplog
):
    feed, embedders = filled(), roles()
    saved(feed, snapshots, embedders)
    other = filled(3, uid="bank-2")
    assert_holds(served(other, snapshots, embedders), other, embedders)
    assert "bank is 'bank-1'" in caplog.text
    feed.delete()
    feed.put({70: "made again"})
    assert_holds(served(feed, snapshots, embedders), feed, embedders)


def test_a_file_holds_no_words_and_no_name(snapshots):
    feed = FakeFeed()
    feed.put({1: "the secret"}, namespace="tenant-name")
    blocks = Blocks(feed, *roles(), snapshots=snapshots)
    blocks.block("tenant-name")
    blocks.save("tenant-name")
    (path,) = snapshots.folder.iterdir()
    assert path == snapshots.path("tenant-name")
    assert b"secret" not in path.read_bytes()
    assert b"tenant" not in path.read_bytes()
    assert "tenant" not in path.name


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 129, "ü"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="snapshot name"):
        Snapshots(tmp_path, lambda _: name).path("default")


def test_a_full_disk_leaves_the_older_file_and_nothing_half_written(snapshots, monkeypatch, caplog):
    feed, embedders = filled(), roles()
    saved(feed, snapshots, embedders)
    before = snapshots.path("default").read_bytes()
    feed.put({99: "new"})
    blocks = Blocks(feed, *embedders, snapshots=snapshots)
    blocks.block("default")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert blocks.save("default") == 0
    assert "No space left" in caplog.text
    assert snapshots.path("default").read_bytes() == before
    assert len(list(snapshots.folder.iterdir())) == 1
    assert blocks.save("default") > len(before)


def test_a_deleted_file_is_gone_with_what_was_being_written_of_it(snapshots):
    feed, embedders = filled(), roles()
    assert snapshots.delete("default") == 0, "no folder yet"
    saved(feed, snapshots, embedders)
    path = snapshots.path("default")
    path.with_name(f".{path.stem}.0123.part").write_bytes(b"left by a crash")
    path.with_name("ffffffff.block").write_bytes(b"of another namespace")
    assert snapshots.delete("default") == 2
    assert snapshots.delete("default") == 0
    assert [path.name for path in snapshots.folder.iterdir()] == ["ffffffff.block"]
    path.mkdir()
    with pytest.raises(BankUnavailable, match="cannot be deleted"):
        snapshots.delete("default")


def test_a_file_deleted_while_it_is_written_does_not_come_back(snapshots, monkeypatch, caplog):
    feed = filled()
    blocks = Blocks(feed, *roles(), snapshots=snapshots)
    blocks.block("default")
    sync = os.fsync

    def purge_now(handle):
        monkeypatch.setattr(os, "fsync", sync)
        assert snapshots.delete("default") == 1

    monkeypatch.setattr(os, "fsync", purge_now)
    assert blocks.save("default") == 0
    assert list(snapshots.folder.iterdir()) == []
    assert caplog.text == "", "nothing went wrong"


def test_a_process_that_did_not_see_a_purge_leaves_no_file_with_the_purged(snapshots, monkeypatch):
    feed, embedders = filled(), roles()
    blocks = Blocks(feed, *embedders, snapshots=snapshots)
    blocks.block("default")
    sync = os.fsync

    def purge_elsewhere(handle):
        monkeypatch.setattr(os, "fsync", sync)
        feed.remove(3)  # and the other process deletes the file that is there: none

    monkeypatch.setattr(os, "fsync", purge_elsewhere)
    assert blocks.save("default") == 0, "seen after writing"
    assert list(snapshots.folder.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "write", None)
        assert blocks.save("default") == 0, "seen before writing"
    blocks.block("default")
    assert blocks.save("default") > 0


def test_a_file_that_still_has_purged_rows_is_deleted_when_that_is_noticed(snapshots):
    feed, embedders = filled(), roles()
    saved(feed, snapshots, embedders)
    feed.remove(3)
    block = served(feed, snapshots, embedders)
    assert_holds(block, feed, embedders)
    assert not snapshots.path("default").exists()
    saved(feed, snapshots, embedders)
    blocks = Blocks(feed, *embedders, snapshots=snapshots)
    blocks.block("default")
    feed.remove(4)
    blocks.wipe("default")
    assert not snapshots.path("default").exists()
