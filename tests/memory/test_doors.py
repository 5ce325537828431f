"""Ways in which something forgotten could stay or return, and ways in which too much could go."""

from __future__ import annotations

from itertools import pairwise

import pytest

from memory import (
    Budget,
    ByIds,
    BySpan,
    ByStrings,
    CaseBank,
    InvalidCase,
    InvalidInput,
    NewCase,
    Replacement,
    Shown,
)
from memory.keys import Keys
from memory.text.matching import holds, near_verbatim
from memory.times import microseconds

PHONE = "415-555-0186"


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location) as opened:
        yield opened


@pytest.fixture
def small(tmp_path):
    with CaseBank.open(tmp_path / "bank" / "bank.db") as opened:
        yield opened


def at(day: int) -> int:
    return microseconds(f"2026-03-{day:02d}T12:00:00Z")


@pytest.mark.parametrize("name", ["bank.db", "bank.db-wal", "bank.db-shm", "copy.sqlite"])
def test_an_export_never_replaces_a_database(small, name):
    small.add([NewCase("a case")])
    small.backup(small.path.parent / "copy.sqlite")
    target = small.path.parent / name
    for export in (
        small.export_jsonl,
        small.export_parquet,
        small.export_receipts,
        small.runs.export_outcome_log,
    ):
        with pytest.raises(InvalidInput, match="never replaces"):
            export(target)
    with CaseBank.open(small.path) as again:
        assert again.count() == 1


@pytest.mark.parametrize("strings", ["Ann Smith", [5], None])
def test_one_text_is_not_taken_for_a_list_of_its_letters(small, strings):
    small.add([NewCase("a case")])
    with pytest.raises(InvalidInput):
        small.forget(ByIds((99,)), strings=strings)
    with pytest.raises(InvalidInput):
        small.verify(strings)


@pytest.mark.parametrize(
    ("name", "value"), [("request", "\ud800"), ("request", 5), ("actor", "\ud800"), ("actor", 5)]
)
def test_words_that_cannot_be_stored_are_refused(small, name, value):
    with pytest.raises(InvalidInput, match=r"words|actor|request"):
        small.forget(ByIds((1,)), **{name: value})


def test_a_broken_echo_is_refused_before_it_breaks_every_conversation(small):
    with pytest.raises(InvalidInput, match="echo"):
        small.forget(ByIds((1,)), echoes=["nonsense"])


def test_what_a_case_holds_is_never_called_clean(bank):
    bank.add([NewCase(f"My number is {PHONE}")])
    result = bank.verify([PHONE])
    assert not result.clean
    assert result.still_held == (1,)
    bank.forget(ByStrings((PHONE,)))
    assert bank.verify([PHONE]).findings == ()


def test_verify_looks_at_the_runs(bank):
    bank.runs.log(f"is it {PHONE}?", [], policy="p")
    bank.add([NewCase("unrelated")])
    assert [f.layer for f in bank.verify([PHONE]).findings if f.layer == "runs"] == ["runs"]


def test_a_run_that_asked_what_was_requested_goes_although_no_case_did(bank):
    words = "please forget the song of the lantern"
    bank.add([NewCase("unrelated")])
    bank.runs.log(words, [Shown(1, 1)], policy="p")
    receipt = bank.forget(ByIds((999,)), request=words)
    assert (receipt.count, receipt.counts["runs"]) == (0, 1)
    assert bank.runs.count() == 0


def test_a_waiting_replacement_does_not_bring_back_what_is_forgotten(bank):
    bank.add([NewCase("the old value is amber"), NewCase(f"My number is {PHONE}")])
    new = NewCase(f"Her number is {PHONE}")
    bank.schedule.add(Replacement(old="amber", new=new), at(1))
    receipt = bank.forget(ByStrings((PHONE,)))
    assert receipt.counts["scheduled"] == 1
    bank.schedule.run()
    assert bank.verify([PHONE]).still_held == ()
    assert bank.verify([PHONE]).findings == ()


def test_a_source_that_others_name_keeps_its_external_id(bank):
    bank.add([NewCase("a source", external_id="r"), NewCase("a fact", derived_from=("r",))])
    with pytest.raises(InvalidCase, match="derived from it"):
        bank.update(1, {"external_id": "r2"})
    assert bank.update(1, {"query": "a better source"}).external_id == "r"
    assert bank.forget(ByIds((1,))).ids == (1, 2)


def test_a_copy_of_a_copy_is_none(bank):
    words = [
        "On",
        "ward",
        "seven",
        "the",
        "evening",
        "round",
        "found",
        "the",
        "patient",
        "resting",
        "with",
        "a",
        "quiet",
        "breath,",
        "the",
        "lamp",
        "was",
        "low",
        "and",
        "the",
        "window",
        "open",
        "to",
        "the",
        "harbour",
        "while",
        "note",
        "number",
        "0",
        "was",
        "written",
        "by",
        "the",
        "sister",
        "on",
        "the",
        "night",
        "duty",
        "of",
        "that",
        "week",
    ]
    notes = []
    for place in range(0, 24, 4):
        notes.append(" ".join(words))
        words[place] += "x"
    assert all(near_verbatim(one, two) for one, two in pairwise(notes))
    assert not near_verbatim(notes[0], notes[-1])
    ids = bank.add([NewCase(text) for text in notes])
    gone = bank.forget(ByIds((ids[0],)), dry_run=True).ids
    assert ids[1] in gone
    assert ids[-1] not in gone


def test_what_only_its_time_named_does_not_take_equal_words_of_another_time(bank):
    bank.add(
        [
            NewCase("ok", created_at=at(6), external_id="a"),
            NewCase("OK", created_at=at(20)),
            NewCase("so it was", created_at=at(21), derived_from=("a",)),
        ]
    )
    assert bank.forget(BySpan(at(6), at(7)), dry_run=True).ids == (1, 3)
    assert bank.forget(ByIds((1,)), dry_run=True).ids == (1, 2, 3)


def test_a_span_ends_before_its_end(bank):
    bank.add([NewCase("first", created_at=at(6)), NewCase("last", created_at=at(7))])
    assert bank.forget(BySpan(at(6), at(7)), dry_run=True).ids == (1,)


@pytest.mark.parametrize(
    ("text", "string", "held"),
    [
        ("36.6 degrees", "36", False),
        ("she is 36.", "36", True),
        ("born 12.03.2026", "2026", True),
        ("rooms 41, 55, 55, 01, 86", "4155550186", False),
        ("call 415.555.0186", "415-555-0186", True),
        ("Mr. O’Brien", "O'Brien", True),
        ("don't", "don’t", True),
        ("415-\u200b555-0186", PHONE, True),
        ("٤١٥-٥٥٥-٠١٨٦", PHONE, True),
        ("**Ann** Smith", "Ann Smith", True),
        ("Ann, Smith", "Ann Smith", True),
        ("Annie Smith", "Ann Smith", False),
    ],
)
def test_what_counts_as_the_same_string(bank, text, string, held):
    assert holds(text, string) == held
    (id_,) = bank.add([NewCase(text)])
    assert bank.forget(ByStrings((string,))).ids == ((id_,) if held else ())


def test_a_case_of_history_that_is_stated_anew_is_live_again(bank):
    bank.add([NewCase("Ann lives in Oslo", external_id="home")])
    bank.forget(ByIds((1,)), mode="invalidate")
    assert bank.add([NewCase("Ann lives in Oslo", external_id="home")], upsert=True) == [1]
    assert bank.count() == 1
    bank.forget(ByIds((1,)), mode="invalidate")
    bank.update(1, {"query": "Ann lived in Oslo"})
    assert bank.count() == 0, "history that is corrected stays history"


def test_equal_words_of_two_namespaces_have_different_keys():
    keys = Keys(b"s" * 32)
    assert keys.of("tag", 1, "health") != keys.of("tag", 2, "health")
    assert keys.of("tag", 1, "health") != keys.of("source", 1, "health")


def test_compaction_gives_room_back(small):
    small.add([NewCase(f"case {i} " + "word " * 200) for i in range(300)])
    small.erase(deep=True)  # what is only in the log counts too
    before = small.path.stat().st_size
    small.compact(Budget(cases=10))
    assert small.path.stat().st_size < before / 2
    assert small.count() == 10


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_verify_reads_exports_row_by_row_however_they_are_packed_and_spelled(small, format_):
    small.add([NewCase(f"case {i} of many") for i in range(500)])
    small.add([NewCase("Reach ANN  SMITH at (415) 555 0186")])
    target = small.path.parent / f"out.{format_}"
    getattr(small, f"export_{format_}")(target)
    small.compact(Budget(cases=0))  # saves room, and follows no export
    found = small.verify(["Ann Smith", PHONE]).findings
    assert {(f.layer, f.number) for f in found} == {("export", 0), ("export", 1)}


def test_every_replacement_is_stored_and_named_in_the_receipt(bank):
    bank.add([NewCase("the lamp is amber"), NewCase("the door is cedar")])
    receipt = bank.forget(
        [
            Replacement(old="amber", new=NewCase("the lamp is copper")),
            Replacement(old="cedar", new=NewCase("the door is birch")),
        ]
    )
    assert receipt.ids == (1, 2)
    assert [c.query for c in bank.get(receipt.replaced_by)] == [
        "the lamp is copper",
        "the door is birch",
    ]
    assert bank.receipts() == [receipt]
