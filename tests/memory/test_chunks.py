"""What blocks are made of, against plain Python: chunks, the map of ids, the table of rows."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from memory.arrays.chunks import CHUNK_ROWS, FIRST_ROWS, Chunks, Lease, Places, grown, leased
from memory.arrays.feed import UNKNOWN_TIME, Batch, Columns
from memory.arrays.table import Table


def batch_of(cases, *, stamp=1, live=None, dim=2):
    """A batch of {id: value}; a case's vector repeats its value."""
    count = len(cases)
    values = np.array(list(cases.values()), np.float32)
    times = np.full(count, UNKNOWN_TIME)
    return Batch(
        np.array(list(cases), np.int64),
        np.full(count, stamp),
        np.ones(count, bool) if live is None else np.array(live),
        Columns(values, np.ones(count, np.uint8), times, times, times),
        (np.repeat(values[:, None], dim, axis=1),),
    )


def table(dtype=np.float32):
    return Table({"projections": (2, np.dtype(dtype))})


def held(picture):
    """{id: value} of the live rows, copied out."""
    vectors = np.concatenate(picture.vectors["projections"])
    assert len(vectors) == len(picture.ids)
    rows = np.flatnonzero(picture.live)
    for row in rows:
        assert vectors[row].tolist() == [picture.columns.outcome[row]] * 2
    return {int(picture.ids[row]): float(picture.columns.outcome[row]) for row in rows}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_chunks_hold_what_one_array_would_and_never_move(dtype):
    rng = np.random.default_rng(0)
    chunks, twin, places = Chunks(3, np.dtype(dtype)), np.empty((0, 3), dtype), set()
    for count in (1, 0, 15, 2, 300, 5000, 40_000):
        rows = rng.standard_normal((count, 3)).astype(dtype)
        chunks.reserve(len(twin) + count)
        chunks.append(len(twin), rows)
        twin = np.vstack([twin, rows])
        slots = rng.choice(len(twin), min(50, len(twin)), replace=False)
        again = rng.standard_normal((len(slots), 3)).astype(dtype)
        chunks.put(slots, again)
        twin[slots] = again
        parts = list(chunks.parts(0, len(twin)))
        np.testing.assert_array_equal(np.concatenate(parts), twin)
        now = [part.__array_interface__["data"][0] for part in parts]
        assert places <= set(now)
        places = set(now)
    assert [len(part) for part in parts][:4] == [FIRST_ROWS, 48, 192, 768]
    assert max(len(part) for part in parts) == CHUNK_ROWS
    start, end = 30, 17_000
    np.testing.assert_array_equal(np.concatenate(list(chunks.parts(start, end))), twin[start:end])
    assert list(chunks.parts(5, 5)) == []


def test_chunks_without_rows_show_their_width():
    assert [view.shape for view in Chunks(7, np.dtype(np.float16)).views(0, Lease(None))] == [
        (0, 7)
    ]


def test_a_leased_array_is_read_only_and_every_view_of_it_holds_the_lease():
    source = np.arange(10, dtype=np.float16)
    let_go = []

    class Owner:
        def __del__(self):
            let_go.append(True)

    lease = Lease(Owner())
    view = leased(source, lease)
    del lease
    np.testing.assert_array_equal(view, source)
    assert view.dtype == np.float16
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    source[3] = 99
    assert view[3] == 99, "no copy"
    part = view[2:].reshape(4, 2)[1:]
    del view
    assert not let_go
    del part
    assert let_go


def test_an_array_grows_by_a_quarter_and_keeps_what_is_used():
    array = np.arange(100)
    assert grown(array, 50, 100) is array
    larger = grown(array, 50, 101)
    assert larger[:50].tolist() == list(range(50))
    assert 101 <= len(larger) < 101 * 1.25 + 20


@pytest.mark.parametrize("seed", range(4))
def test_the_map_of_ids_equals_a_dict(seed):
    rng = np.random.default_rng(seed)
    places, twin, next_id = Places(), {}, 1
    for _ in range(60):
        kind = rng.integers(4)
        if kind == 0:  # in order, as a bank gives them out
            ids = np.arange(next_id, next_id + rng.integers(0, 40))
            next_id += len(ids)
        elif kind == 1:  # anywhere
            ids = rng.choice(100_000, rng.integers(1, 700), replace=False)
            next_id = max(next_id, int(ids.max()) + 1)
        else:
            ids = np.array([], np.int64)
        ids = ids[[int(id_) not in twin for id_ in ids]] if len(ids) else ids
        slots = rng.integers(0, 10**6, len(ids))
        places.put(ids, slots)
        twin.update(zip(ids.tolist(), slots.tolist(), strict=True))
        if kind == 2 and twin:
            gone = rng.choice(list(twin), min(len(twin), 30), replace=False)
            places.drop(gone)
            again, slots = gone[:10], np.arange(10)[: len(gone)]
            twin = {id_: slot for id_, slot in twin.items() if id_ not in set(gone.tolist())}
            places.put(again, slots)
            twin.update(zip(again.tolist(), slots.tolist(), strict=True))
        asked = rng.permutation(np.concatenate([rng.integers(0, 100_000, 20), [*twin][:500]]))
        expected = [twin.get(int(id_), -1) for id_ in asked]
        assert places.find(asked.astype(np.int64)).tolist() == expected


@pytest.mark.parametrize("ids", [[3, 3], [5, 1, 5], [*range(2000), 7]])
def test_an_id_given_twice_is_refused(ids):
    with pytest.raises(ValueError, match="twice"):
        Places().put(np.array(ids), np.arange(len(ids)))


def test_a_table_equals_a_dict_whatever_is_held_while_it_changes():
    rng = np.random.default_rng(1)
    rows, twin, kept, next_id = table(), {}, [], 1
    for version in range(1, 200):
        new = {next_id + i: float(rng.integers(100)) for i in range(rng.integers(0, 6))}
        next_id += len(new)
        changed = rng.choice(list(twin), min(len(twin), 2), replace=False) if twin else []
        new |= {int(id_): float(rng.integers(100)) for id_ in changed}
        alive = [bool(rng.random() < 0.9) for _ in new]
        rows.put(batch_of(new, live=alive), version)
        twin.update(new)
        twin = {id_: v for id_, v in twin.items() if dict(zip(new, alive, strict=True)).get(id_, 1)}
        gone = rng.choice(list(twin), min(len(twin), 1), replace=False) if twin else []
        assert rows.retire(np.array([*gone, 10**9], np.int64), version) == len(gone)
        for id_ in gone:
            del twin[int(id_)]
        picture = rows.picture(version)
        assert held(picture) == twin
        if rng.random() < 0.3:
            kept.append((picture, dict(twin)))
        del picture
        if len(kept) > 3:
            kept.pop(0)
        for old, content in kept:
            assert held(old) == content
    kept.clear()
    del old
    assert rows.pending == 0
    assert rows.size < 0.5 * (next_id + 2 * 199), "rows were used again"


def test_a_retired_row_is_zeroed_when_the_last_older_picture_goes_and_not_before():
    rows = table(np.float16)
    rows.put(batch_of({1: 10.0, 2: 20.0}), 1)
    first, second = rows.picture(1), rows.picture(1)
    rows.retire(np.array([1]), 2)
    newer = rows.picture(2)
    assert rows.pending == 1
    vector = first.vectors["projections"][0][0]
    del first
    assert vector.tolist() == [10, 10], "a view of one array is enough"
    del vector
    assert rows.pending == 1
    del second
    assert rows.pending == 0
    assert newer.vectors["projections"][0].tolist() == [[0, 0], [20, 20]]
    assert newer.ids.tolist() == [0, 2]
    rows.put(batch_of({3: 30.0}), 3)
    assert rows.size == 2
    assert held(rows.picture(3)) == {2: 20.0, 3: 30.0}


def test_a_picture_let_go_while_the_table_is_locked_is_seen_to_afterwards():
    rows = table()
    rows.put(batch_of({1: 10.0}), 1)
    pictures = [rows.picture(1)]
    rows.retire(np.array([1]), 2)
    with rows._held():  # as if collected in the middle of a write
        pictures.clear()
        assert rows.pending == 1
    assert rows.pending == 0
    pictures = [rows.picture(2)]
    rows.put(batch_of({2: 20.0}), 2)
    rows.retire(np.array([2]), 3)
    with rows._held():
        thread = threading.Thread(target=pictures.clear)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "letting go waits for nobody"
    assert rows.pending == 0


def test_a_value_beyond_half_precision_is_refused_and_leaves_the_table_whole():
    rows = table(np.float16)
    rows.put(batch_of({1: 1.0}), 1)
    for _ in range(9):
        with pytest.raises(FloatingPointError):
            rows.put(batch_of({2: 2.0, 3: 1e6}), 2)
    assert rows.size <= 5, "its rows are not lost"
    rows.put(batch_of({2: 2.0, 3: 3.0}), 2)
    assert held(rows.picture(2)) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_table_is_freed_with_its_last_picture_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        rows = table()
        rows.put(batch_of({1: 1.0}), 1)
        picture = rows.picture(1)
        let_go = []

        class Owner:
            def __del__(self):
                let_go.append(True)

        rows.owner = Owner()
        del rows
        assert not let_go
        del picture
        assert let_go
    finally:
        gc.enable()
