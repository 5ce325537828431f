"""The query cache: the same answers, each text computed once, nothing left after clearing."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from retriever.errors import InvalidInput
from retriever.query_cache import CachedEncoder, CachedQueries, VectorCache


class Model:
    """Texts to vectors that tell them apart; remembers what it was asked."""

    fingerprint = "model-1"
    dim = 4
    head = object()
    calibration = object()

    def __init__(self):
        self.asked = []

    def embed(self, texts):
        self.asked.append(list(texts))
        return np.array([self.vector(text) for text in texts], np.float32).reshape(-1, self.dim)

    query_projections = embed

    def vector(self, text):
        return [len(text), sum(text.encode()), *text.encode()[:2].ljust(2)]


@pytest.fixture
def model():
    return Model()


def test_answers_are_those_of_the_model_in_the_order_asked(model):
    cached = CachedQueries(model)
    rng = np.random.default_rng(0)
    pool = [f"question {number}" for number in range(20)]
    for _ in range(50):
        texts = [pool[i] for i in rng.integers(0, len(pool), size=rng.integers(1, 7))]
        assert np.array_equal(cached.query_projections(texts), Model().embed(texts))


def test_a_text_is_computed_once_within_a_call_and_across_calls(model):
    cached = CachedEncoder(model)
    cached.embed(["a", "b", "a"])
    cached.embed(["b", "c"])
    assert model.asked == [["a", "b"], ["c"]]
    counts = cached.counts()
    assert (counts.hits, counts.misses, counts.entries) == (1, 4, 3)


def test_the_text_used_longest_ago_goes_first(model):
    cached = CachedEncoder(model, entries=2)
    for text in ("a", "b", "a", "c"):  # b is the oldest when c comes
        cached.embed([text])
    model.asked.clear()
    cached.embed(["a"])
    cached.embed(["c"])
    assert model.asked == []
    cached.embed(["b"])
    assert model.asked == [["b"]]


def test_more_texts_than_entries_are_answered_and_the_bound_holds(model):
    cached = CachedEncoder(model, entries=3)
    texts = [f"text {number}" for number in range(10)]
    assert np.array_equal(cached.embed(texts), Model().embed(texts))
    assert cached.counts().entries == 3


def test_another_model_does_not_get_the_first_ones_vectors(model):
    cache = VectorCache()
    cache.vectors("fp32", ["a"], lambda texts: np.zeros((len(texts), 2), np.float32))
    other = cache.vectors("int8", ["a"], lambda texts: np.ones((len(texts), 2), np.float32))
    assert other.tolist() == [[1.0, 1.0]]


def test_writing_into_an_answer_does_not_change_the_next_one(model):
    cached = CachedEncoder(model)
    cached.embed(["a", "b"])[:] = -1
    again = cached.embed(["a", "b"])
    again[:] = -2
    assert np.array_equal(cached.embed(["a", "b"]), Model().embed(["a", "b"]))


def test_after_clearing_nothing_is_held(model):
    cached = CachedQueries(model)
    cached.query_projections(["a secret question"])
    cached.clear()
    assert cached.counts().entries == 0
    cached.query_projections(["a secret question"])
    assert len(model.asked) == 2


def test_what_is_computed_while_the_cache_is_cleared_is_not_kept(model):
    cache = VectorCache()

    def compute(texts):
        cache.clear()  # a forget request in the middle of a search
        return model.embed(texts)

    assert np.array_equal(cache.vectors("m", ["a"], compute), Model().embed(["a"]))
    assert cache.counts().entries == 0


def test_no_word_of_a_query_is_reachable_from_the_cache(model):
    cache = VectorCache()
    cache.vectors("m", ["a secret question"], Model().embed)
    seen, found = [cache], []
    known = {id(cache)}
    while seen:
        thing = seen.pop()
        if isinstance(thing, str | bytes):
            found.append(thing if isinstance(thing, bytes) else thing.encode())
        for inner in gc.get_referents(thing):
            if id(inner) not in known and not isinstance(inner, type) and not callable(inner):
                known.add(id(inner))
                seen.append(inner)
    assert found
    assert not any(b"secret" in text for text in found)


def test_equal_texts_have_unlike_keys_in_two_caches(model):
    first, second = VectorCache(), VectorCache()
    assert first._key("m", "a") != second._key("m", "a")


@pytest.mark.parametrize("wrong", [[], [3], ["fine", None], "one text", ["\ud800"]])
def test_what_is_not_a_list_of_texts_is_left_to_the_model(wrong):
    seen = []

    def compute(texts):
        seen.append(texts)
        return np.zeros((0, 2), np.float32)

    VectorCache().vectors("m", wrong, compute)
    assert seen == [wrong]


def test_an_error_of_the_model_keeps_nothing(model):
    cache = VectorCache()

    def fails(texts):
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        cache.vectors("m", ["a"], fails)
    assert cache.counts().entries == 0
    assert np.array_equal(cache.vectors("m", ["a"], model.embed), Model().embed(["a"]))


@pytest.mark.parametrize("entries", [0, -1, 1.5, True])
def test_a_cache_of_no_entries_is_refused(entries):
    with pytest.raises(InvalidInput, match="entries"):
        VectorCache(entries)


def test_threads_that_ask_and_clear_at_once_get_right_answers(model):
    cache = VectorCache(entries=8)
    pool = [f"question {number}" for number in range(16)]
    wrong = []

    def ask(seed):
        rng = np.random.default_rng(seed)
        for step in range(300):
            texts = [pool[i] for i in rng.integers(0, len(pool), size=3)]
            if not np.array_equal(cache.vectors("m", texts, Model().embed), Model().embed(texts)):
                wrong.append(texts)
            if step % 50 == 0:
                cache.clear()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.counts().entries <= 8
    assert cache.counts().hits + cache.counts().misses == 4 * 300 * 3


def test_a_cache_stands_for_the_scorer(scorer):
    cached = CachedQueries(scorer)
    assert cached.fingerprint == scorer.fingerprint
    assert cached.head is scorer.head
    assert cached.calibration is scorer.calibration
    queries = ["What is the capital?", "Who was born first?"]
    for _ in range(2):
        found = cached.query_projections(queries)
        assert np.allclose(found, scorer.query_projections(queries), atol=1e-6)


def test_a_generator_of_texts_is_answered_like_a_list(model):
    cached = CachedQueries(model)
    for _ in range(2):  # once computed, once held
        found = cached.query_projections(text for text in ("a", "b", "a"))
        assert np.array_equal(found, Model().embed(["a", "b", "a"]))


def test_a_vector_that_is_held_does_not_keep_its_batch_alive(model):
    cache = VectorCache()
    batches = []

    def compute(texts):
        batch = model.embed(texts)
        batches.append(weakref.ref(batch))
        return batch

    cache.vectors("m", ["a", "b"], compute)
    gc.collect()
    assert batches[0]() is None
    assert all(vector.base is None for vector in cache._vectors.values())
