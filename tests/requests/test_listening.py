"""Turns heard in order: nothing of a request is stored, waiting plans ripen, echoes stay out."""

from __future__ import annotations

from memory.requests import Forgotten, Listener, PlainView, Remembered, RuleResolver, current_ids
from tests.requests.talk import DAY, KEY, START


class Diary:
    """The smallest memory that does what a listener says."""

    def __init__(self) -> None:
        self.view = PlainView()
        self.listener = Listener(RuleResolver(KEY), KEY)
        self._next = 0
        self.why: list[str] = []

    def hear(self, text: str, speaker: str = "ann", day: float = 0) -> None:
        turn = self._record(text, speaker, day)
        heard = self.listener.hear(turn, self.view)
        self.why.append(heard.why)
        for plan in heard.plans:
            self.view.remove(current_ids(plan, self.view))
            if plan.replacement is not None:
                self.view.add(self._record(plan.replacement.query, speaker, day))
        if heard.besides is not None:
            self.view.add(self._record(heard.besides.query, speaker, day))
        if heard.store:
            self.view.add(turn)

    def _record(self, text: str, speaker: str, day: float) -> Remembered:
        self._next += 1
        return Remembered(self._next, text, speaker, START + round(day * DAY), self._next)

    @property
    def texts(self) -> list[str]:
        return [record.text for record in self.view.records()]


def test_a_request_its_acknowledgement_and_its_echoes_are_never_stored():
    diary = Diary()
    diary.hear("My backup line is 628-555-0191.")
    diary.hear("I like tea.")
    diary.hear("Please delete 628-555-0191 from memory.")
    diary.hear("Deletion request recorded for 628-555-0191.", "bot")
    diary.hear("Was the deleted number the one ending in 0191?", "bob")
    assert diary.texts == ["I like tea."]
    assert diary.why == ["told", "told", "request", "acknowledgement", "echo"]


def test_a_forgotten_value_may_be_learned_anew():
    diary = Diary()
    diary.hear("My line is 628-555-0191.")
    diary.hear("Please delete 628-555-0191 from memory.")
    diary.hear("My line is 628-555-0191 again.")
    assert diary.texts == ["My line is 628-555-0191 again."]


def test_a_plan_for_later_is_carried_out_at_its_time_and_not_before():
    diary = Diary()
    diary.hear("My line is 628-555-0191.", day=0)
    diary.hear("After Tuesday, please delete 628-555-0191 from memory. I prefer the portal.", day=0)
    diary.hear("It is Tuesday.", day=2)
    assert "My line is 628-555-0191." in diary.texts
    diary.hear("It is Wednesday.", day=3)
    assert diary.texts == ["I prefer the portal.", "It is Tuesday.", "It is Wednesday."]
    assert diary.listener.pending == []


def test_a_value_told_while_its_plan_waits_is_forgotten_too():
    diary = Diary()
    diary.hear("After Tuesday, please delete 628-555-0191 from memory.", day=0)
    diary.hear("The line 628-555-0191 is busy.", day=1)
    diary.hear("Good morning.", day=5)
    assert diary.texts == ["Good morning."]


def test_a_condition_is_met_by_the_turn_that_tells_it():
    diary = Diary()
    diary.hear("My badge is AST-7704.")
    diary.hear("Once the audit notes are complete, delete AST-7704 from memory.")
    diary.hear("Lunch was good.")
    assert "My badge is AST-7704." in diary.texts
    diary.hear("The audit notes are complete now.")
    assert diary.texts == ["Lunch was good.", "The audit notes are complete now."]


def test_a_completed_cleanup_meets_every_condition():
    diary = Diary()
    diary.hear("My badge is AST-7704.")
    diary.hear("Once the audit notes are complete, delete AST-7704 from memory.")
    diary.hear("Cleanup completed.", "bot")
    assert diary.texts == []


def test_a_pending_plan_is_dropped_when_its_values_were_forgotten_already():
    diary = Diary()
    diary.hear("My badge is AST-7704.")
    diary.hear("Once the audit notes are complete, delete AST-7704 from memory.")
    diary.hear("Please delete AST-7704 from memory now.")
    assert diary.listener.pending == []
    assert diary.texts == []


def test_nothing_is_forgotten_while_a_request_is_ambiguous():
    diary = Diary()
    diary.hear("My cell is 415-555-0186.")
    diary.hear("My other phone is 415-555-0199.")
    diary.hear("Please delete my phone number.")
    assert diary.why[-1] == "ambiguous"
    assert len(diary.texts) == 2


def test_digests_of_what_was_forgotten_survive_a_restart_and_tell_nothing():
    before = Forgotten(KEY)
    before.add(["628-555-0191", "2,200 USD", "Willow House"])
    after = Forgotten(KEY, before.digests())
    assert after.echoed_by("Was it the 2,200 figure?") or after.echoed_by("Was it 2,200 USD?")
    assert after.echoed_by("No Willow House any more.")
    assert not after.echoed_by("I live in Willow House.")
    assert not after.named_in("Was it Oak House?")
    assert not Forgotten(b"other", before.digests()).named_in("Willow House")
    assert all("willow" not in digest for _, digest in before.digests())
