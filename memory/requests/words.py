"""Texts cut to what requests are compared by: normal form, words, stems, sentences, quoted parts.

Nothing here knows what a request is. The stems are a light suffix cut, good enough to find
"numbers" for "number"; an engine's own stemmer need not agree with them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_WORD = re.compile(r"[^\W_]+", re.UNICODE)
# Scripts written without spaces: words have no edges there, so text is compared by characters.
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")

_STOP = (
    "a about after again all also am an and any are as at be been before being but by can "
    "could did do does don down each else ever few for from further had has have he her here "
    "hers him his how i if in into is it its itself just ll m may me might more most must my "
    "no nor not now of off on once only or other our ours out over own re really s same "
    "shall she should so some such t than that the their theirs them then there these they "
    "this those through to too under until up us ve very was we were what when where which "
    "while who whom whose why will with would you your yours anymore please kindly"
)
# The last few are the Korean words for my, our, that.
STOP_WORDS = frozenset(_STOP.split()) | {"내", "제", "나의", "저의", "우리", "그"}
_SUFFIXES = (
    *("ization", "ations", "ation", "ments", "ment", "ingly", "edly", "ings", "ing", "ies"),
    *("ied", "ers", "er", "ed", "es", "is", "ly", "s", "e"),
)
_SHORTEST_STEM = 3

_QUOTED = re.compile(
    r"“[^”]{1,400}”|„[^“”]{1,400}[“”]|‘[^’]{1,400}’(?!\w)|«[^»]{1,400}»|「[^」]{1,400}」|『[^』]{1,400}』"
    r"|\"[^\"]{1,400}\"|(?<!\w)'(?=\S)[^\n]{1,400}?(?<=\S)'(?!\w)"
)
# A full stop after these ends no sentence.
_ABBREVIATION = re.compile(
    r"\b(?:dr|mr|mrs|ms|prof|st|no|vs|etc|e\.g|i\.e|approx|ext|a\.m|p\.m|jr|sr)\.$", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)]*(?=\s|$)|[。！？]+|\n+")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text with its place in it."""

    text: str
    start: int
    end: int


def normal(text: str) -> str:
    """Compatibility form, case folded, each run of white space one space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words(text: str) -> list[str]:
    """The words of the normal form; punctuation and underscores separate, digits are words too."""
    return _WORD.findall(normal(text))


def stem(word: str) -> str:
    """A word without its ending: "numbers", "numbered" -> "number"; short words stay."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _SHORTEST_STEM:
            cut = word[: -len(suffix)]
            # "deleting" -> "delet", as "delete" does; "stopping" -> "stop".
            return cut[:-1] if len(cut) > _SHORTEST_STEM and cut[-1] == cut[-2] else cut
    return word


def content_stems(text: str) -> list[str]:
    """Stems of the words that carry meaning, in order, repeats kept.

    Where words have no edges (주소는 holds 주소) each pair of characters stands for a stem.
    """
    found: list[str] = []
    for word in words(text):
        if word in STOP_WORDS:
            continue
        if word.isascii() or UNSPACED.search(word) is None:
            found.append(stem(word))
        else:
            found.extend(pairs(word))
    return found


def pairs(word: str) -> list[str]:
    """Each two neighbouring characters of a word; a single one by itself."""
    return [word[i : i + 2] for i in range(max(1, len(word) - 1))]


def keys(text: str) -> set[str]:
    """What a text is found by: its words, and the pairs of those without edges."""
    found = set(words(text))
    for word in list(found):
        if not word.isascii() and UNSPACED.search(word) is not None:
            found.update(pairs(word))
    return found


def quoted(text: str) -> Iterator[Span]:
    """What stands in quotation marks, without the marks and a comma or full stop inside of them."""
    for match in _QUOTED.finditer(text):
        inner = match[0][1:-1]
        trimmed = inner.strip().rstrip(",.;")
        if trimmed:
            start = match.start() + 1 + inner.index(trimmed[0])
            yield Span(trimmed, start, start + len(trimmed))


def without_quotes(text: str, filler: str = "x") -> str:
    """The text with every character inside of quotation marks replaced; its length is kept.

    What somebody only quotes must not be taken for what they say.
    """
    return _QUOTED.sub(lambda m: m[0][0] + filler * (len(m[0]) - 2) + m[0][-1], text)


def sentences(text: str) -> list[Span]:
    """The sentences of a text; a full stop inside of a quotation or an abbreviation ends none."""
    masked = without_quotes(text)
    ends = [
        match.end()
        for match in _SENTENCE_END.finditer(masked)
        if not _ABBREVIATION.search(masked[: match.end()][-12:])
    ]
    return list(_cut(text, [0, *ends, len(text)]))


def clauses(span: Span) -> list[Span]:
    """A sentence cut at its semicolons outside of quotation marks."""
    masked = without_quotes(span.text)
    cuts = [match.end() for match in re.finditer(r"[;；]", masked)]
    parts = _cut(span.text, [0, *cuts, len(span.text)])
    return [Span(part.text, part.start + span.start, part.end + span.start) for part in parts]


def share(wanted: Iterable[str], held: Iterable[str]) -> float:
    """The share of `wanted` that `held` has; 0 where nothing is wanted."""
    of = set(wanted)
    return len(of & set(held)) / len(of) if of else 0.0


def _cut(text: str, edges: list[int]) -> Iterator[Span]:
    for start, end in pairwise(edges):
        part = text[start:end]
        if part.strip():
            lead = len(part) - len(part.lstrip())
            trimmed = part.strip()
            yield Span(trimmed, start + lead, start + lead + len(trimmed))
