"""When two texts say the same, and when a text holds a string: pure functions over their words.

Everything is compared in normal form (NFKC, case folded, white space collapsed). A word is a run of
letters and digits; in scripts that put no spaces between words, or join particles to them (Chinese,
Japanese, Korean, Thai, ...), every character is a word of its own, so that any part of a text is
found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from memory.keys import normal_form
from memory.text.stemming import Stems

GRAM = 8  # characters of the pieces that near-verbatim copies are compared by
ALIKE = 0.9  # the share of all pieces of two near-verbatim copies that both have
#: From so many digits on, a number is a telephone number, a card's, a date: gaps do not matter.
LONG = 7

#: Words that tell nothing apart: the commonest function words of English.
STOP_WORDS = frozenset(
    """
    a an and are as at be been but by can could did do does for from had has have he her his how i
    if in into is it its me my no not of on or our she so than that the their them then there they
    this to was we were what when where which who whom whose why will with would you your
    """.split()  # noqa: SIM905  a list literal of 80 words would fill a page
)

# Thai and Lao, Burmese, Khmer, kana, Han, Hangul.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_NO_SPACES = re.compile(rf"[{_UNSPACED}]")

_GAP = r"[ ()\[\].,:/+_\-\u2010-\u2015\u2212]"
#: Between the digits of one number; a comma and a space stand between two.
_CLOSE = rf"(?:(?!, ){_GAP}){{0,3}}"
_LONG_NUMBER = re.compile(rf"[0-9](?:{_GAP}{{0,3}}[0-9]){{{LONG - 1},}}")
_NUMBERS = re.compile(rf"[0-9]+(?:{_GAP}{{1,3}}[0-9]+)*")
_DIGITS = re.compile(r"[0-9]+")
_OF_A_GAP = " ()[].,:/+_-\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
# 1500 or 1,500: four to six digits that stand alone.
_THOUSANDS = re.compile(r"(?<![\w,.])(?:[0-9]{4,6}|[0-9]{1,3},[0-9]{3})(?![\w]|[,.][0-9])")


class Piece(NamedTuple):
    """A part of a string that is looked for.

    `kind` is `text`, found as it stands; `long`, the digits of a number whose gaps do not matter;
    or `thousands`, the digits of one that may have a comma before the last three.
    """

    kind: str
    words: str


def word_list(text: str) -> list[str]:
    """The words of a text in normal form, in order."""
    return words_of(normal_form(text))


def words_of(plain: str) -> list[str]:
    """The words of a text that is in normal form already."""
    return _WORD.findall(plain)


def content_words(text: str, stems: Stems | None = None) -> frozenset[str]:
    """The stems of a text's words, stop words left out unless there is nothing else."""
    known = Stems() if stems is None else stems
    words = set(word_list(text))
    return frozenset(known[word] for word in (words - STOP_WORDS or words))


def coverage(text: str, case: str) -> float:
    """The share of a text's content words that a case has, 0 to 1; of a text without words, 0."""
    return share_held(content_words(text), case)


def share_held(wanted: frozenset[str], case: str, stems: Stems | None = None) -> float:
    """The share of stems that are among a case's words; 0 if there are none."""
    if not wanted:
        return 0.0
    known = Stems() if stems is None else stems
    # No word loses its first letter to its stem; stemming all of them would cost far more.
    first = {word[0] for word in wanted}
    held = {known[word] for word in set(word_list(case)) if word[0] in first}
    return len(wanted & held) / len(wanted)


def grams(text: str) -> set[str]:
    """Every eight characters in a row of the normal form; none of a shorter one."""
    plain = normal_form(text)
    return {plain[i : i + GRAM] for i in range(len(plain) - GRAM + 1)}


def near_verbatim(a: str, b: str) -> bool:
    """Equal in normal form, or their eight-character pieces have a Jaccard index of at least 0.9.

    Texts shorter than eight characters are only ever equal.
    """
    if normal_form(a) == normal_form(b):
        return True
    first, second = grams(a), grams(b)
    small, large = sorted((len(first), len(second)))
    if not small or small < ALIKE * large:
        return False
    both = len(first & second)
    return both >= ALIKE * (len(first) + len(second) - both)


def holds(text: str, string: str) -> bool:
    """Whether a string stands in a text, as whole words; an empty string stands in none.

    Case, width and white space may differ. Numbers of seven digits or more are compared by their
    digits: `(415) 555-0186` is `415-555-0186` is `4155550186`, of which `5550186` is a part in the
    first two spellings and not in the last, nor in `14155550186`: a digit beside the string makes
    it part of a longer number. A comma before the last three of four to six digits may be there or
    not. A whole number is not in a decimal one. Between words there may be other punctuation than a
    space; elsewhere it counts: `c` is in `c++` but `c++` is not in `c`.
    """
    return any(True for _ in _places(normal_form(text), normal_form(string)))


def pieces(string: str) -> list[Piece]:
    """The parts of a string by how they are looked for, in order.

    Punctuation and white space next to a long number are left out.
    """
    plain = normal_form(string)
    found: list[Piece] = []
    end = 0
    for match in _LONG_NUMBER.finditer(plain):
        found += _with_thousands(plain[end : match.start()].rstrip(_OF_A_GAP))
        found.append(Piece("long", "".join(_DIGITS.findall(match[0]))))
        end = match.end()
    rest = plain[end:]
    return found + ([] if end and not rest.strip(_OF_A_GAP) else _with_thousands(rest))


def number_starts(plain: str) -> Iterator[str]:
    """The first seven digits of every long number in a normal form, from each of its groups on.

    A text that holds a string with a long number has the first seven of it among them.
    """
    for run in _NUMBERS.finditer(plain):
        groups = _DIGITS.findall(run[0])
        digits = "".join(groups)
        start = 0
        for group in groups:
            if len(digits) - start < LONG:
                break
            yield digits[start : start + LONG]
            start += len(group)


def _with_thousands(plain: str) -> list[Piece]:
    found: list[Piece] = []
    end = 0
    for match in _THOUSANDS.finditer(plain):
        if match.start() > end:
            found.append(Piece("text", plain[end : match.start()]))
        found.append(Piece("thousands", match[0].replace(",", "")))
        end = match.end()
    return found + ([Piece("text", plain[end:])] if end < len(plain) else [])


def _places(text: str, string: str) -> Iterator[tuple[int, int]]:
    """Where a string stands in a text as whole words, both in normal form."""
    if not string:
        return
    found = re.compile(_pattern(string))
    match = found.search(text)
    while match is not None:
        start, end = match.span()
        if _apart(text, start) and _apart(text, end) and not _in_decimal(text, start, end):
            yield start, end
        # From the next character on: what overlaps may be whole.
        match = found.search(text, start + 1)


def _pattern(string: str) -> str:
    parts: list[str] = []
    after_text = False
    for kind, words in pieces(string):
        if kind == "text":
            # Between words there may be more than a space: "Ann, Smith", "**Ann** Smith".
            parts.append(r"[\W_]{1,4}".join(map(re.escape, words.split(" "))))
        elif kind == "thousands":
            parts.append(f"{words[:-3]},?{words[-3:]}")
        else:
            parts.append((f"{_GAP}{{0,4}}" if after_text else "") + _CLOSE.join(words))
        after_text = True
    return "".join(parts)


def _in_decimal(text: str, start: int, end: int) -> bool:
    """Whether a whole number is half of a decimal one: 36 in 36.6, not 2026 in 12.03.2026."""
    if not text[start:end].isdecimal():
        return False
    before = re.search(r"[0-9.]*$", text[:start])
    after = re.match(r"[0-9.]*", text[end:])
    assert before is not None, "both patterns match nothing too"
    assert after is not None, "both patterns match nothing too"
    return re.fullmatch(r"[0-9]+\.[0-9]+", before[0] + text[start:end] + after[0]) is not None


def unspaced(text: str) -> bool:
    """Whether a text holds characters of a script that is written without spaces."""
    return _NO_SPACES.search(text) is not None


def _apart(text: str, at: int) -> bool:
    """Whether a word may end or begin between two characters."""
    return not (0 < at < len(text) and _in_word(text[at - 1]) and _in_word(text[at]))


def _in_word(character: str) -> bool:
    if _NO_SPACES.match(character):
        return False
    return character.isalnum() or unicodedata.category(character).startswith("M")
