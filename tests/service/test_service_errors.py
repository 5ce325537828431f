"""Every wrong request gets one clear answer in one shape, and never takes the service down."""

import json
import logging
import socket

import pytest

LONE_SURROGATE = '"\\ud800"'


def check(answer, status, expected):
    got, body, _ = answer
    assert got == status, body
    assert set(body) == {"error", "error_type", "detail"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["detail"] == body["error"]["message"]
    assert expected in body["detail"]
    return body


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("/v1/search", b"", 422, "body"),
        ("/v1/search", b"{", 422, "not valid JSON"),
        ("/v1/search", b"[]", 422, "body"),
        ("/v1/search", b"null", 422, "body"),
        ("/v1/search", b"\xff{}", 422, "not UTF-8"),
        ("/v1/search", b'{"query": "a", "min_score": NaN}', 422, "NaN is not a number"),
        ("/v1/search", b'{"query": "a", "min_score": 1e999}', 422, "too large"),
        ("/v1/search", b'{"query": "a", "k": ' + b"9" * 5000 + b"}", 422, "not valid JSON"),
        ("/v1/search", b'{"query": "a", "query": "b"}', 422, "'query' is given twice"),
        ("/v1/search", b"[" * 100_000, 422, "nested too deeply"),
        ("/v1/search", b'{"query": ' + LONE_SURROGATE.encode() + b"}", 422, "body.query"),
        ("/v1/search", {"query": "a", "kk": 3}, 422, "unknown key 'kk'; did you mean 'k'?"),
        ("/v1/search", {"query": "a", "frobnicate": 3}, 422, "known here: query"),
        ("/v1/search", {}, 422, "give either query or queries"),
        ("/v1/search", {"query": "a", "queries": ["b"]}, 422, "give either query or queries"),
        ("/v1/search", {"query": " \n"}, 400, "body.query: is blank"),
        ("/v1/search", {"queries": []}, 400, "body.queries"),
        ("/v1/search", {"queries": ["a", ""]}, 400, "body.queries[1]: is blank"),
        ("/v1/search", {"query": 7}, 422, "body.query"),
        ("/v1/search", {"query": "a", "k": 0}, 422, "body.k"),
        ("/v1/search", {"query": "a", "k": "3"}, 422, "body.k"),
        ("/v1/search", {"query": "a", "k": True}, 422, "body.k"),
        ("/v1/search", {"query": "a", "k": 51}, 422, "at most 50"),
        ("/v1/search", {"query": "a", "mode": "fuzzy"}, 422, "'lexical' or 'hybrid'"),
        ("/v1/search", {"query": "a", "namespace": ""}, 422, "namespace"),
        ("/v1/search", {"queries": ["a"] * 6}, 413, "at most 5"),
        ("/v1/embeddings", {}, 422, "body.input"),
        ("/v1/embeddings", {"input": ""}, 400, "blank"),
        ("/v1/embeddings", {"input": []}, 400, "body.input"),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 422, "token ids are not accepted"),
        ("/v1/embeddings", {"input": [[1, 2]]}, 422, "token ids are not accepted"),
        ("/v1/embeddings", {"input": {"text": "a"}}, 422, "body.input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 7}, 422, "this model has 32"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 422, "body.encoding_format"),
        ("/v1/embeddings", {"input": ["a"] * 41}, 413, "at most 40"),
        ("/v1/score", {}, 422, "give either pairs, or text_1 and text_2"),
        ("/v1/score", {"text_1": "a"}, 422, "body.text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["x"]}, 422, "text_1 has 2 texts"),
        ("/v1/score", {"text_1": "a", "text_2": []}, 400, "body.text_2"),
        ("/v1/score", {"pairs": []}, 400, "body.pairs"),
        ("/v1/score", {"pairs": [{"query": "a"}]}, 422, "body.pairs[0].case"),
        ("/v1/score", {"pairs": [{"query": "a", "case": "b", "plan": 7}]}, 422, "plan must be"),
        ("/v1/score", {"pairs": [{"query": "a", "case": "b", "pln": 7}]}, 422, "mean 'plan'?"),
        ("/v1/score", {"pairs": [], "text_1": "a"}, 422, "unknown key 'text_1'"),
        ("/v1/search", {"query": "a\u0000b"}, 422, "body.query: holds NUL, which no stored"),
        ("/v1/search", {"queries": ["a", "\u0000"], "mode": "cosine"}, 422, "body.queries[1]"),
        ("/v1/search", {"query": "a\u0000b", "mode": "lexical"}, 422, "holds NUL, which no stored"),
        ("/v1/cases", {}, 422, "give either case or cases"),
        ("/v1/cases", {"cases": []}, 400, "body.cases"),
        ("/v1/cases", {"case": {}}, 422, "body.case.query"),
        ("/v1/cases", {"case": {"query": "a", "reward": 1}}, 422, "reward"),
        ("/v1/cases", {"case": {"query": "a", "created_at": "2024-01-01"}}, 422, "created_at"),
        ("/v1/cases", {"cases": [{"query": "a"}, "b"]}, 422, "body.cases[1]"),
        ("/v1/cases", {"cases": [{"query": "a"}] * 31}, 413, "at most 30"),
        ("/v1/cases", {"case": {"query": "a\u0000b"}}, 422, "query"),
    ],
)
def test_a_bad_body_is_refused_with_the_field_and_the_reason(live, path, body, status, expected):
    check(live.ask("POST", path, body), status, expected)
    assert live.client.health()["status"] == "ok"


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/", 404, "no / here"),
        ("GET", "/v1/nothing", 404, "no /v1/nothing here"),
        ("GET", "/v1/search", 405, "GET is not possible"),
        ("DELETE", "/v1/cases/1", 405, "DELETE is not possible"),
        ("GET", "/v1/cases/999999", 404, "no case with id 999999"),
        ("GET", "/v1/cases/abc", 422, "path.case_id"),
        ("GET", "/v1/cases/0", 422, "path.case_id"),
        ("GET", f"/v1/cases/{2**70}", 422, "path.case_id"),
        ("GET", "/v1/cases?limit=0", 422, "query.limit"),
        ("GET", "/v1/cases?limit=31", 413, "at most 30"),
        ("GET", "/v1/cases?after=-1", 422, "query.after"),
        ("GET", "/v1/cases?namespace=", 422, "namespace"),
    ],
)
def test_a_bad_address_is_refused_in_the_same_shape(live, method, path, status, expected):
    check(live.ask(method, path), status, expected)


@pytest.mark.parametrize(
    ("plan", "param"),
    [
        (5, "plan"),
        ({"plan": 5}, "plan.plan"),
        ('{"plan": true}', "plan.plan"),
        ('["\\ud800"]', "plan[0]"),
    ],
)
def test_a_plan_without_readable_steps_is_refused_by_its_field(live, plan, param):
    answer = live.ask("POST", "/v1/cases", {"case": {"query": "a", "plan": plan}})
    body = check(answer, 422, f"body.case.{param} = ")
    assert body["error"]["param"] == f"body.case.{param}"
    cases = [{"query": "a"}, {"query": "a", "plan": plan}]
    body = check(live.ask("POST", "/v1/cases", {"cases": cases, "namespace": "plans"}), 422, "plan")
    assert body["error"]["param"] == f"body.cases[1].{param}"
    assert live.client.search("a", namespace="plans")["results"] == []


def test_a_case_of_another_namespace_is_not_there(live):
    (mine,) = live.client.add_cases([{"query": "a secret"}], namespace="mine")
    check(live.ask("GET", f"/v1/cases/{mine}?namespace=yours"), 404, "'yours' has no case")


def test_an_external_id_given_twice_is_a_conflict(live):
    live.client.add_cases([{"query": "a", "id": "one"}], namespace="twice")
    body = {"case": {"query": "b", "id": "one"}, "namespace": "twice"}
    answer = check(live.ask("POST", "/v1/cases", body), 409, "one")
    assert answer["error"]["code"] == "already_stored"


def test_a_body_that_does_not_say_it_is_json_is_refused(live):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = live.ask("POST", "/v1/search", b'{"query": "a"}', **{"Content-Type": kind})
        check(answer, 415, "Content-Type: application/json")
    status, *_ = live.ask(
        "POST",
        "/v1/search",
        b'{"query": "a"}',
        **{"Content-Type": "application/json; charset=utf-8"},
    )
    assert status == 200


def test_a_body_over_the_limit_is_refused_declared_or_not(live):
    host, port = live.url.removeprefix("http://").split(":")
    start = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for head, body in (
        (b"Content-Length: 9999999\r\n\r\n", b""),
        (b"Transfer-Encoding: chunked\r\n\r\n", chunk * 4),
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(start + head + body)
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
        head_part, _, content = answer.partition(b"\r\n\r\n")
        assert b" 413 " in head_part.splitlines()[0]
        check((413, json.loads(content), None), 413, "over 200000 bytes")


def test_the_client_reads_the_refusal_of_a_body_that_is_too_large(live):
    from service.client import ClientError, Refused

    with pytest.raises(ClientError) as refused:
        live.client.embed(["word " * 100_000])
    # A server that hangs up early may cut its own answer off; what comes is the reason.
    if isinstance(refused.value, Refused):
        assert refused.value.status == 413


def test_no_text_reaches_the_log_even_when_something_unexpected_breaks(live, caplog, monkeypatch):
    def explode(*_args, **_more):
        raise RuntimeError("while reading a very private question")

    monkeypatch.setattr(live.state.searcher, "answer", explode)
    with caplog.at_level(logging.DEBUG):
        answer = live.ask("POST", "/v1/search", {"query": "a very private question"})
    check(answer, 500, "the server failed")
    assert "private" not in json.dumps(answer[1])
    assert "RuntimeError" in caplog.text
    assert "test_service_errors.py" in caplog.text  # the place
    assert "private" not in caplog.text


def test_no_text_reaches_the_log_of_ordinary_requests(live, caplog):
    with caplog.at_level(logging.DEBUG):
        live.client.add_cases([{"query": "whisper one"}], namespace="log")
        live.client.search("whisper two", namespace="log", return_cases=True)
        live.client.search("whisper two", namespace="log", mode="cosine")
        live.client.score([("whisper three", "whisper four")])
        live.ask("POST", "/v1/search", {"query": "whisper", "whisper": 1})
        live.ask("POST", "/v1/cases", {"case": {"query": "whisper", "outcome": "whisper"}})
    assert "whisper" not in caplog.text
