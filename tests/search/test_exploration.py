"""Policies: what is logged against a twin that multiplies chances out, and against frequencies."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy import stats

from retriever.errors import InvalidInput
from retriever.head import Head
from retriever.ranking.diversity import Mmr, Quota
from retriever.ranking.exploration import Exploration
from retriever.ranking.selection import Candidates, select
from retriever.searcher import Searcher
from retriever.types import Calibration
from tests.search.search_blocks import (
    TinyEncoder,
    TinyLexical,
    TinyScorer,
    ids_of,
    source_of,
)

UTILITIES = np.array([1.0, 0.4, 0.4, -0.3, -2.0])
GROUPS = np.array([1, 1, 2, 1, 0], np.int8)
ANGLES = np.array([0.0, 0.1, 1.5, 3.0, 0.2])
SIMILAR = np.cos(ANGLES[:, None] - ANGLES[None])

POLICIES = [
    Exploration("softmax", temperature=0.7),
    Exploration("epsilon", epsilon=0.3),
    Exploration("greedy"),
]


def chances(utilities, allowed, policy):
    """The twin: plain Python, one case at a time."""
    if policy.policy == "softmax":
        weights = {i: math.exp(utilities[i] / policy.temperature) for i in allowed}
        return {i: weights[i] / math.fsum(weights.values()) for i in allowed}
    best = min(allowed, key=lambda i: (-utilities[i], i))
    epsilon = policy.epsilon if policy.policy == "epsilon" else 0.0
    return {i: epsilon / len(allowed) + (1 - epsilon) * (i == best) for i in allowed}


def next_chances(prefix, policy, limits, mmr):
    """The chance of every case after those chosen, by the definitions alone."""
    left = [limit - sum(GROUPS[i] == g for i in prefix) for g, limit in enumerate(limits)]
    allowed = [i for i in range(len(UTILITIES)) if i not in prefix and left[GROUPS[i]] > 0]
    if not allowed:
        return {}
    utilities = list(UTILITIES)
    if mmr is not None:
        low, high = min(UTILITIES), max(UTILITIES)
        nearest = [max((SIMILAR[i, j] for j in prefix), default=0.0) for i in range(len(utilities))]
        utilities = [
            mmr.weight * (u - low) / (high - low) - (1 - mmr.weight) * near
            for u, near in zip(UTILITIES, nearest, strict=True)
        ]
    return chances(utilities, allowed, policy)


def every_answer(k, policy, limits, mmr, prefix=()):
    """Every possible answer with its probability."""
    options = next_chances(prefix, policy, limits, mmr) if len(prefix) < k else {}
    options = {i: p for i, p in options.items() if p > 0}
    if not options:
        return {prefix: 1.0}
    return {
        answer: p * q
        for i, p in options.items()
        for answer, q in every_answer(k, policy, limits, mmr, (*prefix, i)).items()
    }


CASES = [
    pytest.param(policy, limits, mmr, id=f"{policy.policy}-{limits}-{'mmr' if mmr else 'plain'}")
    for policy, limits, mmr in product(POLICIES, [(3, 3, 3), (1, 1, 2)], [None, Mmr(0.6)])
]


@pytest.mark.parametrize(("policy", "limits", "mmr"), CASES)
def test_every_choice_logs_its_conditional_chance_and_answers_come_as_often(policy, limits, mmr):
    rng = np.random.default_rng(5)
    candidates = Candidates(UTILITIES, GROUPS, limits)
    similarity = None if mmr is None else (lambda place: SIMILAR[place])
    expected = every_answer(3, policy, limits, mmr)
    assert math.fsum(expected.values()) == pytest.approx(1.0)
    times, seen = 4000, Counter()
    for _ in range(times):
        choice = select(candidates, 3, policy, rng, mmr, similarity)
        answer = tuple(int(place) for place in choice.places)
        if answer not in seen:  # logged chances are a function of the answer
            for rank, (place, logged) in enumerate(zip(answer, choice.propensities, strict=True)):
                conditional = next_chances(answer[:rank], policy, limits, mmr)
                assert logged == pytest.approx(conditional[place], rel=1e-12)
        seen[answer] += 1
    assert seen.keys() <= expected.keys()
    common = [answer for answer, p in expected.items() if p * times >= 5]
    observed = [seen[answer] for answer in common]
    wanted = [expected[answer] * times for answer in common]
    rare = times - sum(observed), times - sum(wanted)
    if rare[1] >= 5:
        observed, wanted = [*observed, rare[0]], [*wanted, rare[1]]
    if len(common) > 1:
        wanted = np.array(wanted) * sum(observed) / sum(wanted)
        assert stats.chisquare(observed, wanted).pvalue > 1e-4
    else:
        assert seen == {next(iter(expected)): times}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_chances_at_a_rank_sum_to_one_over_what_may_be_chosen(policy):
    rng = np.random.default_rng(0)
    for count in (1, 2, 1000):
        utilities = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4)
        allowed = rng.random(count) < 0.5
        allowed[rng.integers(count)] = True
        found = policy.probabilities(utilities, allowed)
        assert found.sum() == pytest.approx(1.0, abs=1e-12)
        assert not found[~allowed].any()
        if policy.policy == "epsilon":
            assert (found[allowed] > 0).all()


def one(utilities, k, policy, seed=0, limits=None):
    count = len(utilities)
    candidates = Candidates(
        np.asarray(utilities, float), np.zeros(count, np.int8), limits or (count,)
    )
    return select(candidates, k, policy, np.random.default_rng(seed))


def test_a_case_far_above_the_rest_leaves_the_others_their_exact_chances():
    choice = one([900.0, 0.0, math.log(2), math.log(3)], 4, Exploration("softmax"))
    assert choice.places[0] == 0
    assert choice.propensities[0] == 1.0
    weights = {1: 1, 2: 2, 3: 3}
    for place, logged in zip(choice.places[1:], choice.propensities[1:], strict=True):
        assert logged == pytest.approx(weights[place] / sum(weights.values()), rel=1e-12)
        del weights[place]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_at_temperatures_near_zero_the_best_comes_first_and_ties_are_drawn(temperature):
    seen = Counter()
    for seed in range(200):
        choice = one([3.0, 2.0, 2.0, 1.0], 4, Exploration(temperature=temperature), seed)
        assert choice.places[[0, 3]].tolist() == [0, 3]
        assert choice.propensities.tolist() == [1.0, 0.5, 1.0, 1.0]
        seen[int(choice.places[1])] += 1
    assert seen.keys() == {1, 2}
    assert min(seen.values()) > 60


@pytest.mark.parametrize("scale", [1.0, 1e300])
def test_at_great_temperatures_every_case_is_as_likely(scale):
    choice = one(np.array([3.0, 2.0, -2.0, 1.0]) * scale, 4, Exploration(temperature=1.7e308))
    assert choice.propensities == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1], rel=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_case_none_and_more_asked_than_there_are(policy):
    assert one([0.5], 9, policy).propensities.tolist() == [1.0]
    assert one([0.5, 0.1], 9, policy).places.tolist() in ([0, 1], [1, 0])
    assert one([], 9, policy).places.tolist() == []
    assert one([0.5, 0.1], 9, policy, limits=(0,)).places.tolist() == []


def test_a_large_bank_is_drawn_from_at_once_as_it_is_rank_by_rank():
    rng = np.random.default_rng(1)
    utilities = rng.standard_normal(50_000) * 4
    groups = rng.integers(0, 3, len(utilities)).astype(np.int8)
    limits = (2, 1, 3)
    choice = select(Candidates(utilities, groups, limits), 8, Exploration(temperature=0.5), rng)
    assert len(choice.places) == 6
    weights, left = np.exp(utilities / 0.5), list(limits)
    for place, logged in zip(choice.places, choice.propensities, strict=True):
        allowed = np.array(left)[groups] > 0
        assert logged == pytest.approx(weights[place] / weights[allowed].sum(), rel=1e-9)
        weights[place] = 0
        left[groups[place]] -= 1


# Through the searcher.


def searcher(order=None, **more):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((40, 2))
    outcomes = rng.choice([0.0, 1.0, np.nan], 40)
    order = np.arange(40) if order is None else order
    lexical = TinyLexical({int(id_): float(id_ % 7) for id_ in range(3, 30)})
    source = source_of(vectors[order], ids=1 + order, outcomes=outcomes[order])
    return Searcher(source, TinyScorer(**more), TinyEncoder(), lexical=lexical)


ALL_MODES = ("exact", "cosine", "ann", "lexical", "hybrid")


def shown(found):
    return [[(hit.id, hit.rank, hit.propensity) for hit in hits] for hits in found]


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("mmr", [None, Mmr(0.5)])
def test_the_same_seed_gives_the_same_answer_in_any_batch_and_any_order_of_rows(mode, mmr):
    queries = ["1 0", "0 1", "-1 2"]
    policy = Exploration("softmax", temperature=0.8, seed=11)
    asked = {"mode": mode, "exploration": policy, "mmr": mmr}
    together = shown(searcher().search(queries, 5, **asked))
    alone = [shown(searcher().search([query], 5, **asked))[0] for query in reversed(queries)]
    assert together == alone[::-1]
    shuffled = searcher(np.random.default_rng(0).permutation(40))
    again = shown(shuffled.search(queries, 5, **asked))
    for first, second in zip(together, again, strict=True):
        assert [hit[:2] for hit in first] == [hit[:2] for hit in second]
        assert [hit[2] for hit in first] == pytest.approx([hit[2] for hit in second])
    other = asked | {"exploration": Exploration("softmax", temperature=0.8, seed=12)}
    assert shown(searcher().search(queries, 5, **other)) != together


def test_without_a_seed_every_search_draws_anew():
    many = [searcher().search(["1 0"], 3, exploration=Exploration()) for _ in range(8)]
    assert len({tuple(ids_of(found)[0]) for found in many}) > 1


@pytest.mark.parametrize("mode", ALL_MODES)
def test_what_is_chosen_by_chance_has_the_scores_it_has_otherwise(mode):
    asked = searcher()
    (plain,) = asked.search(["1 0.5"], 40, mode=mode)
    known = {hit.id: hit for hit in plain}
    for pool in (None, 10):
        policy = Exploration("epsilon", epsilon=1.0, seed=2, pool=pool)
        (hits,) = asked.search(["1 0.5"], 6, mode=mode, exploration=policy)
        assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5, 6]
        for hit in hits:
            same = known[hit.id]
            assert (hit.score, hit.logit, hit.parts) == (same.score, same.logit, same.parts)
        support = min(len(plain), pool or len(plain))
        assert hits[0].propensity == pytest.approx(1 / support)
        if pool:
            assert {hit.id for hit in hits} <= {hit.id for hit in plain[:pool]}


def test_a_plain_search_and_a_greedy_policy_leave_nothing_to_chance():
    asked = searcher()
    (plain,) = asked.search(["1 0"], 4)
    (greedy,) = asked.search(["1 0"], 4, exploration=Exploration("greedy"))
    assert plain == greedy
    assert {hit.propensity for hit in plain} == {1.0}


def test_softmax_in_exact_mode_is_over_logits_and_follows_a_calibration_that_falls():
    source = source_of([[1, 0], [3, 0], [2, 0]])
    head = Head(np.ones(2, np.float32), 0.0)
    for sign in (1.0, -1.0):
        asked = Searcher(source, TinyScorer(head=head, calibration=Calibration(a=sign * 9, b=0.0)))
        first = Counter()
        for seed in range(400):
            policy = Exploration("softmax", temperature=2.0, seed=seed)
            (hits,) = asked.search(["0 0"], 1, exploration=policy)
            weights = {id_: math.exp(sign * x / 2) for id_, x in ((1, 1), (2, 3), (3, 2))}
            chance = weights[hits[0].id] / sum(weights.values())
            assert hits[0].propensity == pytest.approx(chance, rel=1e-6)
            first[hits[0].id] += 1
        assert max(first, key=first.get) == (2 if sign > 0 else 1)


def test_min_score_takes_hits_away_before_the_policy_chooses():
    source = source_of([[1, 0], [-1, 1], [2, 0], [-3, 0]])
    asked = Searcher(source, TinyScorer(head=Head(np.ones(2, np.float32), -1.5)))
    for seed in range(20):
        policy = Exploration("epsilon", epsilon=1.0, seed=seed)
        (hits,) = asked.search(["0 0"], 4, min_score=0.3, exploration=policy)
        assert sorted(hit.id for hit in hits) == [1, 2, 3]
        assert [hit.propensity for hit in hits] == pytest.approx([1 / 3, 1 / 2, 1])


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_quota_holds_whatever_the_policy_draws(mode):
    asked = searcher()
    outcome = dict(
        zip(
            asked._source.block("default").ids.tolist(),
            asked._source.block("default").columns.outcome.tolist(),
            strict=True,
        )
    )
    for seed in range(10):
        policy = Exploration("softmax", temperature=5.0, seed=seed)
        (hits,) = asked.search(
            ["1 0"], 9, mode=mode, exploration=policy, quota=Quota(2, 3, unknown=1)
        )
        kinds = Counter(
            "?" if math.isnan(outcome[hit.id]) else outcome[hit.id] >= 1 for hit in hits
        )
        assert kinds == {True: 2, False: 3, "?": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "thompson"}, "policy = 'thompson': one of greedy, epsilon, softmax"),
        ({"epsilon": 1.5}, r"epsilon = 1.5: a finite number from 0 to 1"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"temperature": 0.0}, "temperature = 0.0: a finite number above 0"),
        ({"temperature": math.inf}, "temperature = inf"),
        ({"pool": 0}, "pool = 0: a whole number, at least 1, or None for all cases"),
        ({"seed": -1}, "seed = -1: a whole number, at least 0"),
        ({"seed": 1.5}, "exploration.seed = 1.5"),
        ({"seed": True}, "exploration.seed = True"),
        ({"pool": 1.5}, "exploration.pool = 1.5"),
        ({"epsilon": "0.1"}, "exploration.epsilon = '0.1'"),
        ({"temperature": None}, "exploration.temperature = None: a finite number above 0"),
        ({"policy": ["softmax"]}, "exploration.policy = "),
    ],
)
def test_a_policy_that_means_nothing_is_refused(values, message):
    with pytest.raises(InvalidInput, match=message):
        Exploration(**values)


class Wide(TinyScorer):
    """A head of 64 numbers, for which float32 sums round differently from exact ones."""

    def __init__(self, calibration=None):
        weight = np.random.default_rng(3).standard_normal(64).astype(np.float32)
        super().__init__(Head(weight * 0.05, 0.1), calibration or Calibration())

    def query_projections(self, queries):
        rng = np.random.default_rng(len(queries[0]))
        return rng.standard_normal((len(queries), 64)).astype(np.float32)


def near_ties(spread, **more):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1, 64)) + spread * rng.standard_normal((1500, 64))
    return source_of(vectors, ids=rng.permutation(1500) + 1, **more)


@pytest.mark.parametrize("a", [1.0, -1.0])
@pytest.mark.parametrize(
    "policy",
    [
        Exploration("epsilon", epsilon=0.0, seed=1),
        Exploration("softmax", temperature=1e-13, seed=1),
    ],
)
@pytest.mark.parametrize("quota", [None, Quota(3, 2), Quota(10, 10, None)])
def test_a_policy_without_chance_gives_the_exact_order_where_float32_cannot_tell(policy, quota, a):
    outcomes = np.random.default_rng(1).choice([0.0, 1.0, np.nan], 1500)
    source = near_ties(1e-7, outcomes=outcomes)
    asked = Searcher(source, Wide(Calibration(a=a)))
    for k in (1, 10):
        (plain,) = asked.search(["x y"], k, quota=quota)
        (chosen,) = asked.search(["x y"], k, quota=quota, exploration=policy)
        assert [(hit.id, hit.logit) for hit in chosen] == [(hit.id, hit.logit) for hit in plain]


@pytest.mark.parametrize("a", [1.0, -1.0])
def test_min_score_under_a_policy_lets_through_what_it_lets_through_without_one(a):
    asked = Searcher(near_ties(3e-5), Wide(Calibration(a=a)))
    (every,) = asked.search(["x y"], 1500)
    policy = Exploration("epsilon", epsilon=1.0, seed=1)
    for place in range(300, 1400, 50):
        bound = every[place].score
        (plain,) = asked.search(["x y"], 1500, min_score=bound)
        (chosen,) = asked.search(["x y"], 20, min_score=bound, exploration=policy)
        assert 1 / chosen[0].propensity == pytest.approx(len(plain)), "one of so many, all alike"
        assert {hit.id for hit in chosen} <= {hit.id for hit in plain}
        assert min(hit.score for hit in chosen) >= bound
