"""MMR against its definition, quotas against a walk down the whole ranking."""

import math

import numpy as np
import pytest

from retriever.errors import InvalidInput, NonFiniteScore
from retriever.ranking.diversity import Mmr, Quota, relevance
from retriever.ranking.fusion import Fusion
from retriever.searcher import Searcher
from tests.search.search_blocks import (
    TinyBlock,
    TinyColumns,
    TinyEncoder,
    TinyLexical,
    TinyScorer,
    TinySource,
    ids_of,
    source_of,
)

ALL_MODES = ("exact", "cosine", "ann", "lexical", "hybrid")


def searcher(vectors, lexical=None, **more):
    source = source_of(vectors, **more)
    return Searcher(source, TinyScorer(), TinyEncoder(), lexical=TinyLexical(lexical or {}))


def mmr_by_definition(ids, utilities, units, k, weight):
    """Carbonell and Goldstein, in plain Python: best first, ties to the lower id."""
    low, high = min(utilities), max(utilities)
    gains = [1.0 if high == low else (u - low) / (high - low) for u in utilities]
    chosen = []
    while len(chosen) < min(k, len(ids)):
        values = {}
        for i in range(len(ids)):
            if i not in chosen:
                near = max((float(units[i] @ units[j]) for j in chosen), default=0.0)
                values[i] = weight * gains[i] - (1 - weight) * near
        chosen.append(min(values, key=lambda i: (-round(values[i], 9), ids[i])))
    return [ids[i] for i in chosen]


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.7, 1.0])
def test_mmr_is_what_its_definition_says_over_the_pool_of_a_mode(mode, weight):
    rng = np.random.default_rng(8)
    vectors = rng.standard_normal((60, 2)).astype(np.float32)
    vectors[7] = vectors[3]
    asked = searcher(vectors, {id_: float(id_ % 11) + id_ / 100 for id_ in range(5, 50)})
    utility = {"exact": "logit", "ann": "logit"}.get(mode, "score")
    for query in ("1 0", "-1 0.3"):
        (pool,) = asked.search([query], 25, mode=mode)
        pool = sorted(pool, key=lambda hit: hit.id)
        rows = np.array([hit.id - 1 for hit in pool])
        units = vectors[rows].astype(float)
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        utilities = [getattr(hit, utility) for hit in pool]
        expected = mmr_by_definition([hit.id for hit in pool], utilities, units, 8, weight)
        (hits,) = asked.search([query], 8, mode=mode, mmr=Mmr(weight, pool=25))
        assert [hit.id for hit in hits] == expected
        assert [hit.rank for hit in hits] == list(range(1, 9))
        scores = {hit.id: hit.score for hit in pool}
        assert all(hit.score == scores[hit.id] for hit in hits), "the mode's score, not the mmr's"
        assert {hit.propensity for hit in hits} == {1.0}


def test_the_weight_one_leaves_the_order_and_less_takes_copies_apart():
    vectors = [[4, 0], [4, 0], [3.9, 0], [0, 3], [1, 1]]
    asked = searcher(vectors)
    (plain,) = ids_of(asked.search(["1 0"], 5))
    assert ids_of(asked.search(["1 0"], 5, mmr=Mmr(1.0))) == [plain]
    (apart,) = ids_of(asked.search(["1 0"], 3, mmr=Mmr(0.2)))
    assert plain[:3] == [1, 2, 3]
    assert apart == [1, 4, 5]


def test_without_embeddings_similarity_is_of_projections_and_without_any_it_is_refused():
    columns = TinyColumns(np.full(3, np.nan), np.zeros(3, np.int64), np.zeros(3, np.int64))
    vectors = np.array([[4, 0], [3.9, 0], [0, 3]], np.float32)
    block = TinyBlock(
        np.arange(1, 4),
        np.ones(3, bool),
        projections=(vectors,),
        embeddings_key=None,
        columns=columns,
    )
    asked = Searcher(TinySource({"default": block}), TinyScorer())
    assert ids_of(asked.search(["0 0"], 2)) == [[1, 2]]
    assert ids_of(asked.search(["0 0"], 2, mmr=Mmr(0.4))) == [[1, 3]]
    bare = TinyBlock(np.arange(1, 4), np.ones(3, bool), columns=columns)
    words = Searcher(TinySource({"default": bare}), None, lexical=TinyLexical({1: 1.0}))
    with pytest.raises(InvalidInput, match="mmr needs vectors"):
        words.search(["x"], 2, mode="lexical", mmr=Mmr())


def test_a_vector_of_nothing_is_like_no_other_and_a_broken_one_is_named():
    asked = searcher([[0, 0], [1, 0], [2, 0]])
    assert len(ids_of(asked.search(["0 1"], 3, mmr=Mmr(0.1)))[0]) == 3
    with pytest.raises(NonFiniteScore, match="case 2"):
        searcher([[1, 0], [np.nan, 0]], {1: 1.0, 2: 2.0}).search(
            ["1 0"], 2, mode="lexical", mmr=Mmr()
        )


def test_relevance_runs_from_nought_to_one_and_is_one_for_equals():
    assert relevance(np.array([3.0, 1.0, 2.0])).tolist() == [1.0, 0.0, 0.5]
    assert relevance(np.array([2.0, 2.0])).tolist() == [1.0, 1.0]
    assert relevance(np.array([-1.7e308, 0.0, 1.7e308])).tolist() == [0.0, 0.5, 1.0]
    assert relevance(np.array([])).tolist() == []


def walked(hits, outcomes, quota, k):
    """The twin: down the whole ranking, taking what the quota still lets through."""
    left = {"positive": quota.positive, "negative": quota.negative, "unknown": quota.unknown}
    taken = []
    for hit in hits:
        outcome = outcomes[hit.id - 1]
        kind = (
            "unknown"
            if math.isnan(outcome)
            else "positive"
            if outcome >= quota.positive_at
            else "negative"
        )
        if len(taken) < k and (left[kind] is None or left[kind] > 0):
            left[kind] = None if left[kind] is None else left[kind] - 1
            taken.append((hit.id, hit.score))
    return taken


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize(
    "quota",
    [
        Quota(4, 4),
        Quota(1, 2, unknown=None),
        Quota(3, 0),
        Quota(0, 0, unknown=2),
        Quota(2, 2, unknown=1, positive_at=0.5),
        Quota(500, 500, unknown=500),
    ],
)
def test_a_quota_takes_the_best_of_each_kind_in_the_order_of_the_scores(mode, quota):
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((80, 2))
    outcomes = rng.choice([0.0, 0.5, 1.0, np.nan], 80)
    live = rng.random(80) < 0.9
    asked = searcher(
        vectors, {id_: float(id_ % 13) for id_ in range(1, 70)}, outcomes=outcomes, live=live
    )
    (every,) = asked.search(["1 0"], 80, mode=mode)
    for k in (1, 5, 80):
        (hits,) = asked.search(["1 0"], k, mode=mode, quota=quota)
        assert [(hit.id, hit.score) for hit in hits] == walked(every, outcomes, quota, k)


def test_a_quota_reaches_past_any_number_of_better_cases_of_another_kind():
    vectors = np.stack([np.arange(3000.0, 0, -1), np.zeros(3000)], axis=1)
    outcomes = np.zeros(3000)
    outcomes[2990:] = 1.0
    asked = searcher(vectors, outcomes=outcomes)
    (found,) = ids_of(asked.search(["1 0"], 4, quota=Quota(2, 2)))
    assert found == [1, 2, 2991, 2992]
    (found,) = ids_of(asked.search(["1 0"], 4, quota=Quota(2, 2), mmr=Mmr(1.0, pool=5)))
    assert found == [1, 2, 2991, 2992]


def test_a_quota_in_a_bank_without_such_cases_gives_none():
    asked = searcher([[1, 0], [2, 0]], outcomes=[np.nan, np.nan])
    assert ids_of(asked.search(["1 0"], 4, quota=Quota(2, 2))) == [[]]
    assert ids_of(asked.search(["1 0"], 4, quota=Quota(2, 2, unknown=None))) == [[2, 1]]
    empty = searcher(np.empty((0, 2)))
    assert ids_of(empty.search(["1 0"], 4, quota=Quota(2, 2), mmr=Mmr())) == [[]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mmr(1.2), r"mmr.weight = 1.2: a finite number from 0 to 1"),
        (lambda: Mmr(pool=0), r"mmr.pool = 0"),
        (lambda: Quota(-1, 2), r"quota.positive = -1: a whole number, at least 0"),
        (lambda: Quota(0, 0), "quota lets no case through"),
        (lambda: Quota(1, 1, positive_at=2.0), r"quota.positive_at = 2.0"),
        (lambda: Fusion(weight=-0.1), r"fusion.weight = -0.1"),
        (lambda: Fusion(method="borda"), "fusion.method = 'borda': one of zscore, rrf"),
        (lambda: Fusion(dense="lexical"), "fusion.dense = 'lexical'"),
        (lambda: Fusion(depth=0), r"fusion.depth = 0"),
        (lambda: Fusion(rrf_k=math.inf), r"fusion.rrf_k = inf"),
        (lambda: Quota(1.5, 2), r"quota.positive = 1.5: a whole number"),
        (lambda: Quota(2, math.nan), r"quota.negative = nan"),
        (lambda: Quota(True, 0), r"quota.positive = True"),
        (lambda: Quota("1", 0), r"quota.positive = '1'"),
        (lambda: Quota(1, 1, 0.5), r"quota.unknown = 0.5: .* or None for as many"),
        (lambda: Quota(1, 1, positive_at="1"), r"quota.positive_at = '1': outcomes"),
        (lambda: Mmr("0.5"), r"mmr.weight = '0.5'"),
        (lambda: Mmr(pool=2.5), r"mmr.pool = 2.5: a whole number, at least 1, or None for 10 k"),
        (lambda: Fusion(depth=1.5), r"fusion.depth = 1.5: a whole number"),
        (lambda: Fusion(rrf_k=True), r"fusion.rrf_k = True"),
        (lambda: Fusion(weight=10**400), r"fusion.weight = 1000.*\.\.\.: a finite number"),
        (lambda: Fusion(weight=10**5000), r"fusion.weight = an? int too long"),
        (lambda: Fusion(method=["rrf"]), r"fusion.method = \['rrf'\]: one of"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
