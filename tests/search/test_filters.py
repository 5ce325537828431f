"""Filters in every mode, over a real bank and over sources that change under a search."""

import numpy as np
import pytest

from memory import ByIds, CaseBank, CaseFilter, NewCase
from retriever.embedders import CaseProjector, QueryEmbedder
from retriever.errors import BankChanging
from retriever.head import Head
from retriever.ranking.exploration import Exploration
from retriever.searcher import Searcher
from retriever.types import Calibration
from tests.search.search_blocks import TinyScorer, TinySource, ids_of, source_of

ALL_MODES = ("exact", "cosine", "ann", "lexical", "hybrid")
WORDS = [
    "red",
    "green",
    "blue",
    "old",
    "new",
    "big",
    "small",
    "cat",
    "dog",
    "bird",
    "house",
    "tree",
]


class BagOfWords:
    """Counts of a few words: scorer, projector and encoder in one."""

    fingerprint, dim = "bag", len(WORDS)
    head = Head(np.linspace(1, 2, len(WORDS), dtype=np.float32), 0.0)
    calibration = Calibration()

    def project_texts(self, texts):
        counts = [[text.split().count(word) for word in WORDS] for text in texts]
        return np.array(counts, np.float32).reshape(-1, len(WORDS)) + 0.125

    embed = query_projections = project_texts


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    rng = np.random.default_rng(0)
    bag = BagOfWords()
    with CaseBank.open(
        tmp_path_factory.mktemp("bank") / "bank.db",
        embeddings=QueryEmbedder(bag),
        projections=CaseProjector(bag),
    ) as opened:
        for namespace in ("default", "other"):
            opened.add(
                [
                    NewCase(
                        " ".join(rng.choice(WORDS, 4)),
                        kind=str(rng.choice(["case", "fact"])),
                        tags=tuple(str(tag) for tag in rng.choice(["a", "b", "c"], 2)),
                        source=str(rng.choice(["s", "t"])),
                        outcome=[None, 0.0, 0.7, 1.0][rng.integers(4)],
                        valid_from=[None, 10, 20][rng.integers(3)],
                    )
                    for _ in range(120)
                ],
                namespace=namespace,
            )
        opened.forget(ByIds((5, 6)), mode="invalidate")
        yield opened


@pytest.fixture(scope="module")
def searcher(bank):
    return Searcher(bank, BagOfWords(), BagOfWords(), lexical=bank)


FILTERS = [
    CaseFilter(kinds=["fact"]),
    CaseFilter(tags=["a", "b"]),
    CaseFilter(source="s", min_outcome=0.7),
    CaseFilter(source="t", has_outcome=False, valid_at=12),
    CaseFilter(max_outcome=0.0, tags=["c"]),
    CaseFilter(invalidated=True),
    CaseFilter(tags=["nobody has"]),
]


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("where", FILTERS)
def test_a_filtered_search_is_the_whole_ranking_without_what_is_filtered_out(
    bank, searcher, mode, where
):
    queries = ["old red cat", "a small house and a dog"]
    meant = CaseFilter(
        **{name: getattr(where, name) for name in where.__slots__ if name != "invalidated"}
    )
    kept = {case.id for case in bank.list(limit=1000, where=meant)}
    every = searcher.search(queries, 500, mode=mode)
    found = searcher.search(queries, 9, mode=mode, where=where)
    for hits, whole in zip(found, every, strict=True):
        if mode == "hybrid":  # its scores are of what may be found
            assert {hit.id for hit in hits} <= kept
            assert len(hits) == min(9, len(kept))
            continue
        expected = [(hit.id, hit.score) for hit in whole if hit.id in kept][:9]
        assert [(hit.id, hit.score) for hit in hits] == expected


@pytest.mark.parametrize("mode", ALL_MODES)
def test_what_is_kept_for_history_alone_is_found_in_no_mode(searcher, mode):
    (hits,) = searcher.search(["old red cat dog"], 500, mode=mode)
    assert hits
    assert not {5, 6} & {hit.id for hit in hits}


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_filter_and_a_moment_hold_together_and_namespaces_stay_apart(bank, searcher, mode):
    where = CaseFilter(tags=["a"])
    here, there = (
        {
            hit.id
            for hit in searcher.search(
                ["red"], 500, mode=mode, as_of=15, where=where, namespace=name
            )[0]
        }
        for name in ("default", "other")
    )
    allowed = {case.id for case in bank.list(limit=500, where=CaseFilter(tags=["a"], valid_at=15))}
    assert here <= allowed
    assert here
    assert not here & there


def test_a_policy_chooses_among_what_the_filter_leaves(bank, searcher):
    where = CaseFilter(tags=["a", "b"], min_outcome=0.7)
    kept = bank.count(where=where)
    policy = Exploration("epsilon", epsilon=1.0, seed=0)
    (hits,) = searcher.search(["red"], 3, where=where, exploration=policy)
    assert [hit.propensity for hit in hits] == pytest.approx([1 / (kept - i) for i in range(3)])


def test_cases_that_come_between_a_search_and_its_words_do_not_disturb_it(tmp_path):
    class Busy:
        """Another process adds a case before every word search."""

        def search_text(self, query, k, *, namespace, where=None):
            bank.add([NewCase("red red red")], namespace=namespace)
            return bank.search_text(query, k, namespace=namespace, where=where)

        def text_scores(self, query, ids, *, namespace):
            return bank.text_scores(query, ids, namespace=namespace)

    bag = BagOfWords()
    with CaseBank.open(tmp_path / "bank.db", projections=CaseProjector(bag)) as bank:
        bank.add([NewCase("red"), NewCase("green red")])
        searcher = Searcher(bank, bag, lexical=Busy())
        for mode in ("lexical", "hybrid"):
            before = bank.block().ids[bank.block().live].tolist()
            (hits,) = searcher.search(["red"], 2, mode=mode)
            assert len(hits) == 2
            assert {hit.id for hit in hits} <= set(before)


class Restless(TinySource):
    """Its filter needs the newest block, and others write meanwhile."""

    def __init__(self, blocks, writes):
        super().__init__(blocks)
        self.writes, self.asked = writes, []

    def eligible(self, block, where):
        self.asked.append(block)
        if len(self.asked) <= self.writes:
            return None
        return super().eligible(block, where)


def test_a_filter_that_needs_a_newer_block_is_asked_again_but_not_for_ever():
    blocks = source_of([[1, 0], [2, 0]]).blocks
    patient = Restless(blocks, writes=3)
    assert ids_of(Searcher(patient, TinyScorer()).search(["1 0"], 2, where={1})) == [[1]]
    assert len(patient.asked) == 4
    with pytest.raises(BankChanging, match="'default' changed 20 times"):
        Searcher(Restless(blocks, 10**9), TinyScorer()).search(["1 0"], 2, where={1})
