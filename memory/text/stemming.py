"""English words cut to their stems: the algorithm of M. F. Porter (Program 14(3), 1980).

`running`, `runs` and `run` become one word, `relate`, `related` and `relations` another. Words with
anything but the letters a-z in them are left alone, and so are words under three letters.
"""

from __future__ import annotations

from itertools import pairwise

_STEP_2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
)
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_ANY_OF_2, _ANY_OF_3 = (tuple(suffix for suffix, _ in step) for step in (_STEP_2, _STEP_3))
_STEP_4 = (
    *("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous"),
    *("ive", "ize", "ion", "al", "er", "ic", "ou"),
)


def stem(word: str) -> str:
    """The stem of a word in lower case."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _past_and_progressive(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _swapped(word, _STEP_2, _ANY_OF_2)
    word = _swapped(word, _STEP_3, _ANY_OF_3)
    return _final(_without_suffix(word))


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past_and_progressive(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return _mended(base) if _has_vowel(base) else word
    return word


def _mended(base: str) -> str:
    """What `-ed` or `-ing` was put on: `hop` of `hopp`, `file` of `fil`."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _doubled(base) and not base.endswith(("l", "s", "z")):
        return base[:-1]
    return base + "e" if _measure(base) == 1 and _short_end(base) else base


def _swapped(word: str, suffixes: tuple[tuple[str, str], ...], any_of: tuple[str, ...]) -> str:
    if not word.endswith(any_of):  # most words: one look instead of twenty
        return word
    for suffix, other in suffixes:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + other if _measure(base) > 0 else word
    return word


def _without_suffix(word: str) -> str:
    if not word.endswith(_STEP_4):
        return word
    for suffix in _STEP_4:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            if suffix == "ion" and not base.endswith(("s", "t")):
                return word
            return base if _measure(base) > 1 else word
    return word


def _final(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        m = _measure(base)
        if m > 1 or (m == 1 and not _short_end(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _consonants(word: str) -> list[bool]:
    """Which letters are consonants; `y` is one at the beginning and after a vowel."""
    marks: list[bool] = []
    for letter in word:
        if letter == "y":
            marks.append(not marks or not marks[-1])
        else:
            marks.append(letter not in "aeiou")
    return marks


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant: m in [C](VC)^m[V]."""
    marks = _consonants(word)
    return sum(not first and second for first, second in pairwise(marks))


def _has_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _short_end(word: str) -> bool:
    """Ends in consonant, vowel, consonant, the last none of w, x, y."""
    marks = _consonants(word)[-3:]
    return marks == [True, False, True] and word[-1] not in "wxy"


class Stems(dict[str, str]):
    """Stems by word, each computed once; for a caller with many texts, and gone with it."""

    def __missing__(self, word: str) -> str:
        found = self[word] = stem(word)
        return found
