"""The one place that makes model text: Memento's layout, and what must never change it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever.errors import InvalidInput
from retriever.text import (
    TEXT_FORMAT,
    case_text,
    normalise_query,
    plan_steps,
    query_text,
    record_text,
    turn_text,
)

STEPS = [{"id": 1, "description": "Find the film"}, {"id": 2, "description": "Find its director"}]
PRETTY = ["1. Find the film", "2. Find its director"]


@dataclass
class Record:
    query: str
    plan: Any = None
    kind: str = "case"
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: int | None = None
    outcome: float | None = None


def test_a_case_without_plan_is_its_question_under_case():
    assert case_text("Who made it?") == "[CASE]\nWho made it?"


def test_a_case_with_a_plan_lists_one_numbered_step_a_line():
    expected = "[CASE]\nWho made it?\n[PLAN]\n1. Find the film\n2. Find its director"
    assert case_text("Who made it?", STEPS) == expected


@pytest.mark.parametrize(
    "plan",
    [
        STEPS,
        tuple(STEPS),
        {"plan": STEPS},
        json.dumps(STEPS),
        json.dumps({"plan": STEPS}),
        "\n  " + json.dumps({"plan": STEPS}, indent=2) + "\n",
        {"plan": json.dumps(STEPS)},
        {"plan": {"plan": STEPS}},
        {"plan": STEPS, "thought": "not shown"},
    ],
)
def test_every_form_of_one_plan_gives_the_same_steps(plan):
    assert plan_steps(plan) == PRETTY


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        ("look it up", ["- look it up"]),
        ("  look\r\nit\tup \n", ["- look it up"]),
        ('"look it up"', ['- "look it up"']),  # a JSON scalar is free text as it stands
        ("42", ["- 42"]),
        ("{broken", ["- {broken"]),
        (["find it", "say it"], ["- find it", "- say it"]),
        (["find it", "", "  ", "say it"], ["- find it", "- say it"]),
        ([{"description": "no number"}], ["- no number"]),
        ([{"id": "", "description": "no number"}], ["- no number"]),
        ([{"id": None, "description": "no number"}], ["- no number"]),
        ([{"id": 0, "description": "number zero"}], ["0. number zero"]),
        ([{"id": "a\nb", "description": "two\nlines"}], ["a b. two lines"]),
        ([{"id": 1, "desc": "short key"}], ["1. short key"]),
        ([{"id": 1, "step": "other key"}], ["1. other key"]),
        ([{"id": 1, "description": "", "desc": "spare"}], ["1. spare"]),
        ([{"tool": "suche über"}], ['- {"tool": "suche über"}']),
        ({"tool": "search"}, ['- {"tool": "search"}']),
        ([1, None, True], ["- 1", "- None", "- True"]),
    ],
)
def test_plans_of_other_forms_become_steps_too(plan, steps):
    assert plan_steps(plan) == steps


@pytest.mark.parametrize("plan", [None, "", "  \n", [], (), {"plan": []}, {"plan": None}, "[]"])
def test_no_plan_leaves_no_plan_heading(plan):
    assert case_text("q", plan) == "[CASE]\nq"


@pytest.mark.parametrize("plan", [3, 1.5, True, b"steps", bytearray(b"steps"), object(), {1, 2}])
def test_what_cannot_be_a_plan_is_refused_by_value(plan):
    with pytest.raises(InvalidInput, match=f"plan must be .*{type(plan).__name__}"):
        case_text("q", plan)


def test_text_that_only_looks_like_deep_json_is_free_text():
    (step,) = plan_steps("[" * 200_000)
    assert step.startswith("- [[[")


def test_a_query_is_read_as_it_was_asked():
    assert query_text("  Who\nmade IT? ") == "  Who\nmade IT? "


@pytest.mark.parametrize(
    ("speaker", "created_at", "text"),
    [
        ("Ann", 1_700_000_000_000_000, "Ann (2023-11-14T22:13:20Z): hello"),
        ("Ann", None, "Ann: hello"),
        (None, 0, "(1970-01-01T00:00:00Z): hello"),
        (None, None, "hello"),
        ("", None, "hello"),
    ],
)
def test_a_turn_names_speaker_and_time_where_known(speaker, created_at, text):
    assert turn_text("hello", speaker, created_at) == text


def test_the_kind_of_a_record_chooses_its_layout():
    spoken = {"speaker": "Ann"}
    assert record_text(Record("hello", kind="turn", metadata=spoken)) == "Ann: hello"
    assert record_text(Record("hello", STEPS, metadata=spoken)) == case_text("hello", STEPS)
    assert record_text(Record("hello", kind="fact")) == "[CASE]\nhello"


def test_how_a_case_ended_never_enters_its_text():
    texts = {record_text(Record("q", STEPS, outcome=outcome)) for outcome in (None, 0.0, 1.0)}
    assert len(texts) == 1


def test_the_text_format_is_pinned_to_what_it_renders():
    # If this fails, the same input gives another text: change TEXT_FORMAT with it.
    rendered = case_text("Q", [{"id": 1, "description": "a"}, "b", {"x": 1}])
    assert (TEXT_FORMAT, rendered) == (
        "memento-1",
        '[CASE]\nQ\n[PLAN]\n1. a\n- b\n- {"x": 1}',
    )


step = st.one_of(
    st.text(min_size=1).filter(lambda words: words.split()),
    st.fixed_dictionaries(
        {"description": st.text(min_size=1).filter(lambda words: words.split())},
        optional={"id": st.one_of(st.integers(), st.text())},
    ),
)


@given(st.lists(step, max_size=6))
def test_a_plan_survives_the_trip_through_json(plan):
    expected = plan_steps(plan)
    assert plan_steps(json.dumps(plan)) == expected
    assert plan_steps(json.dumps({"plan": plan}, ensure_ascii=False)) == expected


@given(st.lists(step, max_size=6), st.text())
def test_every_step_is_exactly_one_line(plan, query):
    steps = plan_steps(plan)
    assert len(steps) == len(plan)
    assert all(len(one.splitlines()) == 1 for one in steps)
    head = f"[CASE]\n{query}"
    assert case_text(query, plan) == ("\n".join([head, "[PLAN]", *steps]) if plan else head)


@given(st.text())
def test_normalising_a_query_twice_changes_nothing_more(query):
    once = normalise_query(query)
    assert normalise_query(once) == once
    assert normalise_query(f" \t{query}\n") == once


def test_queries_that_differ_by_case_and_space_are_one():
    assert normalise_query("  Who\u00a0MADE\tit? ") == normalise_query("who made it?")
    assert normalise_query("STRASSE") == normalise_query("straße")
    assert normalise_query("") == normalise_query(" \n") == ""
    assert normalise_query("who made it") != normalise_query("who made it?")


def test_one_word_in_two_unicode_spellings_is_one_query() -> None:
    composed, decomposed = "Who is José?", "Who is Jose\u0301?"
    assert composed != decomposed
    assert normalise_query(composed) == normalise_query(decomposed)
