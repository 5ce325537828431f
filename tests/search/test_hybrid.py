"""Fusion of words and a model against its formulas, in plain Python."""

import math

import numpy as np
import pytest

from retriever.errors import IndexUnavailable, InvalidInput
from retriever.ranking.diversity import Mmr, Quota
from retriever.ranking.exploration import Exploration
from retriever.ranking.fusion import Fusion, zscores
from retriever.searcher import Searcher
from tests.search.search_blocks import (
    TinyEncoder,
    TinyLexical,
    TinyScorer,
    TinySource,
    ids_of,
    source_of,
)


def z(values):
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return [0.0 if deviation < 1e-9 else (v - mean) / deviation for v in values]


def fused_by_definition(utilities, words, fusion):
    """Over a pool that is the whole bank: {id: utility}, {id: BM25} -> {id: score}."""
    ids = sorted(utilities)
    if fusion.method == "zscore":
        dense = z([utilities[i] for i in ids])
        lexical = z([words.get(i, 0.0) for i in ids])
        parts = zip(dense, lexical, strict=True)
        return {
            i: fusion.weight * a + (1 - fusion.weight) * b
            for i, (a, b) in zip(ids, parts, strict=True)
        }
    scores = dict.fromkeys(ids, 0.0)
    for side, weight in ((utilities, fusion.weight), (words, 1 - fusion.weight)):
        for rank, i in enumerate(sorted(side, key=lambda i: (-side[i], i)), start=1):
            scores[i] += weight / (fusion.rrf_k + rank)
    return scores


def bank(count=50, seed=0, **more):
    rng = np.random.default_rng(seed)
    return source_of(rng.standard_normal((count, 2)), **more)


@pytest.mark.parametrize("dense", ["exact", "cosine"])
@pytest.mark.parametrize("method", ["zscore", "rrf"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_fused_score_is_what_its_formula_says(dense, method, weight):
    words = {3: 4.5, 9: 4.5, 20: 1.0, 41: 0.2}
    fusion = Fusion(method, weight, dense)
    asked = Searcher(bank(), TinyScorer(), TinyEncoder(), lexical=TinyLexical(words))
    (every,) = asked.search(["1 0.2"], 50, mode=dense)
    utilities = {hit.id: hit.score if hit.logit is None else hit.logit for hit in every}
    expected = fused_by_definition(utilities, words, fusion)
    (hits,) = asked.search(["1 0.2"], 12, mode="hybrid", fusion=fusion)
    order = sorted(expected, key=lambda i: (-round(expected[i], 9), i))[:12]
    assert [hit.id for hit in hits] == order
    known = {hit.id: hit for hit in every}
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-6)
        assert hit.parts == {dense: known[hit.id].score, "lexical": words.get(hit.id, 0.0)}
        assert hit.logit == known[hit.id].logit
        assert hit.probability == known[hit.id].probability


def test_where_no_word_matches_the_order_is_the_models_and_where_all_agree_it_is_the_words():
    asked = Searcher(bank(), TinyScorer(), TinyEncoder(), lexical=TinyLexical({}))
    (plain,) = ids_of(asked.search(["1 0"], 9, mode="cosine"))
    for method in ("zscore", "rrf"):
        fusion = Fusion(method, dense="cosine")
        assert ids_of(asked.search(["1 0"], 9, mode="hybrid", fusion=fusion)) == [plain]
    alike = Searcher(
        source_of(np.ones((5, 2))), TinyScorer(), lexical=TinyLexical({4: 2.0, 2: 1.0})
    )
    assert ids_of(alike.search(["1 0"], 5, mode="hybrid")) == [[4, 2, 1, 3, 5]]


def test_equal_scores_have_no_deviation_even_if_rounding_says_otherwise():
    assert zscores(np.full(7, 0.1)).tolist() == [0.0] * 7
    assert zscores(np.array([5.0])).tolist() == [0.0]
    assert zscores(np.array([])).tolist() == []
    assert zscores(np.array([1.0, 3.0])).tolist() == [-1.0, 1.0]


def test_an_empty_bank_a_case_alone_and_no_eligible_case():
    words = TinyLexical({1: 3.0})
    assert ids_of(
        Searcher(TinySource(), TinyScorer(), lexical=words).search(["1 0"], 3, mode="hybrid")
    ) == [[]]
    one = Searcher(source_of([[1, 0]]), TinyScorer(), lexical=words)
    (hits,) = one.search(["1 0"], 3, mode="hybrid")
    assert [(hit.id, hit.score) for hit in hits] == [(1, 0.0)]
    assert ids_of(one.search(["1 0"], 3, mode="hybrid", where={7})) == [[]]
    assert ids_of(one.search(["1 0"], 3, mode="lexical", where={7})) == [[]]


def test_a_case_of_one_list_only_is_fused_with_its_true_score_on_the_other():
    vectors = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    words = {1: 9.0}  # the model's worst
    asked = Searcher(source_of(vectors), TinyScorer(), lexical=TinyLexical(words))
    (hits,) = asked.search(["0 0"], 4, mode="hybrid", fusion=Fusion(weight=0.5, depth=5))
    pool = dict.fromkeys([1, 26, 27, 28, 29, 30])
    utilities = {i: float(i - 1) for i in pool}
    expected = fused_by_definition(utilities, words, Fusion(weight=0.5))
    by_id = {hit.id: hit for hit in hits}
    assert by_id.keys() == set(sorted(expected, key=lambda i: (-expected[i], i))[:4])
    assert all(by_id[i].score == pytest.approx(expected[i]) for i in by_id)
    assert by_id[1].logit == 0.0
    (hits,) = asked.search(["0 0"], 6, mode="hybrid", fusion=Fusion("rrf", depth=6))
    ranks = {hit.id: hit.score for hit in hits}
    assert ranks[1] == pytest.approx(0.5 / 61), "absent from the model's list, first of the words'"


def test_min_score_is_of_the_fused_score():
    asked = Searcher(bank(), TinyScorer(), lexical=TinyLexical({3: 5.0}))
    (every,) = asked.search(["1 0"], 50, mode="hybrid")
    bound = every[6].score
    (hits,) = asked.search(["1 0"], 50, mode="hybrid", min_score=bound)
    assert hits == [hit for hit in every if hit.score >= bound]
    assert 0 < len(hits) < 50


def test_lexical_mode_gives_the_words_hits_and_asks_again_where_filters_take_them():
    scores = {i: 100.0 - i for i in range(1, 41)}
    index = TinyLexical(scores)
    live = np.arange(1, 51) > 36
    asked = Searcher(bank(live=live), TinyScorer(), lexical=index)
    (hits,) = asked.search(["some words"], 3, mode="lexical")
    assert [(hit.id, hit.score, hit.rank) for hit in hits] == [
        (37, 63, 1),
        (38, 62, 2),
        (39, 61, 3),
    ]
    assert [k for _, k, _, _ in index.asked] == [3, 12, 48]
    assert hits[0].logit is hits[0].probability is None
    assert ids_of(asked.search(["x"], 9, mode="lexical", where={38, 40, 44})) == [[38, 40]]
    assert index.asked[-1][2:] == ("default", {38, 40, 44})


def test_ties_of_words_go_to_the_lower_id_wherever_the_rows_lie():
    source = source_of(np.eye(2)[[0, 1, 0, 1]], ids=[9, 2, 7, 4])
    asked = Searcher(source, TinyScorer(), lexical=TinyLexical(dict.fromkeys([2, 4, 7, 9], 1.0)))
    assert ids_of(asked.search(["1 0"], 3, mode="lexical")) == [[2, 4, 7]]


def test_modes_are_those_whose_parts_are_there():
    source, words = bank(), TinyLexical({})
    assert Searcher(source, TinyScorer()).modes == ("exact", "ann")
    assert Searcher(source, None, TinyEncoder()).modes == ("cosine",)
    assert Searcher(source, None, lexical=words).modes == ("lexical",)
    every = Searcher(source, TinyScorer(), TinyEncoder(), lexical=words)
    assert every.modes == ("exact", "cosine", "ann", "lexical", "hybrid")
    both = Searcher(source, None, TinyEncoder(), lexical=words)
    assert both.modes == ("cosine", "lexical", "hybrid")
    (hits,) = both.search(["1 0"], 1, mode="hybrid")
    assert hits[0].parts.keys() == {"cosine", "lexical"}, "what is there is fused"


@pytest.mark.parametrize(
    ("given", "asked", "message"),
    [
        ({}, {"mode": "lexical"}, "lexical=bank"),
        ({}, {"mode": "hybrid"}, "lexical=bank"),
        ({"lexical": TinyLexical({})}, {"mode": "hybrid", "fusion": Fusion(dense="cosine")}, "enc"),
        ({"scorer": None, "lexical": TinyLexical({})}, {"mode": "hybrid"}, "scorer="),
        ({"scorer": None}, {"mode": "exact"}, "scorer="),
        ({"scorer": None}, {"mode": "ann"}, "scorer="),
    ],
)
def test_a_mode_without_its_parts_names_the_remedy(given, asked, message):
    scorer = given.pop("scorer", TinyScorer())
    with pytest.raises(IndexUnavailable, match=message):
        Searcher(bank(), scorer, **given).search(["1 0"], 1, **asked)


def test_a_bank_of_another_model_is_refused_even_where_it_holds_nothing():
    source = TinySource()
    for mode in ("exact", "ann", "hybrid"):
        asked = Searcher(source, TinyScorer(fingerprint="new"), lexical=TinyLexical({}))
        with pytest.raises(IndexUnavailable, match="CaseProjector"):
            asked.search(["1 0"], 1, mode=mode)
    with pytest.raises(IndexUnavailable, match="QueryEmbedder"):
        Searcher(source, None, TinyEncoder("new")).search(["1 0"], 1, mode="cosine")


def test_fusion_is_refused_where_nothing_is_fused():
    with pytest.raises(InvalidInput, match="fusion is of mode='hybrid'"):
        Searcher(bank(), TinyScorer()).search(["1 0"], 1, fusion=Fusion())


def test_a_case_beyond_the_depth_of_the_words_has_its_true_score_on_them():
    vectors = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    words = {i: 40.0 - i for i in range(1, 25)}  # the best by words are the model's worst
    asked = Searcher(source_of(vectors), TinyScorer(), lexical=TinyLexical(words))
    pool = [*range(1, 11), *range(21, 31)]
    expected = fused_by_definition(
        {i: float(i - 1) for i in pool}, {i: words.get(i, 0.0) for i in pool}, Fusion(weight=0.8)
    )
    (hits,) = asked.search(["0 0"], 8, mode="hybrid", fusion=Fusion(weight=0.8, depth=10))
    assert [hit.id for hit in hits] == sorted(expected, key=lambda i: (-expected[i], i))[:8]
    assert {hit.id for hit in hits} & {21, 22, 23, 24}, (
        "none of them is among the ten best by words"
    )
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.id])
        assert hit.parts["lexical"] == words.get(hit.id, 0.0)
    (hits,) = asked.search(["0 0"], 20, mode="hybrid", fusion=Fusion("rrf", 1.0, depth=10))
    found = {hit.id: hit for hit in hits}
    assert found[22].parts["lexical"] == words[22]
    (hits,) = asked.search(["0 0"], 10, mode="hybrid", fusion=Fusion("rrf", 0.0, depth=10))
    assert [hit.score for hit in hits] == pytest.approx([1 / (60 + r) for r in range(1, 11)])


@pytest.mark.parametrize("method", ["zscore", "rrf"])
@pytest.mark.parametrize("words", [{}, {i: i / 7 for i in range(1, 51)}])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"exploration": Exploration("softmax", seed=1)},
        {"exploration": Exploration("epsilon", epsilon=0.5, seed=1)},
        {"exploration": Exploration("epsilon", pool=20, seed=1)},
        {"mmr": Mmr(pool=1)},
        {"quota": Quota(20, 20, None)},
        {"quota": Quota(20, 20, None), "mmr": Mmr(pool=1)},
    ],
)
def test_k_cases_are_found_where_there_are_so_many_however_small_the_pool(more, words, method):
    asked = Searcher(bank(), TinyScorer(), lexical=TinyLexical(words))
    fusion = Fusion(method, depth=3)
    (hits,) = asked.search(["1 0"], 20, mode="hybrid", fusion=fusion, **more)
    assert len({hit.id for hit in hits}) == 20
    (every,) = asked.search(["1 0"], 70, mode="hybrid", fusion=fusion, **more)
    assert len(every) == 50


@pytest.mark.parametrize("method", ["zscore", "rrf"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mmr": Mmr()},
        {"exploration": Exploration("softmax", seed=1)},
        {"exploration": Exploration("softmax", pool=5, seed=1)},
    ],
)
def test_a_quota_finds_rare_cases_that_neither_side_puts_into_the_pool(more, method):
    vectors = np.stack([np.arange(300.0), np.ones(300)], axis=1)
    outcomes = np.ones(300)
    outcomes[[0, 2, 4, 6, 8]] = 0.0  # the model's worst
    words = {i: float(i) for i in range(1, 301) if i not in (1, 3)}
    source = source_of(vectors, outcomes=outcomes)
    asked = Searcher(source, TinyScorer(), TinyEncoder(), lexical=TinyLexical(words))
    quota = Quota(4, 4)
    given = {"mode": "hybrid", "fusion": Fusion(method, depth=20)} | more
    (hits,) = asked.search(["0 0"], 8, quota=quota, **given)
    failures = [hit for hit in hits if outcomes[hit.id - 1] == 0]
    assert (len(hits), len(failures)) == (8, 4)
    assert {hit.id: hit.parts["lexical"] for hit in failures}.items() <= {
        **words,
        1: 0.0,
        3: 0.0,
    }.items()
    if not more:
        assert [hit.id for hit in failures] == [9, 7, 5, 3], "the best of them, best first"
    (all_of_them,) = asked.search(["0 0"], 80, quota=Quota(0, 80), **given)
    assert sorted(hit.id for hit in all_of_them) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("method", ["zscore", "rrf"])
def test_a_quota_moves_no_score_of_a_case_that_is_in_the_pool_anyway(method):
    rng = np.random.default_rng(4)
    outcomes = np.where(rng.random(200) < 0.03, 0.0, 1.0)
    words = {int(i): float(rng.random()) for i in rng.integers(1, 201, 120)}
    asked = Searcher(
        bank(200, outcomes=outcomes), TinyScorer(), TinyEncoder(), lexical=TinyLexical(words)
    )
    given = {"mode": "hybrid", "fusion": Fusion(method, depth=30)}
    (plain,) = asked.search(["1 0.3"], 20, **given)
    (split,) = asked.search(["1 0.3"], 20, quota=Quota(17, 3), **given)
    known = {hit.id: (hit.score, hit.parts) for hit in plain}
    shared = [hit for hit in split if hit.id in known]
    assert len(shared) > 10
    assert len(shared) < len(split), "some came in by the quota"
    for hit in shared:
        assert (hit.score, hit.parts) == known[hit.id]
