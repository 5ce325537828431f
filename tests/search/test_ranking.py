"""Candidates of an index rescored, copies dropped, query vectors kept."""

from dataclasses import replace

import numpy as np
import pytest

from retriever.errors import InvalidInput, NonFiniteScore
from retriever.head import Head
from retriever.modes.exact import Ann, Exact
from retriever.modes.mode import Need, Scope
from retriever.ranking.choosing import Wanted, answered
from retriever.ranking.diversity import Mmr, Quota
from retriever.ranking.exploration import Exploration
from retriever.scan import open_scanner
from retriever.searcher import Searcher
from retriever.tiers.settings import IndexSettings
from retriever.types import Calibration
from tests.search.search_blocks import (
    TinyEncoder,
    TinyLexical,
    TinyScorer,
    TinySource,
    block_of,
    ids_of,
    source_of,
)

HEAD = Head(np.array([1.0, -0.5], np.float32), 0.25)


def both_ways(propose, *, count=200, eligible=None, scorer=None):
    rng = np.random.default_rng(2)
    block = block_of(rng.standard_normal((count, 2)), cuts=(70,))
    block = replace(block, projections=block.embeddings)
    scorer = scorer or TinyScorer(head=HEAD)
    eligible = block.live if eligible is None else eligible
    scanner = open_scanner("cpu")
    scope = Scope(block, eligible)
    return Exact(scorer, scanner), Ann(scorer, scanner, propose, 50), scope


def pairs(found):
    return [(ranked.rows.tolist(), ranked.logits.tolist()) for ranked in found]


def test_candidates_that_hold_the_best_give_the_exact_answer():
    def propose(block, queries, count, eligible, rising):
        asked.append((len(queries), count))
        assert eligible is scope.eligible
        return [np.arange(len(block.ids) - 1, -1, -1) for _ in queries]

    asked = []
    exact, ann, scope = both_ways(propose)
    queries = ann.ask(["1 0", "0 1"])
    assert pairs(ann.best(scope, queries, 5)) == pairs(exact.best(scope, queries, 5))
    assert pairs(ann.best(scope, queries, 70)) == pairs(exact.best(scope, queries, 70))
    assert asked == [(2, 50), (2, 70)], "as many as the settings say, or as are wanted"


@pytest.mark.parametrize("kind", ["none", "too few", "not eligible", "empty"])
def test_where_candidates_are_not_enough_every_case_is_scored(kind):
    given = {
        "none": None,
        "too few": np.arange(4),
        "not eligible": np.arange(100, 200),
        "empty": np.arange(0),
    }[kind]
    few = np.arange(200) < 100
    exact, ann, scope = both_ways(
        lambda block, queries, count, eligible, rising: [given] * len(queries), eligible=few
    )
    queries = ann.ask(["1 0", "0 1"])
    assert pairs(ann.best(scope, queries, 5)) == pairs(exact.best(scope, queries, 5))
    assert all(row < 100 for rows, _ in pairs(ann.best(scope, queries, 5)) for row in rows)


def test_candidates_alone_are_ranked_and_so_may_miss_the_best():
    exact, ann, scope = both_ways(
        lambda block, queries, count, eligible, rising: [np.arange(60) for _ in queries]
    )
    queries = ann.ask(["1 0"])
    (found,) = ann.best(scope, queries, 5)
    (best,) = exact.best(scope.narrowed(np.arange(200) < 60), queries, 5)
    assert found.rows.tolist() == best.rows.tolist()
    assert len(ann.whole(scope, queries, Need(5)).rows) == 60 - 10, "no more than the settings say"


def test_where_the_calibration_falls_the_index_is_asked_for_the_lowest_logits():
    def propose(block, queries, count, eligible, rising):
        asked.append(rising)
        return [np.arange(len(block.ids)) for _ in queries]

    asked = []
    scorer = TinyScorer(head=HEAD, calibration=Calibration(a=-1.0, b=0.0))
    exact, ann, scope = both_ways(propose, scorer=scorer)
    queries = ann.ask(["1 0"])
    assert pairs(ann.best(scope, queries, 5)) == pairs(exact.best(scope, queries, 5))
    assert asked == [False]


def test_every_score_of_a_case_is_the_same_however_it_was_found():
    rng = np.random.default_rng(5)
    asked = Searcher(
        source_of(rng.standard_normal((300, 2)), dtype=np.float16),
        TinyScorer(head=HEAD),
        TinyEncoder(),
        lexical=TinyLexical({7: 1.0}),
    )
    (exact,) = asked.search(["0.3 1"], 300)
    logits = {hit.id: (hit.logit, hit.probability) for hit in exact}
    policy = Exploration("epsilon", epsilon=1.0, seed=1)
    for more in ({"mode": "ann"}, {"mode": "hybrid"}, {"exploration": policy}):
        (hits,) = asked.search(["0.3 1"], 20, **more)
        assert all((hit.logit, hit.probability) == logits[hit.id] for hit in hits), more


def test_a_broken_case_is_named_where_every_case_is_looked_at():
    asked = Searcher(source_of([[1, 1], [np.nan, 0], [np.inf, 0]]), TinyScorer())
    with pytest.raises(NonFiniteScore, match="case 2"):
        asked.search(["1 0"], 1, exploration=Exploration(seed=0))
    dead = Searcher(source_of([[1, 1], [np.nan, 0]], live=[True, False]), TinyScorer())
    assert ids_of(dead.search(["1 0"], 2, exploration=Exploration(seed=0))) == [[1]]


class Counting(TinyScorer):
    """Notes what it was asked to encode."""

    def query_projections(self, queries):
        self.__dict__.setdefault("seen", []).extend(queries)
        return super().query_projections(queries)


def test_vectors_of_queries_are_kept_if_wanted_and_forgotten_with_a_purge():
    scorer = Counting()
    asked = Searcher(source_of([[1, 0], [0, 1]]), scorer, TinyEncoder(), cached_queries=8)
    first = asked.search(["1 0", "0 1"], 2)
    assert asked.search(["0 1", "1 0"], 2) == first[::-1]
    assert scorer.seen == ["1 0", "0 1"]
    asked.drop("default")
    assert asked.search(["1 0"], 2) == first[:1]
    assert scorer.seen == ["1 0", "0 1", "1 0"]
    plain = Searcher(source_of([[1, 0]]), Counting())
    for _ in range(2):
        plain.search(["1 0"], 1)
    assert plain._calibration is not None
    with pytest.raises(InvalidInput, match="cached_queries = -1"):
        Searcher(TinySource(), TinyScorer(), cached_queries=-1)


def test_a_query_is_encoded_once_whatever_is_done_with_it():
    scorer = Counting()
    asked = Searcher(
        source_of(np.eye(2)[[0, 1] * 9], outcomes=[0.0, 1.0] * 9),
        scorer,
        lexical=TinyLexical({1: 1.0}),
    )
    from retriever.ranking.diversity import Mmr, Quota

    for mode in ("exact", "ann", "hybrid"):
        scorer.__dict__["seen"] = []
        asked.search(
            ["1 0", "0 1"],
            3,
            mode=mode,
            mmr=Mmr(),
            quota=Quota(2, 2),
            exploration=Exploration(seed=1),
        )
        assert scorer.seen == ["1 0", "0 1"], mode


def test_drop_reaches_the_scanner_and_it_is_accepted_again():
    asked = Searcher(source_of([[1, 0]], version=7), TinyScorer())
    told = []

    class Noting:
        def drop(self, namespace):
            told.append(("drop", namespace))

        def accept(self, namespace, version):
            told.append(("accept", namespace, version))

        def warm_up(self, head):
            told.append(("warm", head.hidden))

    asked._scanner = Noting()
    asked.drop("default")
    asked.warm_up()
    assert told == [("drop", "default"), ("accept", "default", 7), ("warm", 2)]
    Searcher(TinySource(), None, TinyEncoder()).warm_up()  # nothing to warm


def test_an_index_of_candidates_is_kept_between_runs_and_dropped_with_a_purge(tmp_path):
    rng = np.random.default_rng(6)
    vectors = rng.standard_normal((400, 2))
    source = source_of(vectors)
    settings = IndexSettings(kind="flat", candidates=100)
    asked = Searcher(source, TinyScorer(head=HEAD), index=settings, index_dir=tmp_path)
    for query in ("1 0", "-1 1"):
        (exact,) = asked.search([query], 8)
        (near,) = asked.search([query], 8, mode="ann")
        assert len({hit.id for hit in near} & {hit.id for hit in exact}) >= 6
        scores = {hit.id: hit.score for hit in exact}
        assert all(hit.score == scores[hit.id] for hit in near if hit.id in scores)
    asked.close()
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("ann-")
    before = source.blocks["default"]
    gone = int(exact[0].id)
    source.blocks["default"] = replace(before, live=before.ids != gone, version=2)
    asked.drop("default")
    assert list(tmp_path.iterdir()) == []
    (after,) = asked.search([query], 8, mode="ann")
    assert gone not in {hit.id for hit in after}
    # Other models, or none: what an earlier run saved goes all the same.
    asked.close()
    assert list(tmp_path.iterdir())
    Searcher(source, None, TinyEncoder(), index_dir=tmp_path).drop("default")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mmr": Mmr()},
        {"exploration": Exploration("softmax", seed=1)},
        {"exploration": Exploration("epsilon", epsilon=0.3, seed=1)},
        {"exploration": Exploration("softmax", pool=9, seed=1)},
    ],
)
def test_candidates_are_enough_for_k_and_for_every_group_of_a_quota(more):
    def propose(block, queries, count, eligible, rising):
        asked.append(count)
        return [np.flatnonzero(eligible)[:count] for _ in queries]

    asked = []
    _, ann, scope = both_ways(propose)
    outcomes = np.ones(200)
    outcomes[-5:] = 0.0
    block = replace(scope.block, columns=replace(scope.block.columns, outcome=outcomes))
    scope = Scope(block, scope.eligible)
    (hits,) = answered(ann, scope, ["1 0"], Wanted(8, quota=Quota(4, 4), **more), None)
    assert [outcomes[hit.id - 1] for hit in hits].count(0.0) == 4
    assert len(hits) == 8
    (many,) = answered(ann, scope, ["1 0"], Wanted(90, **more), None)
    assert len(many) == 90, "more than the 50 candidates of the settings"
    assert max(asked) >= 90
