"""Requests to forget that take effect later."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

import memory.forgetting.scheduling
from memory import (
    ByDerivedFact,
    ByIds,
    BySource,
    BySpan,
    ByStrings,
    ByTag,
    ByText,
    CaseBank,
    InvalidInput,
    NewCase,
    NotFound,
    Replacement,
)
from memory.forgetting.selectors import selector_from_json, selector_to_json

PHONE = "415-555-0186"
PAST, NOON, FUTURE = "2020-01-01T00:00:00Z", "2030-06-01T12:00:00Z", "2099-01-01T00:00:00Z"


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location) as opened:
        yield opened


def test_a_request_waits_until_it_is_due_and_then_covers_what_was_told_meanwhile(bank):
    bank.add([NewCase(f"my number is {PHONE}")])
    number = bank.schedule.add(ByStrings((PHONE,)), NOON, actor="ann")
    assert bank.schedule.run() == []
    (due,) = bank.schedule.waiting()
    assert (due.id, due.namespace, due.actor) == (number, "default", "ann")
    assert bank.count() == 1
    bank.add([NewCase(f"once more: {PHONE}"), NewCase("stays")])
    (receipt,) = bank.schedule.run(NOON)
    assert (receipt.ids, receipt.actor, receipt.mode) == ((1, 2), "ann", "purge")
    assert bank.schedule.waiting() == []
    assert bank.schedule.run(FUTURE) == []
    assert [case.query for case in bank.list()] == ["stays"]


def test_a_moment_is_due_at_itself_and_not_a_microsecond_earlier(bank):
    at = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    bank.add([NewCase("x")])
    bank.schedule.add(ByIds((1,)), at)
    assert bank.schedule.run(at - 1) == []
    assert bank.schedule.run(at)[0].ids == (1,)


def test_requests_are_carried_out_in_the_order_of_their_times(bank):
    bank.add([NewCase("old value")])
    bank.schedule.add(Replacement(old="second value", new=NewCase("third value")), NOON)
    bank.schedule.add(Replacement(old="old value", new=NewCase("second value")), PAST)
    bank.schedule.add(ByTag("none"), NOON, namespace="other")
    assert [due.id for due in bank.schedule.waiting()] == [2, 1, 3]
    receipts = bank.schedule.run(FUTURE)
    assert [receipt.count for receipt in receipts] == [1, 1, 0]
    assert [case.query for case in bank.list()] == ["third value"]


def test_the_words_of_a_request_go_when_it_is_carried_out_or_cancelled(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        bank.add([NewCase(f"number {PHONE}")])
        words = f"please forget {PHONE} after Tuesday"
        bank.schedule.add(ByStrings((PHONE,)), PAST, request=words)
        cancelled = bank.schedule.add(ByText("the blue heron's nest"), NOON)
        assert not bank.verify(["blue heron"]).clean
        bank.schedule.run()
        bank.schedule.cancel(cancelled)
        assert bank.verify([PHONE, words, "blue heron"]).clean


def test_cancelling_what_does_not_wait_is_an_error(bank):
    number = bank.schedule.add(ByTag("x"), NOON)
    bank.schedule.cancel(number)
    with pytest.raises(NotFound, match=f"request {number}"):
        bank.schedule.cancel(number)
    assert bank.schedule.add(ByTag("x"), NOON) == number + 1


def test_a_request_may_invalidate_or_name_several_selectors(bank):
    bank.add([NewCase("a", tags=("t",)), NewCase("b", source="s"), NewCase("c")])
    bank.schedule.add([ByTag("t"), BySource("s")], PAST, mode="invalidate")
    (receipt,) = bank.schedule.run()
    assert (receipt.mode, receipt.ids) == ("invalidate", (1, 2))
    assert bank.count() == 1


@pytest.mark.parametrize(
    "selector",
    [
        ByIds((1, 2)),
        BySource("chat"),
        ByTag("private"),
        BySpan(None, 5),
        ByText("words", semantic=0.5, lexical=0.9),
        ByStrings(("a", "ä\u2028b")),
        ByDerivedFact("a fact", keep_sources=True),
        Replacement(old="x", new=NewCase("y", tags=("z",), created_at=7)),
        Replacement(ids=(3,)),
    ],
)
def test_every_selector_comes_back_as_it_was_scheduled(selector):
    assert selector_from_json(selector_to_json(selector)) == selector


def test_what_makes_no_sense_is_refused_before_it_is_stored(bank):
    for what, due in ((ByTag("x"), "tomorrow"), ("everything", NOON), (ByTag("x"), None)):
        with pytest.raises(InvalidInput):
            bank.schedule.add(what, due)
    with pytest.raises(InvalidInput):
        bank.schedule.add(ByTag("x"), NOON, mode="destroy")
    with pytest.raises(InvalidInput):
        bank.schedule.add(ByTag("x"), NOON, request="\ud800")
    assert bank.schedule.waiting() == []


def test_a_request_survives_a_restart(bank_location):
    with CaseBank.open(bank_location) as bank:
        bank.add([NewCase(PHONE)])
        bank.schedule.add(ByStrings((PHONE,)), PAST)
    with CaseBank.open(bank_location) as bank:
        assert bank.schedule.run()[0].count == 1


def test_one_that_fails_goes_on_waiting_and_keeps_no_other_back(bank, monkeypatch):
    bank.add([NewCase("first"), NewCase("second")])
    broken = bank.schedule.add(ByStrings(("first",)), PAST)
    bank.schedule.add(ByStrings(("second",)), NOON)
    real = memory.forgetting.scheduling.selector_from_json

    def unreadable(row):
        if row["strings"] == ["first"]:
            raise InvalidInput("not a selector of this version")
        return real(row)

    monkeypatch.setattr(memory.forgetting.scheduling, "selector_from_json", unreadable)
    with pytest.raises(InvalidInput, match="of this version"):
        bank.schedule.run(FUTURE)
    assert [due.id for due in bank.schedule.waiting()] == [broken]
    assert [case.query for case in bank.list()] == ["first"]
    monkeypatch.undo()
    assert bank.schedule.run()[0].count == 1


def test_two_processes_that_run_the_schedule_store_a_replacement_once(bank_location):
    with CaseBank.open(bank_location) as one, CaseBank.open(bank_location) as two:
        one.add([NewCase("old value")])
        for number in range(5):
            what = Replacement(old=f"value {number}", new=NewCase(f"new value for {number}"))
            one.schedule.add(what, PAST)
        barrier = threading.Barrier(2)
        receipts, failures = [], []

        def run(bank):
            barrier.wait()
            try:
                receipts.extend(bank.schedule.run())
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(bank,)) for bank in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(receipts) == len(one.receipts()) == 5
        assert sorted(case.query for case in one.list())[:5] == [
            f"new value for {number}" for number in range(5)
        ]
        assert one.count() == 6


def test_a_request_that_another_process_just_carried_out_is_undone_here(bank_location, monkeypatch):
    with CaseBank.open(bank_location) as one, CaseBank.open(bank_location) as two:
        one.add([NewCase("old value")])
        one.schedule.add(Replacement(old="old value", new=NewCase("fresh value")), PAST)
        real = one._forgetting.forget

        def late(request, **more):
            two.schedule.run()  # between reading the request and carrying it out
            return real(request, **more)

        monkeypatch.setattr(one._forgetting, "forget", late)
        assert one.schedule.run() == []
        assert [case.query for case in one.list()] == ["fresh value"]
        assert len(one.receipts()) == 1


def test_scheduling_alone_changes_no_version_of_a_known_namespace(bank):
    bank.add([NewCase("x")])
    before = bank.block().version
    bank.schedule.add(ByTag("x"), NOON)
    assert bank.block().version == before
    bank.schedule.add(ByTag("x"), NOON, namespace="later")
    assert "later" in bank.namespaces()
