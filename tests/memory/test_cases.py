"""What a case may be, and that it comes back as it was given."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum

import numpy as np
import pytest

from memory import Case, CaseBank, InvalidCase, InvalidInput, NewCase, microseconds, rfc3339


@pytest.fixture
def bank(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as opened:
        yield opened


def kept(bank, case):
    """What the bank gives back for a case."""
    return bank.get(bank.add([case]))[0].as_new()


@pytest.mark.parametrize(
    "plan",
    [
        None,
        "",
        "search, then read",
        '{ "plan": [ {"id": 1} ] }',
        "null",
        {"plan": [{"id": 1, "description": "search"}], "z": None, "a": 0.1},
        ["search", {"id": 2}],
        [],
        {},
        " \r\n\u2028 spaced ",
        "5",
        '["half a pair written out: \\\\ud800"]',
        '["a whole pair: \\ud83d\\ude42"]',
        '{"plan": ',
        "[" * 50,
        {"plan": None},
        {"plan": "look, then act"},
        {"plan": '["look", "act"]'},
        {"plan": {"plan": ["look"]}},
        '{"plan": "5"}',
    ],
)
def test_a_plan_comes_back_in_the_form_it_was_given(bank, plan):
    back = kept(bank, NewCase("q", plan=plan)).plan
    assert back == plan
    assert type(back) is type(plan)


def test_every_field_comes_back(bank):
    case = NewCase(
        "Wer war’s? 🙂",
        plan=["look"],
        outcome=0.1 + 0.2,
        kind="fact",
        tags=("a", "b"),
        source="mail",
        created_at=microseconds("2026-01-31T10:30:00.000001+01:00"),
        valid_from=-1,
        valid_to=microseconds("9999-12-31T23:59:59.999999Z"),
        derived_from=("turn-1", "turn-2"),
        metadata={"speaker": "Ann", "deep": [{"x": [1, 2.5, True, None, "é"]}]},
        external_id="fact-1",
    )
    stored = bank.get(bank.add([case]))[0]
    assert (stored.id, stored.namespace) == (1, "default")
    assert stored.as_new() == case
    assert NewCase.from_json(stored.to_json()) == case


def test_a_row_says_nothing_of_what_is_absent():
    assert NewCase("q").to_json() == {"query": "q", "kind": "case"}
    assert NewCase.from_json({"query": "q", "plan": None, "tags": None}) == NewCase("q")


def test_an_unknown_outcome_stays_apart_from_a_failure(bank):
    assert kept(bank, NewCase("q")).outcome is None
    assert kept(bank, NewCase("q", outcome=0)).outcome == 0.0
    assert kept(bank, NewCase("q", outcome=True)).outcome == 1.0
    assert kept(bank, NewCase("q", outcome=np.float32(0.5))).outcome == 0.5


def test_a_case_cannot_be_changed_from_outside():
    given = {"list": [1]}
    case = NewCase("q", metadata=given, tags=["b", "a", "b"])
    given["list"].append(2)
    assert case.metadata == {"list": [1]}
    assert case.tags == ("b", "a")
    with pytest.raises(AttributeError):
        case.query = "other"


def test_members_of_a_text_enumeration_are_stored_as_their_text(bank):
    class Kind(StrEnum):
        FACT = "fact"

    back = kept(
        bank, NewCase(Kind.FACT, kind=Kind.FACT, tags=[Kind.FACT], metadata={"k": Kind.FACT})
    )
    assert (back.query, back.kind, back.tags, back.metadata) == (
        "fact",
        "fact",
        ("fact",),
        {"k": "fact"},
    )
    assert type(back.query) is str


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", ""),
        ("query", " \t\n"),
        ("query", None),
        ("query", 7),
        ("query", b"bytes"),
        ("query", "null \x00 byte"),
        ("query", "half a pair \ud83d"),
        ("plan", 7),
        ("plan", b"steps"),
        ("plan", "a\x00b"),
        ("plan", {"x": float("nan")}),
        ("plan", [float("inf")]),
        ("plan", {1: "x"}),
        ("plan", {"a\ud800": 1}),
        ("plan", [2**64]),
        ("plan", nested(500)),
        ("plan", [date(2026, 1, 1)]),
        ("plan.plan", {"plan": 5}),
        ("plan.plan", {"plan": True}),
        ("plan.plan", '{"plan": 5}'),
        ("plan.plan", ' {"plan": false}\n'),
        ("plan.plan", {"plan": '{"plan": 5}'}),
        ("plan.plan.plan", {"plan": {"plan": 0.5}}),
        ("plan[0]", '["\\ud800"]'),
        ("plan.a", '{"a": "\\udfff"}'),
        ("plan", '{"\\ud800": 1}'),
        ("plan", "[" * 500 + "]" * 500),
        ("plan", "[" * 100_000),
        ("outcome", -0.001),
        ("outcome", 1.001),
        ("outcome", float("nan")),
        ("outcome", float("inf")),
        ("outcome", 10**400),
        ("outcome", "1"),
        ("outcome", 1 + 0j),
        ("kind", "dream"),
        ("kind", None),
        ("kind", ["case"]),
        ("tags", "not-a-list"),
        ("tags", [""]),
        ("tags", [None]),
        ("tags", 3),
        ("source", ""),
        ("external_id", 12),
        ("created_at", "2026-01-31"),
        ("created_at", "2026-01-31T10:00:00"),
        ("created_at", "2026-02-30T10:00:00Z"),
        ("created_at", "2026-01-31T24:00:00Z"),
        ("created_at", "2026-01-31T10:00:00+24:00"),
        ("created_at", "2026-01-31T10:00:00.1234567Z"),
        ("created_at", "0001-01-01T00:00:00+01:00"),
        ("created_at", datetime(2026, 1, 31)),
        ("created_at", True),
        ("created_at", 1.5),
        ("created_at", 2**62),
        ("derived_from", "turn-1"),
        ("metadata", [1]),
        ("metadata", {"x": np.float32(1)}),
    ],
)
def test_a_bad_value_is_refused_by_its_field(field, value):
    with pytest.raises(InvalidCase) as caught:
        NewCase(**{"query": "q", field.partition(".")[0].partition("[")[0]: value})
    assert field in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_empty_span_and_a_case_of_itself_are_refused():
    with pytest.raises(InvalidCase, match="valid_to"):
        NewCase("q", valid_from=5, valid_to=5)
    with pytest.raises(InvalidCase, match="derive from itself"):
        NewCase("q", external_id="a", derived_from=["b", "a"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q", "outcom": 1}, "did you mean outcome"),
        ({"query": "q", "zzz": 1}, "known: id, query"),
        ({"plan": "p"}, "query"),
        ({"query": None}, "query"),
        ({"query": "q", "id": 7}, "put it in quotes"),
        ({"query": "q", "created_at": 1700000000}, "RFC 3339"),
    ],
)
def test_a_row_with_a_wrong_key_or_form_is_refused(row, message):
    with pytest.raises(InvalidCase, match=message):
        NewCase.from_json(row)


@pytest.mark.parametrize(
    ("moment", "spelled"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        ("2026-01-31t10:00:00.5z", "2026-01-31T10:00:00.500000Z"),
        ("2026-01-31 10:00:00-00:30", "2026-01-31T10:30:00Z"),
        ("2026-01-31T10:00:00.120000000Z", "2026-01-31T10:00:00.120000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "2026-01-31T10:00:00Z"),
        (datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), "2026-01-31T12:00:00.000001Z"),
    ],
)
def test_a_time_is_spelled_in_utc_and_read_back(moment, spelled):
    assert rfc3339(microseconds(moment)) == spelled
    assert microseconds(spelled) == microseconds(moment)


def test_a_time_of_another_type_names_itself():
    with pytest.raises(InvalidInput, match="None is not a time"):
        microseconds(None)


def test_a_stored_case_is_copied_to_another_namespace_as_a_new_one(bank):
    stored = bank.get(bank.add([NewCase("q", tags=("t",))]))[0]
    (copied,) = bank.get(bank.add([stored], namespace="other"), namespace="other")
    assert isinstance(copied, Case)
    assert copied.id != stored.id
    assert copied.as_new() == stored.as_new()
