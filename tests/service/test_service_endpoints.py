"""The five endpoints over real HTTP, against the scorer and the bank they stand for."""

import base64
import struct
import threading

import numpy as np
import pytest

from retriever.types import Pair
from service.client import Refused

CASES = [
    {"query": "what is the capital city of the country", "plan": ["search the city"], "outcome": 1},
    {"query": "who is the director of the film", "plan": "check the film", "outcome": 0.0},
    {"query": "how many people live in the city", "id": "third", "tags": ["a"], "kind": "fact"},
]


def test_health_names_what_is_served(live):
    health = live.client.health()
    assert health["status"] == "ok"
    assert health["model"]["fingerprint"] == live.state.scorer.fingerprint
    assert health["model"]["provider"] == "CPUExecutionProvider"
    assert health["modes"] == ["exact", "cosine", "ann", "lexical", "hybrid"]


def test_documentation_lists_every_endpoint(live):
    status, schema, _ = live.ask("GET", "/openapi.json")
    assert status == 200
    paths = set(schema["paths"])
    assert paths == {
        "/health",
        "/v1/search",
        "/v1/cases",
        "/v1/cases/{case_id}",
        "/v1/embeddings",
        "/v1/score",
    }


def test_embeddings_equal_the_scorers_in_both_encodings(live):
    texts = ["a song", "the writer of the album", "ünïcode 漢字", "a song"]
    expected = live.state.scorer.embed(texts)
    _, plain, _ = live.ask("POST", "/v1/embeddings", {"input": texts, "model": "any", "user": "x"})
    assert [one["index"] for one in plain["data"]] == [0, 1, 2, 3]
    np.testing.assert_allclose([one["embedding"] for one in plain["data"]], expected, atol=1e-5)
    assert plain["object"] == "list"
    assert plain["usage"]["prompt_tokens"] == sum(live.state.scorer.count_tokens(texts))
    body = {"input": texts, "encoding_format": "base64"}
    _, packed, _ = live.ask("POST", "/v1/embeddings", body)
    for one, vector in zip(packed["data"], expected, strict=True):
        raw = base64.b64decode(one["embedding"])
        np.testing.assert_allclose(struct.unpack(f"<{len(raw) // 4}f", raw), vector, atol=1e-5)
    np.testing.assert_allclose(live.client.embed(texts), expected, atol=1e-5)


def test_one_text_is_embedded_like_a_list_of_one(live):
    status, answer, _ = live.ask("POST", "/v1/embeddings", {"input": "a song"})
    assert status == 200
    assert len(answer["data"]) == 1


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("a", "x", [("a", "x")]),
        ("a", ["x", "y"], [("a", "x"), ("a", "y")]),
        (["a"], ["x", "y"], [("a", "x"), ("a", "y")]),
        (["a", "b"], ["x", "y"], [("a", "x"), ("b", "y")]),
    ],
)
def test_scores_of_two_texts_take_one_against_many_and_many_against_many(
    live, first, second, pairs
):
    status, answer, _ = live.ask(
        "POST", "/v1/score", {"text_1": first, "text_2": second, "model": "m", "priority": 3}
    )
    assert status == 200
    expected = live.state.scorer.score([Pair(*pair) for pair in pairs])
    assert [one["index"] for one in answer["data"]] == list(range(len(pairs)))
    assert {one["object"] for one in answer["data"]} == {"score"}
    np.testing.assert_allclose([one["score"] for one in answer["data"]], expected, atol=1e-5)
    assert answer["usage"]["total_tokens"] > 0


def test_pairs_are_scored_with_their_plans(live):
    pairs = [("a city", "a country", ["look", "count"]), ("a city", "a country")]
    with_plan, without = live.client.score(pairs)
    expected = live.state.scorer.score([Pair(*pair) for pair in pairs])
    assert [with_plan, without] == pytest.approx(expected.tolist(), abs=1e-5)
    assert with_plan != without


def test_a_case_added_over_http_is_found_by_the_next_search_in_every_mode(live):
    client = live.client
    first = client.add_cases(CASES, namespace="added")
    for mode in ("exact", "cosine", "ann", "lexical", "hybrid"):
        before = client.search("what is the name of the band", 10, namespace="added", mode=mode)
        (new,) = client.add_cases([{"query": "what is the name of the band"}], namespace="added")
        after = client.search("what is the name of the band", 10, namespace="added", mode=mode)
        assert new not in [hit["case_id"] for hit in before["results"]]
        assert new in [hit["case_id"] for hit in after["results"]]
        assert after["bank_version"] > before["bank_version"]
        if mode == "cosine":
            # The exact words are nearest; the one added earlier ties and has the lower id.
            assert after["results"][0]["score"] == pytest.approx(1.0, abs=1e-5)
            assert after["results"][0]["case_id"] == max(first) + 1
            assert after["results"][0]["probability"] is None
            assert after["results"][0]["logit"] is None
        if mode == "lexical":
            assert all(hit["probability"] is None for hit in after["results"])
    assert client.search("band", namespace="elsewhere")["results"] == []


def test_search_scores_equal_the_scores_of_the_pairs(live):
    client = live.client
    ids = client.add_cases(CASES, namespace="scores")
    query = "which city is the capital"
    found = client.search(query, 3, namespace="scores", return_cases=True)
    pairs = [(query, case["query"], case.get("plan")) for case in CASES]
    by_id = dict(zip(ids, client.score(pairs), strict=True))
    results = found["results"]
    assert [hit["rank"] for hit in results] == [1, 2, 3]
    for hit in results:
        assert hit["score"] == hit["probability"] == pytest.approx(by_id[hit["case_id"]], abs=1e-5)
        assert hit["case"]["query"] == CASES[ids.index(hit["case_id"])]["query"]
    assert results == sorted(results, key=lambda hit: (-hit["logit"], hit["case_id"]))
    assert found["model_fingerprint"] == live.state.scorer.fingerprint
    assert client.search(query, 1, namespace="scores")["results"][0]["case"] is None


def test_several_queries_give_one_list_each_as_alone(live):
    client = live.client
    client.add_cases(CASES, namespace="several")
    queries = ["a city", "a film", "a city"]
    together = client.search(queries, 2, namespace="several")["results"]
    alone = [client.search(query, 2, namespace="several")["results"] for query in queries]
    assert [[hit["case_id"] for hit in hits] for hits in together] == [
        [hit["case_id"] for hit in hits] for hits in alone
    ]


def test_min_score_drops_what_scores_less(live):
    client = live.client
    client.add_cases(CASES, namespace="min")
    results = client.search("a city", 3, namespace="min")["results"]
    limit = results[1]["score"]
    kept = client.search("a city", 3, namespace="min", min_score=limit)["results"]
    assert [hit["case_id"] for hit in kept] == [hit["case_id"] for hit in results[:2]]
    assert client.search("a city", 3, namespace="min", min_score=1.1)["results"] == []


def test_cases_come_back_as_they_were_given_and_page_by_id(live):
    client = live.client
    ids = client.add_cases(CASES, namespace="pages")
    assert client.get_case(ids[2], namespace="pages") == {
        "case_id": ids[2],
        "namespace": "pages",
        **CASES[2],
    }
    first = client.list_cases(namespace="pages", limit=2)
    assert [case["case_id"] for case in first["data"]] == ids[:2]
    assert first["has_more"]
    rest = client.list_cases(namespace="pages", after=first["next"], limit=2)
    assert [case["case_id"] for case in rest["data"]] == ids[2:]
    assert (rest["has_more"], rest["next"]) == (False, None)
    assert client.list_cases(namespace="nobody")["data"] == []


def test_one_case_may_be_added_alone(live):
    status, answer, _ = live.ask("POST", "/v1/cases", {"case": CASES[0], "namespace": "alone"})
    assert status == 201
    assert len(answer["case_ids"]) == 1


def test_a_bad_case_among_good_ones_adds_none(live):
    rows = [CASES[0], {"query": "a song", "outcome": 7}]
    with pytest.raises(Refused, match="outcome = 7") as refused:
        live.client.add_cases(rows, namespace="none")
    assert refused.value.status == 422
    assert refused.value.param == "body.cases[1].outcome"
    assert live.client.list_cases(namespace="none")["data"] == []


def test_many_clients_at_once_lose_nothing(live):
    client, failures = live.client, []

    def work(number):
        try:
            for turn in range(3):
                (new,) = client.add_cases([{"query": f"song {number} {turn}"}], namespace="crowd")
                hits = client.search(f"song {number} {turn}", 50, namespace="crowd")["results"]
                assert new in [hit["case_id"] for hit in hits]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert live.state.bank.count("crowd") == 18
