"""What FAISS does and does not do, as far as the tiers are built on it."""

import faiss
import numpy as np
import pytest

VECTORS = np.random.default_rng(1).standard_normal((400, 8)).astype(np.float32)


def test_a_graph_cannot_delete():
    graph = faiss.IndexHNSWFlat(8, 16, faiss.METRIC_INNER_PRODUCT)
    graph.add(VECTORS)
    with pytest.raises(RuntimeError, match="remove_ids not implemented"):
        graph.remove_ids(np.array([3]))


def test_a_graphs_own_filter_returns_too_few():
    graph = faiss.IndexHNSWFlat(8, 16, faiss.METRIC_INNER_PRODUCT)
    graph.add(VECTORS)
    wanted = faiss.IDSelectorBatch(np.array([5, 300]))
    _, found = graph.search(
        VECTORS[:40], 2, params=faiss.SearchParametersHNSW(sel=wanted, efSearch=16)
    )
    assert (found < 0).any()


def test_adding_under_an_id_that_is_there_keeps_both():
    lists = faiss.IndexIVFFlat(faiss.IndexFlatIP(8), 8, 4, faiss.METRIC_INNER_PRODUCT)
    lists.cp.min_points_per_centroid = 1
    lists.train(VECTORS)
    for _ in range(2):
        lists.add_with_ids(VECTORS[:10], np.arange(10))
    assert lists.ntotal == 20


def test_removing_from_a_flat_index_moves_the_rows_behind():
    flat = faiss.IndexFlatIP(8)
    flat.add(VECTORS)
    flat.remove_ids(np.array([0]))
    np.testing.assert_array_equal(flat.reconstruct(0), VECTORS[1])


@pytest.mark.parametrize("name", ["Flat", "SQ8", "SQfp16", "IVF4,Flat", "IVF4,SQ8"])
def test_flat_and_lists_obey_a_filter(name):
    index = faiss.index_factory(8, name, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    index.add(VECTORS)
    bits = np.packbits(np.arange(400) % 7 == 0, bitorder="little")
    chosen = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
    kind = faiss.SearchParametersIVF if name.startswith("IVF") else faiss.SearchParameters
    params = kind(sel=chosen, nprobe=4) if name.startswith("IVF") else kind(sel=chosen)
    _, found = index.search(VECTORS[:3], 100, params=params)
    assert set(found[found >= 0] % 7) == {0}
    assert (np.sort(found, axis=1)[:, -58:] >= 0).all()


def test_removing_from_lists_leaves_bytes_behind_their_ends():
    lists = faiss.IndexIVFFlat(faiss.IndexFlatIP(8), 8, 1, faiss.METRIC_INNER_PRODUCT)
    lists.train(VECTORS)
    lists.add(VECTORS)
    lists.remove_ids(np.array([399]))
    behind = faiss.rev_swig_ptr(lists.invlists.get_codes(0), 400 * lists.code_size)
    assert VECTORS[399].tobytes() in behind.tobytes()
