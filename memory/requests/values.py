"""Values inside of texts: what they are, and which other texts state the same one.

A value is what a person can ask to forget by naming it: a telephone number, a token, an amount, a
room, a name, a quoted wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from memory.requests.words import quoted, without_quotes

MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
# Words that begin a sentence or an order with a capital and are no name.
_COMMON = (
    "i a an the this that these those it he she we they you my your his her our their please "
    "delete remove erase forget scrub wipe purge drop discard clear retire stop keep do don "
    "also and or but yes no ok okay sure thanks thank hi hello hey now then after before "
    "once when while as for from in on at by to of with use can could would will what which "
    "who how why where is are was were did does has have had only just all any some every "
    "everything anything deletion request requests instruction confirmed acknowledged "
    "deleted removed usd eur gbp am pm id pin dr mr mrs ms prof if so let there here not new "
    "old current earlier previous temporary cleanup note update"
)
_NO_NAME = frozenset(_COMMON.split()) | frozenset(MONTHS) | frozenset(WEEKDAYS)

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")),
    ("link", re.compile(r"https?://\S+[^\s.,;)]")),
    (
        "address",
        re.compile(
            r"\b\d{1,5}[a-z]?,? (?:[A-Z][\w'’]*\.? ){1,3}"
            r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Boulevard|Blvd|Way|Court|Square|Terrace"
            r"|Close|Place|Alley|Row|Hill)\b"
            r"|\b[A-Z][\wäöüß]*(?:straße|strasse|weg|platz|allee) \d{1,4}[a-z]?\b"
        ),
    ),
    (
        "amount",
        re.compile(
            r"[$€£¥₩]\s?\d[\d,]*(?:\.\d+)?[kKmM]?\b"
            r"|\b\d[\d,]*(?:\.\d+)?\s?(?:USD|EUR|GBP|KRW|JPY|CNY|dollars?|euros?|pounds?|won|yen)\b"
            r"|\d[\d,]*\s?[원元円]"
        ),
    ),
    ("date", re.compile(r"\b\d{4}-\d\d-\d\d\b")),
    (
        "phone",
        re.compile(
            r"(?<![\w-])\+?(?:\d{1,3}[ .-])?(?:\(\d{2,4}\)[ .-]?|\d{2,4}[ .-])?\d{3,4}[ .-]\d{4}"
            r"(?![\w-])|(?<![\w-])\+?\d{9,15}(?![\w-])"
        ),
    ),
    (
        "date",
        re.compile(
            rf"\b{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?\b"
            rf"|\b\d{{1,2}}(?:st|nd|rd|th)? {_MONTH}(?:,? \d{{4}})?\b"
        ),
    ),
    (
        "code",
        re.compile(
            r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])(?=[\w-]{5,})"
            r"[A-Za-z0-9]+(?:[-_]+[A-Za-z0-9]+)*(?![\w-])"
        ),
    ),
    (
        # A label and its number, with the proper words before it: "room 12", "Ridge Annex Desk 14".
        "labelled",
        re.compile(
            r"\b(?:[A-Z][\w'’-]*\s+){0,4}(?i:room|suite|desk|locker|bay|ext(?:ension)?\.?"
            r"|apartment|apt"
            r"|unit|floor|pin|code|passcode|box|gate|seat|ward|bed|account|case|ticket|order|id)\s+"
            r"(?:(?i:no\.?|number|is)\s+|#\s*)?\d[\w-]*\b"
            r"|\b(?:[A-Z][\w'’-]*\s+){2,5}\d{1,6}\b"
        ),
    ),
    (
        "name",
        re.compile(
            r"\b[A-Z][\w'’]*(?:-[A-Z][\w'’]*)*"
            r"(?:\s+(?:(?:of|the|de|van|von|der|for)\s+)?[A-Z][\w'’]*(?:-[A-Z][\w'’]*)*)*"
        ),
    ),
)
# "8-week", "10th", "6pm": a number with a unit is no code.
_UNIT = re.compile(r"\d+(?:st|nd|rd|th|am|pm|mg|mcg|kg|km|cm|ml|min|hrs?|x|k)|\d+(?:-[a-z]+)+")


@dataclass(frozen=True, slots=True)
class Value:
    """One value with its place in the text it was found in."""

    kind: str
    text: str
    start: int
    end: int


def values_in(text: str) -> list[Value]:
    """The values of a text in their order; where two overlap, the more specific kind stands."""
    found = [Value("wording", span.text, span.start, span.end) for span in quoted(text)]
    masked = without_quotes(text, " ")
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(masked):
            for value in _cleaned(kind, masked, match.start(), match.end()):
                if not any(v.start < value.end and value.start < v.end for v in found):
                    found.append(value)
    return sorted(found, key=lambda value: value.start)


def _cleaned(kind: str, text: str, start: int, end: int) -> Iterator[Value]:
    matched = text[start:end]
    if kind == "code":
        if _UNIT.fullmatch(matched) or not (re.search(r"[A-Z_]", matched) or matched[0].isalpha()):
            return
    elif kind == "phone":
        if sum(c.isdigit() for c in matched) < 7:
            return
    elif kind in ("name", "labelled"):
        cut = _leading_common_words(matched)
        if kind == "labelled":  # "PIN 4921": the label stays, however common
            cut = min(cut, matched.rindex(matched.split()[-2]))
        start += cut
        matched = matched[cut:]
        first = matched.split()[0].casefold() if matched.split() else ""
        if kind == "name" and (first in _NO_NAME or len(matched) < 2):
            return
        if kind == "labelled" and len(matched.split()) < 2:
            return
    yield Value(kind, matched, start, end)


def _leading_common_words(matched: str) -> int:
    """How many characters of a capitalised run are words like "Delete" or "The"."""
    cut = 0
    for word in re.finditer(r"\S+\s*", matched):
        bare = re.split(r"['’]", word[0].strip())[0].casefold()
        if bare not in _NO_NAME:
            break
        cut = word.end()
    return cut
