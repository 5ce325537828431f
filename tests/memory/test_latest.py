"""What held when, and which of several values is the latest."""

from __future__ import annotations

from memory import ByIds, Case, CaseBank, CaseFilter, NewCase
from memory.latest import latest_first
from memory.text import lexical
from memory.times import microseconds


def day(number: int) -> int:
    return microseconds(f"2026-03-{number:02d}T00:00:00Z")


def fact(id_: int, query: str, **fields: object) -> Case:
    return Case(query, kind="fact", id=id_, namespace="n", **fields)


def spoken(subject: str, predicate: str) -> dict[str, str]:
    return {"subject": subject, "predicate": predicate}


def test_of_values_for_one_subject_and_predicate_the_latest_comes_first():
    old = fact(1, "Ann lives in Oslo", metadata=spoken("Ann", "lives in"), valid_from=day(1))
    new = fact(2, "Ann's home is Bergen", metadata=spoken("ann", "Lives in"), valid_from=day(5))
    other = fact(3, "Ann sails", metadata=spoken("Ann", "sport"))
    assert latest_first([old, other, new]) == [new, old, other]


def test_the_same_question_asked_again_is_one_thing_and_turns_are_not():
    first = Case("How deep is it?", plan="a", id=1, namespace="n", created_at=day(1))
    again = Case("how deep  is it?", plan="b", id=2, namespace="n", created_at=day(2))
    assert latest_first([first, again]) == [again, first]
    turns = [Case("yes", kind="turn", id=i, namespace="n", created_at=day(i)) for i in (1, 2)]
    assert latest_first(turns) == turns


def test_time_is_valid_time_else_when_told_else_when_stored_else_the_id():
    cases = [
        fact(1, "q", stored_at=day(9)),
        fact(2, "q", created_at=day(8), stored_at=day(10)),
        fact(3, "q", valid_from=day(12), created_at=day(1)),
        fact(4, "q", stored_at=day(9)),
    ]
    assert [case.id for case in latest_first(cases)] == [3, 4, 1, 2]


def test_a_search_as_of_a_time_finds_what_held_then(bank_location):
    with CaseBank.open(bank_location) as bank:
        bank.add(
            [
                NewCase("Ann lives in Oslo", kind="fact", valid_to=day(5)),
                NewCase("Ann lives in Bergen", kind="fact", valid_from=day(5)),
                NewCase("Ann lives by the sea", kind="fact"),
            ]
        )

        def at(moment: int) -> set[int]:
            hits = bank.search_text("Ann lives", where=CaseFilter(valid_at=moment))
            return {id_ for id_, _ in hits}

        assert at(day(4)) == {1, 3}
        assert at(day(5)) == {2, 3}
        assert {id_ for id_, _ in bank.search_text("Ann lives")} == {1, 2, 3}


def test_a_search_prefers_the_latest_value_when_asked(bank_location):
    with CaseBank.open(bank_location) as bank:
        about = {"metadata": spoken("Ann", "lives in"), "kind": "fact"}
        bank.add(
            [
                NewCase("Ann lives in Oslo Oslo", valid_from=day(1), **about),
                NewCase(
                    "Ann lives, since long ago, in the town of Bergen", valid_from=day(5), **about
                ),
            ]
        )
        query = "where is it that Ann lives Oslo"
        assert [id_ for id_, _ in bank.search_text(query)] == [1, 2]
        assert [id_ for id_, _ in bank.search_text(query, latest=True)] == [2, 1]


def test_what_is_forgotten_during_a_search_for_the_latest_is_left_out(bank_location, monkeypatch):
    search = lexical.search

    def slow(*asked):
        found = search(*asked)
        with CaseBank.open(bank_location) as other:
            other.forget(ByIds((2,)))
        return found

    with CaseBank.open(bank_location) as bank:
        bank.add([NewCase(f"number {i} of the harbour") for i in range(3)])
        monkeypatch.setattr(lexical, "search", slow)
        found = bank.search_text("harbour", latest=True)
        assert sorted(id_ for id_, _ in found) == [1, 3]
