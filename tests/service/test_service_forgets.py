"""What is forgotten through the bank of a running service is gone from every answer of it."""

from __future__ import annotations

import pytest

from memory import ByIds, NewCase


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
