"""Search over a hand-made bank: order, calibration, thresholds, refusals, kept indexes."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from retriever.embedders import CaseProjector, QueryEmbedder
from retriever.errors import IndexUnavailable, InvalidInput, NonFiniteScore
from retriever.head import Head
from retriever.saved_index import STAMP_FILE
from retriever.searcher import Searcher
from retriever.types import Calibration
from tests.search.search_blocks import (
    TinyBlock,
    TinyEncoder,
    TinyLexical,
    TinyScorer,
    TinySource,
    block_of,
)


def bank(vectors, **more):
    block = block_of(vectors, **more)
    return TinySource({block.namespace: replace(block, projections=block.embeddings)})


def ids(found):
    return [[hit.id for hit in hits] for hits in found]


def test_exact_search_ranks_by_the_formula_and_calibrates():
    searcher = Searcher(
        bank([[0, 0], [2, 1], [1, -5]]),
        TinyScorer(head=Head(np.ones(2, np.float32), -1.0), calibration=Calibration(a=2.0, b=0.5)),
    )
    ((first, second, third),) = searcher.search(["1 0"], 3)
    # relu((2,1)+(1,0)) = 3+1; relu((1,-5)+(1,0)) = 2+0; relu((0,0)+(1,0)) = 1+0; each minus 1
    assert [(hit.id, hit.logit, hit.rank) for hit in (first, second, third)] == [
        (2, 3.0, 1),
        (3, 1.0, 2),
        (1, 0.0, 3),
    ]
    assert first.probability == first.score == pytest.approx(1 / (1 + np.exp(-6.5)))
    assert third.score == pytest.approx(1 / (1 + np.exp(-0.5)))


def test_saturated_probabilities_keep_the_order_of_their_logits():
    searcher = Searcher(bank([[100, 0], [300, 0], [200, 0]]), TinyScorer())
    (hits,) = searcher.search(["0 0"], 3)
    assert {hit.score for hit in hits} == {1.0}
    assert [hit.id for hit in hits] == [2, 3, 1]


def test_a_calibration_that_falls_with_the_logit_turns_the_order_round():
    searcher = Searcher(bank([[1, 0], [3, 0]]), TinyScorer(calibration=Calibration(a=-1.0, b=0.0)))
    (hits,) = searcher.search(["0 0"], 2)
    assert [hit.id for hit in hits] == [1, 2]
    assert hits[0].score > hits[1].score


def test_a_calibration_without_numbers_is_refused_at_once():
    with pytest.raises(NonFiniteScore, match="nan"):
        Searcher(bank([[1, 0]]), TinyScorer(calibration=Calibration(a=float("nan"))))


def test_cosine_search_compares_queries_and_gives_no_probability():
    searcher = Searcher(bank([[1, 0], [0, 1], [3, 3]]), TinyScorer(), TinyEncoder())
    ((first, *_),) = searcher.search(["2 2"], 3, mode="cosine")
    assert first.id == 3
    assert first.score == pytest.approx(1.0)
    assert first.probability is None
    assert first.logit is None


@pytest.mark.parametrize("mode", ["exact", "cosine"])
def test_ties_go_to_the_lower_id_in_both_modes(mode):
    searcher = Searcher(
        bank([[1, 1]] * 4, ids=[3, 8, 10, 20], live=[True, False, True, True]),
        TinyScorer(),
        TinyEncoder(),
    )
    assert ids(searcher.search(["1 0", "0 1"], 2, mode=mode)) == [[3, 10], [3, 10]]


@pytest.mark.parametrize("mode", ["exact", "cosine"])
def test_an_empty_namespace_gives_no_hits_and_a_small_one_all_it_has(mode):
    searcher = Searcher(bank([[1, 1], [0, 1]]), TinyScorer(), TinyEncoder())
    assert searcher.search(["1 0", "2 0"], 5, namespace="elsewhere", mode=mode) == [[], []]
    assert len(searcher.search(["1 0"], 500, mode=mode)[0]) == 2


def test_min_score_applies_to_the_score_of_the_mode():
    searcher = Searcher(
        bank([[4, 0], [-1, 1]]), TinyScorer(head=Head(np.ones(2, np.float32), -2.0)), TinyEncoder()
    )
    assert ids(searcher.search(["1 0"], 5, min_score=0.5)) == [[1]]
    assert ids(searcher.search(["1 0"], 5, mode="cosine", min_score=0.99)) == [[1]]
    assert ids(searcher.search(["1 0"], 5, min_score=1.1)) == [[]]


@pytest.mark.parametrize("mode", ["exact", "cosine"])
@pytest.mark.parametrize("as_of", [-(10**15), 0, 9, 10, 19, 20, 21, np.int64(10)])
def test_as_of_finds_what_was_valid_then_with_unknown_ends_open(mode, as_of):
    spans = [(None, None), (10, 20), (None, 10), (20, None), (0, 1), (-50, 50)]
    searcher = Searcher(
        bank([[1, 1]] * 6, valid=spans, live=[True] * 5 + [False]), TinyScorer(), TinyEncoder()
    )
    expected = [
        number
        for number, (start, end) in enumerate(spans[:5], start=1)
        if (start is None or start <= as_of) and (end is None or as_of < end)
    ]
    assert ids(searcher.search(["1 0"], 9, mode=mode, as_of=as_of)) == [expected]
    assert ids(searcher.answer(["1 0"], 1, mode=mode, as_of=as_of).hits) == [expected[:1]]
    assert ids(searcher.search(["1 0"], 9, mode=mode)) == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"as_of": 1.5}, "as_of must be microseconds"),
        ({"as_of": True}, "as_of must be"),
        ({"as_of": "2024"}, "as_of must be"),
        ({"as_of": 2**63}, "as_of must be"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": True}, "k must be"),
        ({"k": 2.0}, "k must be"),
        ({"queries": []}, "queries is empty"),
        ({"queries": "1 0"}, "must be a list"),
        ({"queries": ["1 0", " \n"]}, r"queries\[1\] is blank"),
        ({"queries": ["1 0", None]}, r"queries\[1\] must be text, got NoneType"),
        ({"mode": "fuzzy"}, "mode must be one of exact, cosine, ann, lexical, hybrid, got"),
        ({"min_score": float("nan")}, "min_score must be a finite number"),
        ({"min_score": True}, "min_score must be"),
        ({"min_score": "x"}, "min_score must be a finite number or None, got 'x'"),
        ({"min_score": 10**400}, r"min_score must be .* got 1000.*\.\.\."),
        ({"min_score": 10**5000}, "min_score must be .* too long to print"),
        ({"queries": None}, "queries must be a list of texts, got NoneType"),
        ({"exploration": "softmax"}, r"exploration = 'softmax': give Exploration\("),
        ({"mmr": 0.5}, r"mmr = 0.5: give Mmr\(weight=0.7\), or None"),
        ({"quota": (1, 2)}, r"quota = \(1, 2\): give Quota"),
        ({"mode": "hybrid", "fusion": "rrf"}, r"fusion = 'rrf': give Fusion"),
    ],
)
def test_a_bad_call_says_which_value_is_wrong(change, message):
    searcher = Searcher(bank([[1, 1]]), TinyScorer(), TinyEncoder())
    with pytest.raises(InvalidInput, match=message):
        searcher.search(**({"queries": ["1 0"], "k": 1} | change))


def test_a_mode_whose_vectors_are_missing_names_the_remedy():
    source = bank([[1, 1]])
    with pytest.raises(IndexUnavailable, match="cosine_encoder=FOLDER"):
        Searcher(source, TinyScorer()).search(["1 0"], 1, mode="cosine")
    assert Searcher(source, TinyScorer()).modes == ("exact", "ann")
    with pytest.raises(IndexUnavailable, match=r"CaseProjector\(scorer\)"):
        Searcher(source, TinyScorer(fingerprint="another")).search(["1 0"], 1)
    with pytest.raises(IndexUnavailable, match=r"QueryEmbedder\(encoder\)"):
        Searcher(source, TinyScorer(), TinyEncoder("another")).search(["1 0"], 1, mode="cosine")
    bare = TinySource({"default": TinyBlock(np.arange(1), np.ones(1, bool))})
    with pytest.raises(IndexUnavailable, match="CaseProjector"):
        Searcher(bare, TinyScorer()).search(["1 0"], 1)
    with pytest.raises(IndexUnavailable, match="QueryEmbedder"):
        Searcher(bare, TinyScorer(), TinyEncoder()).search(["1 0"], 1, mode="cosine")


def test_a_broken_projection_is_refused_with_the_case_named():
    with pytest.raises(NonFiniteScore, match="case 2"):
        Searcher(bank([[1, 1], [np.nan, 0]]), TinyScorer()).search(["1 0"], 1)


def test_an_added_case_is_found_by_the_next_search_and_the_version_is_told():
    source = bank([[1, 0]])
    searcher = Searcher(source, TinyScorer(), TinyEncoder())
    for mode in ("exact", "cosine"):
        assert ids(searcher.search(["0 1"], 1, mode=mode)) == [[1]]
    source.blocks.update(bank([[1, 0], [0, 9]], version=2).blocks)
    for mode in ("exact", "cosine"):
        answer = searcher.answer(["0 1"], 1, mode=mode)
        assert ids(answer.hits) == [[2]]
        assert answer.version == 2


def test_the_cosine_index_is_kept_between_runs_and_grows_in_place(tmp_path):
    source = bank(np.eye(2)[[0, 1] * 20], namespace="a/../b ü")
    first = Searcher(source, TinyScorer(), TinyEncoder(), index_dir=tmp_path)
    first.search(["0 1"], 1, namespace="a/../b ü", mode="cosine")
    (folder,) = tmp_path.iterdir()
    written = (folder / STAMP_FILE).stat().st_mtime_ns
    second = Searcher(source, TinyScorer(), TinyEncoder(), index_dir=tmp_path)
    assert ids(second.search(["0 1"], 1, namespace="a/../b ü", mode="cosine")) == [[2]]
    second.close()
    assert (folder / STAMP_FILE).stat().st_mtime_ns == written  # nothing new, nothing written
    grown = bank(np.vstack([np.eye(2)[[0, 1] * 20], [[-1, -1]]]), namespace="a/../b ü", version=2)
    source.blocks.update(grown.blocks)
    assert ids(second.search(["-1 -1"], 1, namespace="a/../b ü", mode="cosine")) == [[41]]
    assert (folder / STAMP_FILE).stat().st_mtime_ns == written  # too little for now
    second.close()
    assert (folder / STAMP_FILE).stat().st_mtime_ns > written


def purged(block):
    """The block after its last case was purged."""
    live = np.arange(len(block.ids)) < len(block.ids) - 1
    return replace(block, live=live, version=block.version + 1)


def test_a_dropped_index_is_gone_from_memory_and_disk_and_search_goes_on(tmp_path):
    source = bank(np.eye(2)[[0, 1] * 20])
    searcher = Searcher(source, TinyScorer(), TinyEncoder(), index_dir=tmp_path)
    searcher.search(["0 1"], 1, mode="cosine")
    before = source.blocks["default"]
    (folder,) = tmp_path.iterdir()
    (tmp_path / f".{folder.name}.left-by-a-crash").mkdir()
    (tmp_path / "of-somebody-else").mkdir()
    source.blocks["default"] = purged(before)
    searcher.drop("default")
    assert [path.name for path in tmp_path.iterdir()] == ["of-somebody-else"]
    # A search that began before the purge: answered, but not kept.
    source.blocks["default"] = before
    assert ids(searcher.search(["0 1"], 20, mode="cosine"))[0][-1] == 40
    searcher.close()
    assert [path.name for path in tmp_path.iterdir()] == ["of-somebody-else"]
    source.blocks["default"] = purged(before)
    assert ids(searcher.search(["0 1"], 20, mode="cosine"))[0][-1] == 1
    assert len(list(tmp_path.iterdir())) == 2, "what is left is kept again"
    searcher.drop("never searched")
    Searcher(source, TinyScorer(), index_dir=tmp_path).drop("default")
    assert [path.name for path in tmp_path.iterdir()] == ["of-somebody-else"]


def test_an_index_saved_while_another_process_purged_is_deleted_again(tmp_path):
    class Purging(TinySource):
        def block(self, namespace):
            asked.append(namespace)
            return before if len(asked) == 1 else purged(before)

    asked = []
    before = bank(np.eye(2)[[0, 1] * 20]).blocks["default"]
    searcher = Searcher(Purging(), TinyScorer(), TinyEncoder(), index_dir=tmp_path)
    assert ids(searcher.search(["0 1"], 1, mode="cosine")) == [[2]]
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_cannot_be_checked_after_saving_is_not_kept(tmp_path, caplog):
    class Failing(TinySource):
        def block(self, namespace):
            asked.append(namespace)
            if len(asked) > 1:
                raise OSError("gone")
            return super().block(namespace)

    asked = []
    searcher = Searcher(
        Failing(bank([[1, 0]]).blocks), TinyScorer(), TinyEncoder(), index_dir=tmp_path
    )
    assert ids(searcher.search(["1 0"], 1, mode="cosine")) == [[1]]
    assert "could not be checked" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_saved_index_that_cannot_be_deleted_is_named(tmp_path, monkeypatch):
    source = bank([[1, 0]])
    searcher = Searcher(source, TinyScorer(), TinyEncoder(), index_dir=tmp_path)
    searcher.search(["1 0"], 1, mode="cosine")
    (folder,) = tmp_path.iterdir()

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(IndexUnavailable, match=f"{folder.name} cannot be deleted: Permission"):
        searcher.drop("default")
    assert ids(searcher.search(["1 0"], 1, mode="cosine")) == [[1]]


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    searcher = Searcher(bank([[1, 0]]), TinyScorer(), TinyEncoder(), index_dir=blocked / "index")
    assert ids(searcher.search(["1 0"], 1, mode="cosine")) == [[1]]
    assert "could not be saved" in caplog.text


def test_many_threads_searching_get_the_answers_of_one():
    rng = np.random.default_rng(0)
    searcher = Searcher(bank(rng.standard_normal((300, 2))), TinyScorer(), TinyEncoder())
    queries = [f"{x} {y}" for x, y in rng.standard_normal((12, 2))]
    expected = {
        mode: [searcher.search([query], 3, mode=mode)[0] for query in queries]
        for mode in ("exact", "cosine")
    }
    wrong = []

    def work(mode):
        for query, hits in zip(queries, expected[mode], strict=True):
            if searcher.search([query], 3, mode=mode)[0] != hits:
                wrong.append(query)

    threads = [threading.Thread(target=work, args=(mode,)) for mode in ("exact", "cosine") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


@pytest.mark.parametrize("kind", ["case", "turn"])
def test_the_two_vectors_of_a_case_are_of_its_whole_text_and_of_its_query(kind):
    class Record:
        query, plan, metadata, created_at = "why?", ["look"], {"speaker": "Ann"}, None

    Record.kind = kind

    class Projector:
        fingerprint, head = "model", Head(np.ones(3, np.float32), 0.0)

        def project_texts(self, texts):
            return np.array([[len(text)] * 3 for text in texts], np.float32)

    class Encoder(TinyEncoder):
        dim = 2

    projector, embedder = CaseProjector(Projector()), QueryEmbedder(Encoder())
    whole = {"case": "[CASE]\nwhy?\n[PLAN]\n- look", "turn": "Ann: why?"}[kind]
    assert projector.text(Record()) == whole
    assert projector.embed([whole]).shape == (1, projector.dim)
    assert embedder.text(Record()) == "why?"
    assert embedder.embed(["1 0"]).shape == (1, embedder.dim)
    assert projector.key.startswith("model:")
    assert embedder.key == "cos:query"
    turns = QueryEmbedder(Encoder(), whole_turns=True)
    assert turns.text(Record()) == ("Ann: why?" if kind == "turn" else "why?")
    assert turns.key != embedder.key


def test_cosine_search_takes_both_ways_of_embedding_turns():
    key = QueryEmbedder(type("Encoder", (TinyEncoder,), {"dim": 2})(), whole_turns=True).key
    searcher = Searcher(bank([[1, 0], [0, 1]], embeddings_key=key), None, TinyEncoder())
    assert ids(searcher.search(["0 1"], 1, mode="cosine")) == [[2]]


@pytest.mark.parametrize("mode", ["exact", "cosine", "ann", "lexical", "hybrid"])
@pytest.mark.parametrize("word", ["a\x00b", "a \ud800"])
def test_what_no_stored_text_can_hold_is_refused_in_every_mode(mode, word):
    searcher = Searcher(bank([[1, 1]]), TinyScorer(), TinyEncoder(), lexical=TinyLexical({}))
    with pytest.raises(InvalidInput, match=r"queries\[1\] holds .* which no stored text has"):
        searcher.search(["1 0", word], 1, mode=mode)
