"""The language model may only choose among what it was shown; a bad answer changes nothing."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from memory import InvalidInput
from memory.forgetting.selectors import ByIds, ByStrings
from memory.requests import (
    Ambiguous,
    ChatEndpoint,
    Event,
    ForgetPlan,
    InventedTarget,
    Kind,
    LLMResolver,
    ResolverFailed,
)
from tests.requests.talk import KEY, asks, told

VIEW = told("My cell is 415-555-0186.", "I like tea.", "Call 415-555-0186.")


def resolver(answer: object) -> LLMResolver:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return LLMResolver(lambda _messages: text, key=KEY)


def resolve(answer: object, text: str = "Forget my number, please.") -> object:
    return resolver(answer).resolve(asks(text), VIEW)


def test_chosen_ids_and_strings_become_a_plan():
    plan = resolve({"request": True, "kind": "F1", "ids": [0], "strings": ["415-555-0186"]})
    assert isinstance(plan, ForgetPlan)
    assert plan.kind is Kind.FACT
    assert plan.ids == (0, 2)
    assert plan.selectors == (ByIds((0, 2)), ByStrings(("415-555-0186",)))


def test_invented_ids_and_strings_are_dropped_with_a_warning_and_the_rest_applies():
    answer = {"request": True, "kind": "F1", "ids": [0, 12], "strings": ["999-999-9999"]}
    with pytest.warns(InventedTarget):
        plan = resolve(answer)
    assert isinstance(plan, ForgetPlan)
    assert plan.ids == (0,)
    assert plan.strings == ()


def test_no_request_and_an_ambiguous_one():
    assert resolve({"request": False}) is None
    answer = resolve({"request": True, "kind": "F1", "ids": [0, 1], "ambiguous": True})
    assert answer == Ambiguous((0, 1), "the model could not decide between these", ("llm",))


def test_a_span_a_condition_and_what_else_was_told():
    plan = resolve(
        {
            "request": True,
            "kind": "F5",
            "span": {"from": "2026-03-01T00:00:00Z", "to": None},
            "due": {"event": "the audit is done"},
            "replacement": "Tea is at five.",
        }
    )
    assert isinstance(plan, ForgetPlan)
    assert isinstance(plan.due, Event)
    assert plan.due.met_by("The audit is done.", KEY)
    assert plan.replacement is not None
    assert plan.replacement.query == "Tea is at five."


def test_a_replacement_that_repeats_the_old_value_is_not_stored():
    plan = resolve(
        {
            "request": True,
            "kind": "F6",
            "strings": ["415-555-0186"],
            "replacement": "It was 415-555-0186 before.",
        }
    )
    assert isinstance(plan, ForgetPlan)
    assert plan.replacement is None


@pytest.mark.parametrize(
    "answer",
    [
        "I think you mean record 0.",
        "",
        "[1, 2]",
        "null",
        {"kind": "F1"},
        {"request": "yes"},
        {"request": True, "kind": "F9"},
        {"request": True, "kind": "F1", "ids": ["0"]},
        {"request": True, "kind": "F1", "ids": [True]},
        {"request": True, "kind": "F1", "ids": 0},
        {"request": True, "kind": "F1", "strings": [""]},
        {"request": True, "kind": "F1", "due": "soon"},
        {"request": True, "kind": "F1", "due": "2026-03-01T00:00:00"},
        {"request": True, "kind": "F5", "span": {"from": None, "to": None}},
        {"request": True, "kind": "F1", "replacement": 5},
        {"request": True, "kind": "F1", "ambiguous": "no"},
    ],
)
def test_an_answer_of_another_form_is_an_error(answer):
    with pytest.raises(ResolverFailed):
        resolve(answer)


def test_a_code_fence_around_the_answer_is_taken_off():
    assert resolve('```json\n{"request": false}\n```') is None


def test_turns_without_a_word_of_forgetting_cost_no_call():
    def never(_messages: object) -> str:
        raise RuntimeError("asked")

    assert LLMResolver(never).resolve(asks("My cat is called Rex."), VIEW) is None
    with pytest.raises(RuntimeError, match="asked"):
        LLMResolver(never, every_turn=True).resolve(asks("My cat is called Rex."), VIEW)


def test_the_model_sees_no_more_records_than_allowed_and_every_id_it_may_name():
    seen: list[dict[str, str]] = []

    def chat(messages: list[dict[str, str]]) -> str:
        seen.extend(messages)
        return '{"request": false}'

    view = told(*[f"Number {i} is my phone." for i in range(100)])
    LLMResolver(chat, shown=5).resolve(asks("Forget my phone number."), view)
    shown = json.loads(seen[1]["content"])
    assert len(shown["records"]) == 5
    assert shown["turn"]["text"] == "Forget my phone number."
    with pytest.raises(InvalidInput, match="shown must be at least 1"):
        LLMResolver(chat, shown=0)


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, object]], list[bytes]]]:
    """A local endpoint: its address, the bodies it got, and the answers it gives in turn."""
    got: list[dict[str, object]] = []
    answers: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            got.append({"path": self.path, "key": self.headers["Authorization"],
                        **json.loads(self.rfile.read(length))})  # fmt: skip
            body = answers.pop(0)
            self.send_response(200 if body else 500)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1", got, answers
        server.shutdown()
        thread.join()


def test_an_endpoint_is_called_as_the_openai_clients_do(endpoint):
    url, got, answers = endpoint
    content = json.dumps({"request": True, "kind": "F1", "ids": [0]})
    answers.append(json.dumps({"choices": [{"message": {"content": content}}]}).encode())
    plan = LLMResolver(ChatEndpoint(url, "tiny", "secret")).resolve(asks("Forget my cell."), VIEW)
    assert isinstance(plan, ForgetPlan)
    assert got[0]["path"] == "/v1/chat/completions"
    assert got[0]["key"] == "Bearer secret"
    assert got[0]["model"] == "tiny"
    assert got[0]["temperature"] == 0


NO_TEXT = b'{"choices": [{"message": {"content": null}}]}'


@pytest.mark.parametrize("body", [b"", b"not json", b"{}", b'{"choices": []}', NO_TEXT])
def test_a_failed_endpoint_is_a_clear_error(endpoint, body):
    url, _, answers = endpoint
    answers.append(body)
    with pytest.raises(ResolverFailed):
        ChatEndpoint(url, "tiny")([{"role": "user", "content": "hi"}])


def test_nobody_listening_is_a_clear_error_and_a_wrong_address_is_refused():
    with pytest.raises(ResolverFailed, match="could not be asked"):
        ChatEndpoint("http://127.0.0.1:9", "tiny", timeout_s=2)([])
    with pytest.raises(InvalidInput, match="begin it with http"):
        ChatEndpoint("file:///etc", "tiny")
