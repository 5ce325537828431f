"""When a request takes effect, and which span it names."""

from __future__ import annotations

import pytest

from memory import microseconds, rfc3339
from memory.requests import Event
from memory.requests.moments import due, span
from tests.requests.talk import ASKED, KEY


@pytest.mark.parametrize(
    ("when", "at"),
    [
        ("After Tuesday is done", "2026-03-11T00:00:00Z"),
        ("after the procedure on March 12", "2026-03-13T00:00:00Z"),
        ("on Monday", "2026-03-09T00:00:00Z"),
        ("tomorrow", "2026-03-07T00:00:00Z"),
        ("after today", "2026-03-07T00:00:00Z"),
        ("in 3 days", "2026-03-09T15:18:00Z"),
        ("next week", "2026-03-09T00:00:00Z"),
        ("by Friday", None),
        ("on March 2", None),
        ("after updating my contact plan", None),
        ("after the approved amount replaced it", None),
        (None, None),
    ],
)
def test_a_time_is_resolved_against_the_time_of_the_request(when, at):
    moment = due(when, ASKED, KEY)
    assert moment == (None if at is None else microseconds(at))


@pytest.mark.parametrize("when", ["once the audit notes are complete", "when the case team moves"])
def test_a_condition_without_a_date_waits_for_a_turn_that_tells_it(when):
    event = due(when, ASKED, KEY)
    assert isinstance(event, Event)
    assert event.met_by(f"Good news: {when.split(maxsplit=1)[1]} today.", KEY)
    assert not event.met_by("The weather is fine.", KEY)
    assert not event.met_by(when, b"another key")
    assert "audit" not in repr(event)


def test_a_weekday_without_a_time_of_the_request_becomes_an_event():
    assert isinstance(due("after Tuesday", None, KEY), Event)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("everything I told you last week", "2026-02-23T00:00:00Z", "2026-03-02T00:00:00Z"),
        ("everything from yesterday", "2026-03-05T00:00:00Z", "2026-03-06T00:00:00Z"),
        ("all between March 1 and March 5", "2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"),
        ("everything since Monday", "2026-03-02T00:00:00Z", "2026-03-06T15:18:00Z"),
        ("the past two weeks", "2026-02-20T15:18:00Z", "2026-03-06T15:18:00Z"),
        ("our chat on Tuesday", "2026-03-03T00:00:00Z", "2026-03-04T00:00:00Z"),
        ("anything in February", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"),
        ("anything in December", "2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("last Friday", "2026-02-27T00:00:00Z", "2026-02-28T00:00:00Z"),
        ("everything before March 3", None, "2026-03-03T00:00:00Z"),
    ],
)
def test_a_span_is_named_in_words(text, start, end):
    found = span(text, ASKED)
    assert found is not None
    assert [None if at is None else rfc3339(at) for at in found[:2]] == [start, end]


def test_no_span_without_a_time_or_without_words_for_one():
    assert span("everything since Monday", None) is None
    assert span("everything about my job", ASKED) is None
    assert span("everything since February 30", ASKED) is None
