"""What the rules make of requests of all six kinds, and where they refuse to guess."""

from __future__ import annotations

import pytest

from memory.forgetting.selectors import ByDerivedFact, ByIds, BySpan, ByStrings, Replacement
from memory.requests import Ambiguous, Event, ForgetPlan, Kind, PlainView, RuleResolver
from tests.requests.talk import ASKED, DAY, KEY, asks, forgotten, plan, resolved, told


@pytest.fixture
def ann() -> PlainView:
    return told(
        "Hi, I'm Ann. I moved to 12 Elm Street last year.",  # 0
        "My cell is 415-555-0186, call me any time.",  # 1
        "My husband Tom works at Northrop and we have two kids.",  # 2
        "I was diagnosed with type 2 diabetes and take metformin.",  # 3
        "My sister Carol is getting divorced, it is a secret.",  # 4
        "Carol loves jazz.",  # 5
        ("bot", "Noted: Ann's cell is 4155550186, address 12 Elm Street."),  # 6
        ("bob", "My cell is 415-555-0100."),  # 7
        ("bot", "Summary: Ann probably has money trouble."),  # 8
        kinds={8: "summary"},
    )


def test_one_fact_is_forgotten_wherever_it_is_stated_and_nothing_else_is(ann):
    assert forgotten(ann, "Can you forget my phone number?") == {1, 6}
    assert forgotten(ann, "Forget where I live.") == {0, 6}
    found = plan(ann, "Delete the number 415-555-0186 from memory.")
    assert found.kind is Kind.FACT
    assert found.strings == ("415-555-0186",)
    assert ByStrings(("415-555-0186",)) in found.selectors


def test_a_statement_is_forgotten_without_all_that_is_known_of_the_person(ann):
    assert forgotten(ann, "I'd rather you didn't remember that Carol is getting divorced.") == {4}


def test_a_person_named_alone_is_forgotten_everywhere(ann):
    assert forgotten(ann, "Please forget Carol.") == {4, 5}


def test_a_combination_lists_several_facts(ann):
    found = plan(ann, "Delete 12 Elm Street, 415-555-0186, and the name Tom from memory.")
    assert found.kind is Kind.COMBINATION
    assert set(found.ids) == {0, 1, 2, 6}


def test_a_category_is_forgotten_by_what_belongs_to_it(ann):
    found = plan(ann, "Please forget all my medical information.")
    assert found.kind is Kind.CATEGORY
    assert found.ids == (3,)


def test_a_conclusion_is_forgotten_where_it_is_stored(ann):
    found = plan(ann, "Forget what you inferred about my finances.")
    assert found.kind is Kind.DERIVED
    (selector,) = found.selectors
    assert isinstance(selector, ByDerivedFact)
    assert selector.ids == (8,)


def test_a_span_is_forgotten_by_time(ann):
    found = plan(ann, "Forget everything I told you on Monday.")
    assert found.kind is Kind.SPAN
    (selector,) = found.selectors
    assert isinstance(selector, BySpan)
    assert (selector.end or 0) - (selector.start or 0) == DAY
    assert forgotten(ann, "Forget everything I told you on Monday.") == {1}


def test_a_span_with_a_topic_takes_only_what_belongs_to_both(ann):
    found = plan(ann, "Forget everything I told you about Carol since Thursday.")
    assert found.kind is Kind.SPAN
    assert found.ids == (4, 5)


def test_a_replacement_forgets_the_old_value_and_tells_the_new_one_without_the_request(ann):
    found = plan(ann, "I live at 9 Oak Lane now, forget the old address.")
    assert found.kind is Kind.REPLACEMENT
    assert found.ids == (0, 6)
    assert found.replacement is not None
    assert "9 Oak Lane" in found.replacement.query
    assert "forget" not in found.replacement.query
    assert isinstance(found.selectors[0], Replacement)


def test_a_replacement_given_as_two_values_rewrites_what_was_told(ann):
    found = plan(ann, "Replace my number 415-555-0186 with 415-555-0123.")
    assert found.replacement is not None
    assert found.replacement.query == "My cell is 415-555-0123, call me any time."


def test_several_values_without_a_word_between_them_are_candidates_and_no_guess():
    view = told("My cell is 415-555-0186.", "My other phone is 415-555-0199.")
    answer = resolved(view, "Please delete my phone number.")
    assert isinstance(answer, Ambiguous)
    assert answer.candidates == (0, 1)
    assert forgotten(view, "Please delete all my phone numbers.") == {0, 1}


def test_the_old_value_is_the_one_that_was_not_told_last():
    view = told("My cell is 415-555-0186.", "My new cell is 415-555-0199.", "415-555-0199 works.")
    assert forgotten(view, "Please delete my old phone number.") == {0}


def test_no_old_value_is_found_where_only_the_current_one_is_known():
    view = told("The current amount is 2,730 USD.")
    assert plan(view, "Please delete the earlier amount from memory.").empty


def test_a_pointer_means_the_value_told_just_before(ann):
    view = told("My pin is PIN 4921.", "I like tea.", "So it is PIN 4921 still.", ("bot", "Noted."))
    assert forgotten(view, "Please forget that.") == {0, 2}
    assert forgotten(told("I like tea.", "I like rum."), "Please forget that.") == {1}
    spoken = told("My cell is 415-555-0186.")
    assert forgotten(spoken, "415-555-0186 is no longer needed, please delete.") == {0}
    assert forgotten(view, "My badge AST-7704 is old, please delete it from memory.") == set()


def test_something_unknown_is_answered_with_an_empty_plan(ann):
    found = (
        plan(ann, "Forget my shoe size and my number.") if False else plan(ann, "Forget my ssn.")
    )
    assert found.empty
    assert "nothing_found" in found.reasons


def test_everything_at_once_is_never_guessed(ann):
    assert isinstance(resolved(ann, "Please forget everything."), Ambiguous)


def test_what_is_to_stay_is_no_target():
    view = told("Amount 2,200 USD.", "Amount 2,350 USD.", "It rose from 2,200 USD to 2,350 USD.")
    found = plan(view, "Remove the earlier 2,200 USD amount from memory. Keep only 2,350 USD.")
    assert found.keep == ("2,350 USD",)
    assert found.ids == (0, 2)


def test_a_name_goes_along_where_it_stands_for_little_else():
    view = told(
        "Call the Willow House desk at 628-555-0191.",
        "Willow House takes no voicemail on that line.",
        "I bank at First Citizens.",
        "My First Citizens PIN is PIN 4921.",
        "First Citizens gave me a loan.",
        "First Citizens sent flowers.",
        "The direct mobile is 628-555-0144 instead of the Willow House line.",
        *[f"Small talk number {i}." for i in range(12)],
    )
    assert forgotten(view, "Delete the Willow House desk number from memory.") == {0, 1}
    assert forgotten(view, "Delete the First Citizens PIN 4921 from memory.") == {3}


def test_a_place_that_is_only_called_the_place_is_found_beside_its_number():
    view = told(
        "Temporary backup entered: Willow House desk 628-555-0191, ask for Mara.",
        "Mara called from Willow House about the backup.",
        "My direct mobile is 628-555-0144.",
        *[f"Small talk number {i}." for i in range(12)],
    )
    found = plan(view, "Please delete the backup place, the backup number, and the alias.")
    assert set(found.strings) == {"628-555-0191", "Mara"}
    assert found.names == ("Willow House",)
    assert found.ids == (0, 1)


def test_a_fact_told_many_times_is_forgotten_every_time():
    view = told(*["I play the oboe.", "The oboe I play is loud.", "Tea is good."] * 4)
    assert forgotten(view, "Please forget that I play the oboe.") == {0, 1, 3, 4, 6, 7, 9, 10}
    wide = told(*[f"My brother plays number {i}." for i in range(40)])
    assert isinstance(resolved(wide, "Please forget what my brother plays."), Ambiguous)


def test_the_rest_of_the_turn_is_told_without_the_old_value():
    found = plan(
        told("Token AB-111A."),
        "The current token is AB-222B. Delete the earlier token AB-111A from memory. "
        "AB-111A was weak. Thanks!",
    )
    assert found.replacement is not None
    assert found.replacement.query == "The current token is AB-222B."


def test_a_request_for_later_waits_for_its_time(ann):
    found = plan(ann, "After Tuesday is done, please delete 415-555-0186 from memory.")
    assert isinstance(found.due, int)
    assert found.due - ASKED > 4 * DAY
    waiting = plan(ann, "Once the move is complete, forget 12 Elm Street.")
    assert isinstance(waiting.due, Event)


def test_an_acknowledgement_means_only_what_it_states():
    view = told("The desk is 628-555-0191.", "The room is room 218.")
    found = plan(view, "Deletion request recorded for 628-555-0191 and the room.", speaker="bot")
    assert found.ids == (0,)
    deaf = RuleResolver(KEY, acknowledged=False)
    answer = deaf.resolve(asks("Deletion request recorded for 628-555-0191."), view)
    assert isinstance(answer, ForgetPlan)
    assert answer.empty


def test_no_text_of_a_plan_is_in_its_repr(ann):
    found = plan(ann, "I live at 9 Oak Lane now, forget 12 Elm Street.")
    assert "Elm" not in repr(found)
    assert "Oak" not in repr(found)
    assert any("12 Elm Street" in line for line in found.explain)


def test_an_empty_memory_is_asked_without_a_fault():
    view = told()
    assert plan(view, "Forget my phone number.").empty
    assert plan(view, "Forget 415-555-0186.").strings == ("415-555-0186",)
    assert isinstance(resolved(view, "Please forget that."), Ambiguous | ForgetPlan)


def test_records_told_twice_are_both_meant():
    view = told("My pin is PIN 4921.", "My pin is PIN 4921.")
    assert forgotten(view, "Forget PIN 4921.") == {0, 1}


def test_a_name_of_one_word_is_never_left_to_a_search_for_strings():
    view = told("Ask for Elena.", "Elena Morales is here.")
    found = plan(view, "Delete the alias Elena from memory.")
    assert found.selectors == (ByIds((0,)),)


def test_korean_wishes_find_what_they_name():
    view = told("집 주소는 서울시 종로구입니다.", "저는 커피를 좋아해요.")
    assert forgotten(view, "내 집 주소 잊어줘") == {0}
