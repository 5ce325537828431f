"""The copies in fewer bytes: their stated error, and that they follow the bank."""

from dataclasses import replace

import numpy as np
import pytest

from retriever import scan
from retriever.head import Head
from retriever.kernels.compact import CompactCopy, encoded
from retriever.kernels.numpy_scan import NumpyScanner
from tests.search.search_blocks import block_of

STORAGES = ("bfloat16", "int8")
HEAD = Head(np.linspace(-1, 2, 24).astype(np.float32), 0.5, bias=True, rank=3)


def drawn(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, HEAD.case_width), dtype=np.float32)


def held(vectors, *, cuts=(), **more):
    """A block whose projections these are; ids and stamps tell contents apart, as a bank's do."""
    return replace(
        block_of(np.zeros((len(vectors), 1)), **more), projections=tuple(np.split(vectors, cuts))
    )


def agree(scanner, block):
    queries = np.random.default_rng(9).standard_normal((3, HEAD.query_width)).astype(np.float32)
    found = scanner.top_k(block, HEAD, queries, block.live, 3)
    expected = NumpyScanner().top_k(block, HEAD, queries, block.live, 3)
    return all(
        np.array_equal(one.rows, other.rows) and np.array_equal(one.logits, other.logits)
        for one, other in zip(found, expected, strict=True)
    )


def copy_of(scanner, namespace="default"):
    return scanner._copies[namespace][1]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_stored_row_is_no_further_away_than_it_says_nor_than_the_format_allows(storage):
    vectors = drawn(500)
    vectors *= (10.0 ** np.arange(-20, 5)).astype(np.float32).repeat(20)[:, None]
    vectors[3] = 0
    stored, scales, drifts = encoded(storage, vectors)
    if storage == "bfloat16":
        back = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        assert (np.abs(back - vectors) <= np.abs(vectors) * 2.0**-8).all()
    else:
        back = stored * scales[:, None]
        assert (np.abs(back - vectors).max(axis=1) <= scales * 0.5001).all()
    away = np.linalg.norm(vectors.astype(np.float64) - back, axis=1)
    assert (away <= drifts).all()
    np.testing.assert_allclose(drifts, away, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_a_row_that_cannot_be_stored_is_infinitely_far_away(storage, value):
    vectors = drawn(3)
    vectors[1, 5] = value
    _, scales, drifts = encoded(storage, vectors)
    assert np.isfinite(scales).all()
    assert np.isfinite(drifts[[0, 2]]).all()
    if not np.isfinite(value):
        assert drifts[1] == np.inf


@pytest.mark.parametrize("storage", STORAGES)
def test_a_copy_follows_rows_that_are_added_changed_and_forgotten(storage):
    scanner = scan.open_scanner("cpu", storage, 1)
    vectors = drawn(300)
    assert agree(scanner, held(vectors, cuts=(100,)))
    # A slot is reused, one dies, and forty are new, past the first chunk of the copy.
    vectors = np.concatenate([vectors, drawn(40, seed=1)])
    vectors[17] = 5
    ids, stamps = np.arange(1, 341), np.ones(340, np.int64)
    ids[17], stamps[17] = 999, 2
    live = np.ones(340, bool)
    live[200] = False
    block = held(vectors, cuts=(100, 300), ids=ids, stamps=stamps, live=live, version=2)
    before = copy_of(scanner)._chunks[0].ctypes.data
    assert agree(scanner, block)
    copy = copy_of(scanner)
    assert copy._chunks[0].ctypes.data == before
    assert not copy._chunks[0][200].any()
    assert not copy._rests[0][200].any()


@pytest.mark.parametrize("storage", STORAGES)
def test_an_older_block_is_answered_from_the_bank(storage):
    scanner = scan.open_scanner("cpu", storage, 1)
    older, newer = drawn(200), drawn(200, seed=1)
    assert agree(scanner, held(newer, version=5, stamps=np.full(200, 5)))
    assert agree(scanner, held(older, version=4, stamps=np.full(200, 4)))


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_dropped_is_overwritten_and_comes_back_only_when_accepted(storage):
    scanner = scan.open_scanner("cpu", storage, 1)
    block = held(drawn(200))
    assert agree(scanner, block)
    copy = copy_of(scanner)
    chunk, rest = copy._chunks[0], copy._rests[0]
    assert copy.nbytes() > 200 * 24
    scanner.drop("default")
    assert not chunk.any()
    assert not rest.any()
    assert copy.nbytes() == 0
    assert agree(scanner, block)
    assert copy.nbytes() == 0
    scanner.accept("default", 2)
    assert agree(scanner, block)
    assert copy.nbytes() == 0
    assert agree(scanner, replace(block, version=2))
    assert copy.nbytes() > 0


@pytest.mark.parametrize("storage", STORAGES)
def test_a_namespace_dropped_before_its_first_search_is_not_copied_from_an_old_block(storage):
    scanner = scan.open_scanner("cpu", storage, 1)
    scanner.drop("default")
    assert agree(scanner, held(drawn(200)))
    assert copy_of(scanner).nbytes() == 0


@pytest.mark.parametrize("storage", STORAGES)
def test_namespaces_and_heads_are_kept_apart(storage):
    scanner = scan.open_scanner("cpu", storage, 1)
    one, two = held(drawn(150)), held(drawn(150, seed=1), namespace="other")
    for _ in range(2):
        assert agree(scanner, one)
        assert agree(scanner, two)
    # Another head's vectors under the key of the first: read from the bank.
    narrow = Head(np.ones(20, np.float32), 0.0)
    block = replace(one, projections=(drawn(150)[:, :20].copy(),), version=2)
    queries = np.zeros((1, 20), np.float32)
    (found,) = scanner.top_k(block, narrow, queries, block.live, 2)
    (expected,) = NumpyScanner().top_k(block, narrow, queries, block.live, 2)
    np.testing.assert_array_equal(found.rows, expected.rows)


def test_a_copy_grows_in_chunks_without_moving_what_is_there():
    copy, block = CompactCopy("int8"), held(drawn(20))
    copy.wanted = HEAD
    copy.build(block)
    first = copy._chunks[0]
    vectors = drawn(17_000)
    copy.patch(held(vectors), np.arange(0), 20)
    source = copy.source(HEAD)
    assert copy._chunks[0] is first
    assert source.rows == 17_000
    spans = [(chunk.first, chunk.end) for chunk in source.chunks]
    assert spans[0][0] == 0
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    rows = np.concatenate(copy._chunks)[20:17_000, : HEAD.hidden]
    stored, scales, _ = encoded("int8", vectors[20:, : HEAD.hidden])
    np.testing.assert_array_equal(rows, stored)
    np.testing.assert_array_equal(copy._scales[20:17_000], scales)
