"""When texts say the same, and when a text holds a string."""

from __future__ import annotations

import random
import sqlite3

import pytest

from memory.keys import normal_form
from memory.text.matching import (
    ALIKE,
    content_words,
    coverage,
    grams,
    holds,
    near_verbatim,
    number_starts,
    pieces,
    share_held,
    word_list,
)
from memory.text.sketch import BANDS, Sketcher
from memory.text.stemming import stem


@pytest.mark.parametrize(
    ("text", "string"),
    [
        ("Call (415) 555-0186 now.", "415-555-0186"),
        ("Call (415) 555-0186 now.", "4155550186"),
        ("Call 4155550186 now.", "(415) 555-0186"),
        ("Call 415.555.0186 now.", "415 555 0186"),
        ("+1 (415) 555-0186", "4155550186"),
        ("+1 (415) 555-0186", "+14155550186"),
        ("415-555-0186", "5550186"),
        ("tel. 4155550186", "tel. (415) 555-0186"),
        ("(4155550186)", "[415 555 0186]"),
        ("born 2024-01-15 in Rome", "20240115"),
        ("It was 1,500 dollars.", "1500 DOLLARS"),
        ("It was 1500 dollars.", "1,500"),
        ("12 1500 3", "1,500"),
        ("C++ is a language", "c++"),
        ("C++ is a language", "c"),
        ("my\n  number\tis", "My number IS"),
        ("Die Straße ist lang", "STRASSE"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("ﬁnal", "final"),
        ("我的电话是4155550186号", "4155550186"),
        ("我的电话是4155550186号", "电话"),
        ("서울에서 만나요", "서울"),
        ("カタカナ語", "ｶﾀｶﾅ"),
        ("what 🙂 is it", "🙂"),
        ("snake_case", "case"),
        ("o'neil said", "O'Neil"),
        ("aa aaa aa", "aaa"),
        ("aaa aa", "aa"),
    ],
)
def test_a_text_holds_what_stands_in_it_as_whole_words(text, string):
    assert holds(text, string)


@pytest.mark.parametrize(
    ("text", "string"),
    [
        ("14155550186", "5550186"),
        ("4155550186", "5550186"),
        ("x4155550186", "4155550186"),
        ("415-555-01867", "415-555-0186"),
        ("resigned", "signed"),
        ("vitamin C", "C++"),
        ("The dose is 1.5 mg", "15"),
        ("rooms 3, 4 and 5", "34"),
        ("2,15,00", "1500"),
        ("15 00", "1500"),
        ("नमस्ते", "नमस"),
        ("anything", ""),
        ("anything", "  "),
        ("", "a"),
        ("", ""),
    ],
)
def test_a_part_of_a_word_or_another_number_is_not_held(text, string):
    assert not holds(text, string)


def test_holding_words_agrees_with_comparing_lists_of_words():
    # The slow twin: a run of words in a list of words, where there is nothing but words.
    rng = random.Random(3)
    letters = ["a", "b", "ab", "ba", "é", "x1", "12"]
    for _ in range(2000):
        text = [rng.choice(letters) for _ in range(rng.randint(0, 12))]
        string = [rng.choice(letters) for _ in range(rng.randint(1, 3))]
        inside = any(text[i : i + len(string)] == string for i in range(len(text)))
        shown = rng.choice([" ", "  ", "\n"]).join(text)
        assert holds(shown, " ".join(string).upper()) == inside


def test_holding_numbers_agrees_with_trying_every_way_to_write_them():
    rng = random.Random(4)
    gaps = ["", " ", "-", ".", ") ", " - ", "/", "    ", "--", "x", "\u2013"]
    for _ in range(2000):
        digits = "".join(rng.choice("12") for _ in range(rng.randint(7, 9)))
        written, joined = digits[0], True
        for digit in digits[1:]:
            gap = rng.choice(gaps) if rng.random() < 0.3 else ""
            joined &= gap not in ("x",)  # four spaces are one in normal form
            written += gap + digit
        assert holds(f"call {written}!", digits) == joined


def test_a_string_is_cut_into_text_and_numbers():
    cut = pieces("Pay 1,500 to (415) 555-0186, ok")
    assert cut == [
        ("text", "pay "),
        ("thousands", "1500"),
        ("text", " to"),
        ("long", "4155550186"),
        ("text", ", ok"),
    ]
    assert pieces("(4155550186)") == [("long", "4155550186")]
    assert pieces("") == []


def test_a_long_number_is_read_from_each_of_its_groups():
    assert list(number_starts("x +1 (415) 555-0186 9")) == ["1415555", "4155550", "5550186"]
    assert list(number_starts("12 rooms, 34 doors and 567")) == []
    assert list(number_starts("")) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("My number is 5550186", "my  NUMBER is\n5550186"),
        ("ab", "AB"),
        ("", " "),
        ("Straße", "STRASSE"),
        (
            "The register of the harbour lists every captain who came before the war",
            "The register of the harbour lists every captain who came before the war.",
        ),
    ],
)
def test_copies_that_differ_in_little_are_near_verbatim(a, b):
    assert near_verbatim(a, b)
    assert near_verbatim(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("short", "shore"),
        ("", "a"),
        ("My number is 5550186", "My number is 5550187"),
        ("one two three four five six", "six five four three two one"),
    ],
)
def test_texts_that_differ_in_more_are_not(a, b):
    assert not near_verbatim(a, b)
    assert not near_verbatim(b, a)


def test_near_verbatim_is_the_jaccard_index_of_the_pieces():
    rng = random.Random(5)
    seen = set()
    for _ in range(3000):
        a = "".join(rng.choice("abc ") for _ in range(rng.randint(0, 90)))
        b = list(a)
        for _ in range(rng.choice([0, 1, 1, 2])):
            b.insert(rng.choice([0, len(b), rng.randint(0, len(b))]), rng.choice("abc "))
        b = "".join(b)
        first, second = (
            [normal_form(t)[i : i + 8] for i in range(max(0, len(normal_form(t)) - 7))]
            for t in (a, b)
        )
        union = set(first) | set(second)
        both = [gram for gram in union if gram in first and gram in second]
        expected = normal_form(a) == normal_form(b) or (
            bool(union) and len(both) / len(union) >= ALIKE
        )
        assert near_verbatim(a, b) == expected
        seen.add(expected)
    assert seen == {True, False}


def test_a_band_is_shared_with_the_seventh_power_of_the_jaccard_index():
    rng = random.Random(6)
    shared = expected = 0.0
    for trial in range(1500):
        a = "".join(rng.choice("abcdefgh ") for _ in range(rng.choice([20, 80, 300])))
        b = list(a)
        for _ in range(rng.choice([1, 2, 4])):
            b[rng.randrange(len(b))] = rng.choice("xyz")
        b = "".join(b)
        a, b = normal_form(a), normal_form(b)
        sketcher = Sketcher(trial.to_bytes(8, "big"))
        first, second = sketcher.sketch(a), sketcher.sketch(b)
        assert len(first) == len(second) == BANDS
        shared += sum(x == y for x, y in zip(first, second, strict=True)) / BANDS
        one, two = grams(a), grams(b)
        expected += (len(one & two) / len(one | two)) ** 7
    assert shared == pytest.approx(expected, rel=0.05)


def test_sketches_depend_on_the_secret_and_on_nothing_else():
    text = "what is said here is said twice " * 100
    assert Sketcher(b"one").sketch(text) == Sketcher(b"one").sketch(text)
    assert not set(Sketcher(b"one").sketch(text)) & set(Sketcher(b"two").sketch(text))
    assert Sketcher(b"one").sketch("short") == Sketcher(b"one").sketch("short")
    assert len(Sketcher(b"one").sketch("")) == 1


def test_coverage_is_the_share_of_content_words():
    assert coverage("the captain of the ships", "Captains and a ship.") == 1.0
    assert coverage("the captain of the ships", "a shipping list") == 0.5
    assert coverage("captain", "the the the") == 0.0
    assert coverage("", "anything") == 0.0
    assert coverage("...", "anything") == 0.0
    assert coverage("the who", "The Who") == 1.0, "nothing but stop words: they are the content"
    assert coverage("北京", "我在北京") == 1.0


def test_the_share_agrees_with_stemming_every_word():
    rng = random.Random(7)
    words = [
        "run",
        "running",
        "runs",
        "ran",
        "ship",
        "shipping",
        "shipped",
        "relate",
        "relation",
        "relations",
        "ties",
        "tie",
        "y",
    ]
    for _ in range(500):
        text, case = (" ".join(rng.choices(words, k=rng.randint(0, 6))) for _ in range(2))
        wanted = content_words(text)
        held = {stem(word) for word in word_list(case)}
        share = len(wanted & held) / len(wanted) if wanted else 0.0
        assert share_held(wanted, case) == share == coverage(text, case)


BASES = """
    hop file relat condition valenc hesit digit conform radic differ vile analog vietnam predic
    operat feud decis hopeful callous form sensit triplic formal electr good reviv allow infer
    airlin gyroscop adjust defens irrit replac depend adopt commun homolog effect bowdler prob rate
    ceas control roll happ sk tr agre plaster motor conflat troubl siz tann fall hiss fizz fail sing
    y ye a be
"""
ENDINGS = """
    s es ies sses ed eed ing y ying ational tional enci anci izer abli alli entli eli ousli ization
    ation ator alism iveness fulness ousness aliti iviti biliti logi icate ative alize iciti ical
    ful ness al ance ence er ic able ible ant ement ment ent sion tion ou ism ate iti ous ive ize e
    ll
"""


def test_stems_are_those_of_sqlite():
    # SQLite's own Porter stemmer is the twin; it was written by others and shares no code.
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE f USING fts5(w, tokenize = 'porter ascii')")
        connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab(f, instance)")
        rng = random.Random(8)
        bases = BASES.split()
        endings = ENDINGS.split()
        words = {base + ending for base in bases for ending in ["", *endings]}
        words |= {word + rng.choice(endings) for word in sorted(words)}
        words = sorted(word for word in words if "yy" not in word)
        connection.executemany("INSERT INTO f (rowid, w) VALUES (?, ?)", list(enumerate(words)))
        stems = dict(connection.execute("SELECT doc, term FROM v").fetchall())
        different = [w for i, w in enumerate(words) if stem(w) != stems[i]]
        assert len(words) > 5000
        # It leaves one letter more of these two, which are no words.
        assert set(different) <= {"eed", "ies"}
    finally:
        connection.close()


def test_words_that_are_not_english_are_left_alone():
    for word in ("straße", "café", "北", "x1s", "42", "is", ""):
        assert stem(word) == word
