"""Turns told to a bank: what is stored, what is forgotten, what waits."""

from __future__ import annotations

import pytest

from memory import CaseBank, NewCase
from memory.conversation import Conversation

PHONE = "415-555-0186"


def turn(words: str, at: str = "2026-03-02T09:00:00Z", speaker: str = "ann") -> NewCase:
    return NewCase(words, kind="turn", created_at=at, metadata={"speaker": speaker})


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location) as opened:
        yield opened


def texts(bank: CaseBank) -> list[str]:
    return [case.query for case in bank.list(limit=1000)]


def test_a_request_is_carried_out_and_not_stored(bank):
    talk = Conversation(bank, actor="ann")
    told = talk.tell(turn(f"My mobile number is {PHONE}."))
    assert told.why == "told"
    talk.tell(turn("The garden needs water in June."))
    asked = talk.tell(turn(f"Please forget my mobile number {PHONE}."))
    assert asked.id is None
    (receipt,) = asked.receipts
    assert receipt.ids == (told.id,)
    assert receipt.actor == "ann"
    assert texts(bank) == ["The garden needs water in June."]
    assert bank.verify([PHONE]).findings == ()


def test_a_polite_request_names_no_value_and_still_finds_it(bank):
    """Elsewhere the polite form was not recognised, and the secret was recalled into the answer."""
    talk = Conversation(bank)
    talk.tell(turn(f"My phone number is {PHONE}."))
    talk.tell(turn("I had soup for lunch."))
    asked = talk.tell(turn("Can you forget my phone number?"))
    assert asked.receipts[0].count == 1
    assert texts(bank) == ["I had soup for lunch."]


@pytest.mark.parametrize(
    "words",
    [
        "Don't forget to water the garden.",
        "How do I remove a wine stain?",
        'She said "forget it" and left.',
        "Did you delete the old report?",
    ],
)
def test_what_only_sounds_like_a_request_is_stored(bank, words):
    talk = Conversation(bank)
    talk.tell(turn("The garden has roses."))
    assert talk.tell(turn(words)).why == "told"
    assert texts(bank) == ["The garden has roses.", words]


def test_what_was_forgotten_is_not_stored_again_by_those_who_confirm_it(bank):
    talk = Conversation(bank)
    talk.tell(turn(f"The backup number is {PHONE}."))
    talk.tell(turn(f"Please delete the backup number {PHONE}."))
    talk.tell(turn(f"Confirmed: the old number {PHONE} was removed.", speaker="agent"))
    assert PHONE not in "".join(texts(bank))
    # Also after a restart: the receipts hold keyed digests of it.
    again = Conversation(bank)
    assert again.tell(turn(f"Was the deleted number {PHONE}?")).id is None


def test_a_request_that_takes_effect_later_waits_in_the_bank(bank):
    talk = Conversation(bank)
    talk.tell(turn(f"The temporary code is 2271-{PHONE}.", "2026-03-02T09:00:00Z"))  # a Monday
    talk.tell(turn(f"After Tuesday, please delete the code 2271-{PHONE}.", "2026-03-02T10:00:00Z"))
    assert len(texts(bank)) == 1
    assert [due.namespace for due in bank.schedule.waiting()] == ["default"]
    later = Conversation(bank)
    told = later.tell(turn("Good morning.", "2026-03-05T09:00:00Z"))
    assert [receipt.count for receipt in told.receipts] == [1]
    assert texts(bank) == ["Good morning."]
    assert bank.schedule.waiting() == []


def test_namespaces_do_not_hear_each_other(bank):
    ann, bob = Conversation(bank, namespace="ann"), Conversation(bank, namespace="bob")
    ann.tell(turn(f"My number is {PHONE}."))
    bob.tell(turn(f"My number is {PHONE}."))
    bob.tell(turn(f"Forget my number {PHONE}."))
    assert bank.count("ann") == 1
    assert bank.count("bob") == 0


def test_what_a_waiting_request_tells_besides_is_stored_once(bank):
    talk = Conversation(bank)
    talk.tell(turn("The clinic's number is 628-555-0162."))
    talk.tell(
        turn(
            "After Tuesday, replace the clinic's number 628-555-0162 with 628-555-0199.",
            "2026-03-02T10:00:00Z",
        )
    )
    talk.tell(turn("Good morning.", "2026-03-05T09:00:00Z"))
    said = texts(bank)
    assert not any("0162" in words for words in said)
    assert sum("0199" in words for words in said) == 1


def test_a_request_is_still_waiting_if_the_process_dies_while_it_is_carried_out(bank, monkeypatch):
    talk = Conversation(bank)
    talk.tell(turn(f"The backup number is {PHONE}."))
    talk.tell(turn(f"Once the audit is finished, please delete the backup number {PHONE}."))
    assert len(bank.schedule.waiting()) == 1

    def dies(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bank, "forget", dies)
    with pytest.raises(KeyboardInterrupt):
        talk.tell(turn("The audit is finished.", "2026-03-03T09:00:00Z"))
    monkeypatch.undo()
    assert len(bank.schedule.waiting()) == 1
    later = Conversation(bank)
    later.tell(turn("As I said, the audit is finished.", "2026-03-04T09:00:00Z"))
    assert PHONE not in "".join(texts(bank))
    assert bank.schedule.waiting() == []
