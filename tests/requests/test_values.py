"""Values in texts, and the texts that state the same value."""

from __future__ import annotations

import random
import re

import pytest

from memory.requests.mentions import mention
from memory.requests.values import values_in


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("call 415-555-0198, ext 24", ["phone", "labelled"]),
        ("the stipend is 2,200 USD, or $2,300.50", ["amount", "amount"]),
        ("token atl_lab_TMP_4Q7L-X2MP-8V1K", ["code"]),
        ("the label 'temporary relocation,' stays", ["wording"]),
        ("I live at 12 Elm Street now", ["address"]),
        ("mail ann@example.com on March 9", ["email", "date"]),
        ("Simulation Locker 512", ["labelled"]),
        ("take it 3 times, an 8-week course of 25mg", []),
        ("", []),
    ],
)
def test_values_are_found_with_their_kind(text, kinds):
    assert [value.kind for value in values_in(text)] == kinds


@pytest.mark.parametrize(
    ("value", "text", "stated"),
    [
        ("415-555-0174", "Did it end in 0174?", True),
        ("415-555-0174", "call 4155550174 now", True),
        ("415-555-0174", "call (415) 555 0174 now", True),
        ("415-555-0174", "call 94155550174", False),
        ("415-555-0174", "on the 0174 form", False),
        ("2,200 USD", "the 2,200 figure", True),
        ("2,200 USD", "12,200 USD", False),
        ("2,200 USD", "$2200", True),
        ("2,200 USD", "2,200.50", False),
        ("tdx_portal_TMP_7Q4M-H2LA", "the retired 7Q4M-H2LA", True),
        ("lum_case_TMP_7Q4N-R6VF", "lum_case_TMP_7Q4N-R6VK", False),
        ("AST-7704", "AST-77041", False),
        ("extension 12", "ext. 12", True),
        ("room 12", "room 121", False),
        ("Simulation Locker 512", "the old locker 512", True),
        ("Elena", "ask for elena", True),
        ("Elena", "Elena Morales is here", False),
        ("June", "through June 8", False),
        ("June", "ask for June.", True),
        ("do not leave mail mentioning rash", "don't leave mail mentioning a rash", True),
        ("arrival timing and housing check-in only", "arrival timing only", False),
        ("집 주소", "내 집 주소는 서울", True),
        ("STRASSE 5a", "straße 5a", True),
    ],
)  # fmt: skip
def test_a_value_is_found_in_the_forms_people_use(value, text, stated):
    assert mention(value).in_(text) is stated


def test_every_text_that_states_a_value_holds_one_of_its_words():
    from memory.requests.plan import Remembered
    from memory.requests.view import PlainView

    rng = random.Random(5)
    values = [
        "415-555-0186",
        "2,200 USD",
        "tdx_TMP_7Q4M-H2LA",
        "Simulation Locker 512",
        "Willow House",
    ]
    forms = [
        "4155550186",
        "ending in 0186",
        "$2200",
        "the 2,200 figure",
        "7Q4M-H2LA",
        "locker 512",
        "Willow  House",
    ]
    texts = [" ".join(rng.sample([*values, *forms, "and", "then", "5"], 3)) for _ in range(200)]
    view = PlainView(Remembered(i, text) for i, text in enumerate(texts))
    for value in values:
        narrowed = {r.id for r in view.having(mention(value).words) if mention(value).in_(r.text)}
        assert narrowed == {i for i, text in enumerate(texts) if mention(value).in_(text)}


def test_telephone_numbers_are_found_whatever_stands_between_the_digits():
    # The slow twin: compare digits alone.
    rng = random.Random(7)
    for _ in range(300):
        digits = "".join(rng.choice("0123456789") for _ in range(10))
        written = digits[:3] + rng.choice("- .") + digits[3:6] + rng.choice("- .") + digits[6:]
        other = "".join(rng.choice("0123456789") for _ in range(10))
        for shown in (digits, other):
            text = f"call {shown[:3]}{rng.choice(['-', ' ', '', '.'])}{shown[3:6]}-{shown[6:]} soon"
            same = re.sub(r"\D", "", text) == digits
            assert mention(written).exact_in(text) is same
