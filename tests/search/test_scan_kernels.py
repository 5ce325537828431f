"""Every scanner of the CPU against a float64 sort that shares no code with it."""

from dataclasses import replace

import numpy as np
import pytest

from retriever import scan
from retriever.errors import IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.head import Head
from retriever.kernels import cpu_scan, rescoring
from retriever.kernels.numpy_scan import NumpyScanner
from retriever.kernels.plan import plan
from retriever.kernels.source import bank_source
from tests.search.search_blocks import block_of

STORAGES = ("bank", "bfloat16", "int8")

#: Cases, queries, hidden units, rank, bias: one and many queries, widths around whole vectors.
SHAPES = [
    (300, 1, 64, 0, False),
    (300, 5, 64, 0, False),
    (517, 3, 130, 7, True),
    (517, 1, 37, 64, True),
    (200, 9, 16, 1, False),
    (90, 2, 15, 1, True),
    (129, 4, 3, 40, True),
    (70, 2, 5, 2, True),  # narrower than a vector: numpy's
]


def scanner_of(storage):
    return NumpyScanner() if storage == "numpy" else scan.open_scanner("cpu", storage, 2)


def draw(seed, cases, queries, hidden, rank=0, bias=False, dtype=np.float32):
    rng = np.random.default_rng(seed)
    head = Head(rng.standard_normal(hidden).astype(np.float32), float(rng.normal()), bias, rank)
    vectors = rng.standard_normal((cases, head.case_width)).astype(dtype)
    return head, vectors, rng.standard_normal((queries, head.query_width)).astype(np.float32)


def projected(vectors, cuts=(), **more):
    block = block_of(np.zeros((len(vectors), 1)), **more)
    return replace(block, projections=tuple(np.split(vectors, cuts)))


def slow_logits(head, vectors, query):
    vectors, query, weight = (x.astype(np.float64) for x in (vectors, query, head.weight))
    hidden = head.hidden
    with np.errstate(over="ignore"):
        logits = np.maximum(vectors[:, :hidden] + query[:hidden], 0.0) @ weight + head.offset
    if head.bias:
        logits += vectors[:, hidden]
    return logits + vectors[:, hidden + int(head.bias) :] @ query[hidden:]


def slow_best(head, vectors, query, ids, eligible, k, rising=True):
    logits = slow_logits(head, vectors, query)
    order = sorted((-x if rising else x, ids[i], i) for i, x in enumerate(logits) if eligible[i])
    return [i for _, _, i in order][:k]


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_best_cases_are_those_of_a_float64_sort(shape, dtype, storage):
    head, vectors, queries = draw(sum(shape), *shape, dtype=dtype)
    rng = np.random.default_rng(1)
    ids = rng.permutation(3 * len(vectors))[: len(vectors)]
    eligible = rng.random(len(vectors)) < 0.6
    block = projected(vectors, cuts=(1, 1, len(vectors) // 2), ids=ids)
    for rising in (True, False):
        found = scanner_of(storage).top_k(block, head, queries, eligible, 4, rising=rising)
        for query, best in zip(queries, found, strict=True):
            expected = slow_best(head, vectors, query, ids, eligible, 4, rising)
            assert best.rows.tolist() == expected
            np.testing.assert_allclose(
                best.logits, slow_logits(head, vectors, query)[expected], rtol=1e-10, atol=1e-10
            )


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_has_the_same_bits_from_every_storage_and_alone_or_among_others(shape):
    head, vectors, queries = draw(3, *shape)
    block = projected(vectors, cuts=(100,))
    given = (block.live, 6)
    expected = NumpyScanner().top_k(block, head, queries, *given)
    for storage in STORAGES:
        scanner = scanner_of(storage)
        together = scanner.top_k(block, head, queries, *given)
        alone = [scanner.top_k(block, head, query[None], *given)[0] for query in queries]
        for one, other, third in zip(expected, together, alone, strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.logits, other.logits)
            np.testing.assert_array_equal(one.logits, third.logits)
    pairs = scan.pair_logits(
        head, vectors[expected[0].rows], np.repeat(queries[:1], len(expected[0].rows), axis=0)
    )
    np.testing.assert_array_equal(pairs, expected[0].logits)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_logit_is_within_its_bound_of_the_exact_one(shape, dtype):
    head, vectors, queries = draw(4, *shape, dtype=dtype)
    limits = rescoring.bound(head, queries)
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    for scores in (
        scan.logits(head, np.split(vectors, [7, 7, 20]), queries),
        NumpyScanner().logits(projected(vectors), head, queries),
    ):
        for number, query in enumerate(queries):
            off = np.abs(scores[number] - slow_logits(head, vectors, query))
            assert (off <= limits.slope[number] * norms + limits.fixed[number]).all()


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
def test_queries_far_larger_than_the_cases_have_the_answer_of_float64(storage):
    # What tells the cases apart is then lost in the rounding of Σ w·a: the bound must have it.
    rng = np.random.default_rng(31)
    head = Head(rng.standard_normal(512).astype(np.float32), 0.0)
    queries = (rng.standard_normal((3, 512)) * 1e4 + 3e4).astype(np.float32)
    vectors = (rng.standard_normal((600, 512)) * 1e-3).astype(np.float32)
    found = scanner_of(storage).top_k(projected(vectors), head, queries, np.ones(600, bool), 8)
    for best, query in zip(found, queries, strict=True):
        exact = slow_logits(head, vectors, query)
        assert best.rows.tolist() == np.argsort(-exact, kind="stable")[:8].tolist()


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
@pytest.mark.parametrize(("of_weight", "of_cases"), [(1e-30, 1e-16), (1e-25, 3e-19), (1e-36, 1e-9)])
def test_products_too_small_for_float32_have_the_answer_of_float64(storage, of_weight, of_cases):
    rng = np.random.default_rng(32)
    head = Head((np.abs(rng.standard_normal(64)) * of_weight).astype(np.float32), 0.0)
    vectors = (np.abs(rng.standard_normal((400, 64))) * of_cases).astype(np.float32)
    queries = np.zeros((2, 64), np.float32)
    found = scanner_of(storage).top_k(projected(vectors), head, queries, np.ones(400, bool), 8)
    exact = vectors.astype(np.float64) @ head.weight.astype(np.float64)
    for best in found:
        assert best.rows.tolist() == np.argsort(-exact, kind="stable")[:8].tolist()


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
def test_ties_go_to_the_lower_id_however_many_there_are(storage):
    head, vectors, queries = draw(5, 3, 2, 32)
    # Far more equal cases than the scan keeps candidates, in chunks, and the best among them.
    best = np.argmax(slow_logits(head, vectors, queries[0]))
    many = np.concatenate([vectors, np.repeat(vectors[best : best + 1], 400, axis=0)])
    ids = np.random.default_rng(0).permutation(403) + 1
    (found, _) = scanner_of(storage).top_k(
        projected(many, cuts=(50, 300), ids=ids), head, queries, np.ones(403, bool), 5
    )
    equal = [best, *range(3, 403)]
    assert ids[found.rows].tolist() == sorted(ids[equal].tolist())[:5]
    assert len(np.unique(found.logits)) == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_near_ties_that_float32_cannot_tell_apart_are_told_apart(storage):
    head = Head(np.ones(32, np.float32), 0.0)
    vectors = np.full((500, 32), 1000, np.float32)
    # A difference of one part in 10^8 of the logit, in rising order: the last is the best.
    vectors[:, 0] = 2.0 ** np.linspace(-20, -10, 500)
    block = projected(vectors)
    (found,) = scanner_of(storage).top_k(block, head, np.zeros((1, 32), np.float32), block.live, 3)
    assert found.rows.tolist() == [499, 498, 497]


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_more_than_there_is_gives_what_there_is(storage, count):
    head, vectors, queries = draw(6, count, 2, 24)
    block = projected(vectors)
    eligible = np.arange(count) % 2 == 0
    for best in scanner_of(storage).top_k(block, head, queries, eligible, 100):
        assert sorted(best.rows.tolist()) == list(range(0, count, 2))
        assert (np.diff(best.logits) <= 0).all()


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
def test_no_query_gives_no_answer(storage):
    head, vectors, queries = draw(6, 50, 0, 24)
    block = projected(vectors)
    assert scanner_of(storage).top_k(block, head, queries, block.live, 3) == []
    assert scanner_of(storage).logits(block, head, queries).shape == (0, 50)


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
@pytest.mark.parametrize("queries", [1, 5])
def test_what_stands_in_rows_that_are_not_eligible_does_not_matter(storage, queries):
    head, vectors, given = draw(7, 400, queries, 32)
    eligible = np.random.default_rng(2).random(400) < 0.5
    expected = scanner_of(storage).top_k(projected(vectors), head, given, eligible, 5)
    junk = np.random.default_rng(3).choice([np.nan, np.inf, -np.inf, 1e38], vectors.shape)
    vectors = np.where(eligible[:, None], vectors, junk.astype(np.float32))
    found = scanner_of(storage).top_k(projected(vectors, live=eligible), head, given, eligible, 5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.logits, other.logits)


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("queries", [1, 6])
def test_a_broken_vector_is_refused_by_name_and_never_ranked(storage, value, queries):
    head, vectors, given = draw(8, 300, queries, 32)
    head.weight[:] = np.abs(head.weight)
    vectors[211, 17] = value
    block = projected(vectors, ids=np.arange(1000, 1300))
    for rising in (True, False):
        with pytest.raises(NonFiniteScore, match="query 0 and case 1211"):
            scanner_of(storage).top_k(block, head, given, block.live, 2, rising=rising)


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
def test_a_broken_query_is_refused(storage):
    head, vectors, given = draw(8, 300, 3, 32)
    given[1, 3] = np.nan
    block = projected(vectors)
    with pytest.raises(NonFiniteScore, match="query 1 and case"):
        scanner_of(storage).top_k(block, head, given, block.live, 2)


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
def test_a_logit_beyond_float32_is_refused_and_one_of_minus_infinite_values_is_not(storage):
    head = Head(np.ones(32, np.float32), 0.0)
    vectors = np.zeros((100, 32), np.float32)
    queries = np.full((1, 32), 3e38, np.float32)
    vectors[7, :5] = -np.inf  # relu makes zeros of them: a low logit, and a number
    block = projected(vectors)
    (found,) = scanner_of(storage).top_k(block, head, 1e-38 * queries, block.live, 1, rising=False)
    assert found.rows.tolist() == [7]
    with pytest.raises(NonFiniteScore):
        scanner_of(storage).top_k(block, head, queries, block.live, 1)


@pytest.mark.parametrize("storage", ["numpy", *STORAGES])
def test_k_below_one_a_wrong_width_and_missing_projections_are_refused(storage):
    head, vectors, queries = draw(9, 20, 2, 32)
    scanner, block = scanner_of(storage), projected(vectors)
    with pytest.raises(InvalidInput, match="k must be at least 1, got 0"):
        scanner.top_k(block, head, queries, block.live, 0)
    with pytest.raises(InvalidInput, match=r"\(2, 31\)"):
        scanner.top_k(block, head, queries[:, :31], block.live, 1)
    with pytest.raises(IndexUnavailable, match="no projections"):
        scanner.logits(block_of(vectors), head, queries)


def test_chunks_whose_values_lie_apart_or_of_two_precisions_are_read_as_well():
    head, vectors, queries = draw(10, 300, 2, 32)
    apart = np.asfortranarray(vectors[:100])
    mixed = (apart, vectors[100:200].astype(np.float16), vectors[200:])
    plain = np.concatenate([chunk.astype(np.float32) for chunk in mixed])
    assert bank_source(mixed, head) is None
    scanner = scanner_of("bank")
    block = projected(vectors)
    for chunks in (mixed, (apart, vectors[100:])):
        held = replace(block, projections=chunks)
        whole = replace(block, projections=(plain if chunks is mixed else vectors,))
        for one, other in zip(
            scanner.top_k(held, head, queries, block.live, 5),
            scanner.top_k(whole, head, queries, block.live, 5),
            strict=True,
        ):
            np.testing.assert_array_equal(one.rows, other.rows)
            np.testing.assert_array_equal(one.logits, other.logits)


def test_many_threads_and_groups_of_queries_find_what_one_finds():
    head, vectors, queries = draw(11, 3000, 300, 64)
    block = projected(vectors, cuts=(1000, 2500))
    one = scan.open_scanner("cpu", threads=1).top_k(block, head, queries, block.live, 3)
    many = scan.open_scanner("cpu", threads=5).top_k(block, head, queries, block.live, 3)
    for first, second in zip(one, many, strict=True):
        np.testing.assert_array_equal(first.rows, second.rows)
        np.testing.assert_array_equal(first.logits, second.logits)
    assert len(one) == 300


def test_the_second_look_finds_what_the_candidates_missed():
    head, vectors, queries = draw(12, 2000, 12, 64)
    source = bank_source(vectors, head)
    every, ids = np.ones(2000, bool), np.arange(2000)
    # As if every row were stored far from what it is: no candidate proves anything.
    far = replace(source, drifts=np.full(2000, 1e3, np.float32))
    plain, none = cpu_scan.best(source, vectors, head, queries, every, ids, 5, True, 1)
    looked, again = cpu_scan.best(far, vectors, head, queries, every, ids, 5, True, 2)
    assert (none, again) == (0, 12)
    for one, other in zip(plain, looked, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.logits, other.logits)


@pytest.mark.parametrize("cuts", [(16, 64, 256, 1024), tuple(range(1, 60))])
@pytest.mark.parametrize("queries", [1, 3, 70])
def test_into_how_many_chunks_rows_are_cut_does_not_matter(queries, cuts):
    head, vectors, asked = draw(14, 1500, queries, 48, 3, True)
    vectors[700:720] = vectors[30]  # ties across chunks
    every, ids = np.random.default_rng(2).random(1500) < 0.9, np.arange(1500)[::-1].copy()
    chunks = np.split(vectors, cuts)
    for drift in (0.0, 1e3):  # with the second, every answer takes a second look
        drifts = np.full(1500, drift, np.float32)
        whole, apart = (replace(bank_source(v, head), drifts=drifts) for v in ([vectors], chunks))
        given = (head, asked, every, ids, 6, True, 2)
        one, again = cpu_scan.best(whole, [vectors], *given)
        other, again_apart = cpu_scan.best(apart, chunks, *given)
        assert again == again_apart == (queries if drift else 0)
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first.rows, second.rows)
            np.testing.assert_array_equal(first.logits, second.logits)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_compiled_plan_has_the_bound_of_the_plain_one(shape):
    head, _, queries = draw(15, *shape)
    queries[0, :3] *= np.float32(1e18)
    for rising in (True, False):
        given = plan(head, queries, 16, 4, rising=rising, overlap=False)
        expected = rescoring.bound(head, queries)
        for name in ("slope", "reach", "fixed"):
            found, wanted = getattr(given, name), getattr(expected, name)
            assert (found >= wanted * (1 - 1e-12)).all()
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        sign = 1.0 if rising else -1.0
        constant = queries[:, : head.hidden].astype(np.float64) @ head.weight + head.offset
        np.testing.assert_allclose(given.constant, sign * constant, rtol=1e-6)


def test_exact_logits_are_the_same_bits_by_numpy_and_compiled():
    for seed, (count, _, hidden, rank, bias) in enumerate(SHAPES):
        for dtype in (np.float32, np.float16):
            head, vectors, queries = draw(seed, count, 3, hidden, rank, bias, dtype)
            every = [np.arange(count), np.arange(0), np.array([count - 1, 0])]
            numbers = np.repeat(np.arange(3), [len(rows) for rows in every])
            found = cpu_scan.exact_logits(
                np.split(vectors, [9]), head, queries, numbers, np.concatenate(every), 2
            )
            for number, (query, rows) in enumerate(zip(queries, every, strict=True)):
                logits = found[numbers == number]
                expected = rescoring.exact_logits(head, vectors, query, rows)
                np.testing.assert_array_equal(logits, expected)
                np.testing.assert_allclose(
                    logits, slow_logits(head, vectors[rows], query), rtol=1e-10, atol=1e-10
                )
