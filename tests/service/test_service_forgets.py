"""What is forgotten through the bank of a running service is gone from every answer of it."""

from __future__ import annotations

import pytest

from memory import ByIds, CaseBank, NewCase
from retriever.saved_copies import COSINE, saved_path


@pytest.fixture
def bank(live):
    return live.state.bank


def found(live, namespace, mode, query):
    answer = live.client.search(query, k=10, namespace=namespace, mode=mode)
    return [hit["case_id"] for hit in answer["results"]]


def test_a_forgotten_case_is_in_no_search_of_any_mode(live, bank):
    ids = bank.add([NewCase(f"question {i} of the harbour") for i in range(5)], namespace="gone")
    for mode in live.state.searcher.modes:
        assert sorted(found(live, "gone", mode, "question 2 of the harbour")) == ids
    live.state.searcher.close()  # saves the index, as a stop would
    receipt = bank.forget(ByIds((ids[2],)), namespace="gone")
    assert receipt.count == 1
    assert receipt.unreached == ()
    assert receipt.counts["sink:search indexes and caches"] == 0
    left = [id_ for id_ in ids if id_ != ids[2]]
    for mode in live.state.searcher.modes:
        assert sorted(found(live, "gone", mode, "question 2 of the harbour")) == left
    checked = bank.verify(
        ["question 2 of the harbour"], namespace="gone", prober=live.state.searcher
    )
    assert checked.modes == ("lexical", "exact", "cosine", "ann", "hybrid")
    assert checked.findings == ()


def test_the_receipt_names_the_artifact_whose_log_held_the_case(live, bank):
    held, other = bank.add(
        [NewCase("an old question"), NewCase("a new question")], namespace="trained"
    )
    fingerprint = live.state.scorer.fingerprint[:12]
    assert bank.forget(ByIds((other,)), namespace="trained").artifacts == ()
    receipt = bank.forget(ByIds((held,)), namespace="trained")
    assert receipt.artifacts == (f"artifact {fingerprint}",)


@pytest.mark.parametrize("mode", ["purge", "invalidate"])
def test_what_another_process_forgets_during_a_search_is_left_out_and_is_no_error(
    live, bank, monkeypatch, mode
):
    namespace = f"meanwhile {mode}"
    ids = bank.add([NewCase(f"question {i} of the harbour") for i in range(5)], namespace=namespace)
    searcher, answer = live.state.searcher, live.state.searcher.answer

    def slow(*asked, **more):
        found = answer(*asked, **more)
        gone = [hits[1].id for hits in found.hits]
        bank.forget(ByIds(tuple(gone)), namespace=namespace, mode=mode)
        forgotten.extend(gone)
        return found

    forgotten: list[int] = []
    monkeypatch.setattr(type(searcher), "answer", lambda self, *a, **b: slow(*a, **b))
    body = {"query": "question 2 of the harbour", "k": 4, "namespace": namespace}
    status, found, _ = live.ask("POST", "/v1/search", body | {"return_cases": True})
    assert status == 200
    assert forgotten[0] in ids
    shown = found["results"]
    assert [hit["rank"] for hit in shown] == [1, 2, 3]
    assert forgotten[0] not in [hit["case_id"] for hit in shown]
    assert [hit["case"]["case_id"] for hit in shown] == [hit["case_id"] for hit in shown]


def test_a_purge_by_another_process_leaves_the_services_indexes_at_its_next_search(live, bank):
    ids = bank.add([NewCase(f"lamp {i} of the pier") for i in range(5)], namespace="elsewhere")
    searcher = live.state.searcher
    for mode in ("cosine", "ann"):
        found(live, "elsewhere", mode, "lamp 2 of the pier")
    searcher.close()
    index = searcher._nearest._indexes["elsewhere"]._tier
    path = saved_path(searcher._saved._folder, COSINE, "elsewhere")
    assert path.exists()
    assert ids[2] in index.follower.contents.ids
    with CaseBank.open(bank.path) as other:  # its own view of the file, as another process has
        receipt = other.forget(ByIds((ids[2],)), namespace="elsewhere")
    assert receipt.count == 1
    assert path.exists()
    assert ids[2] not in found(live, "elsewhere", "exact", "lamp 2 of the pier")
    assert not path.exists()
    assert ids[2] not in index.follower.contents.ids
