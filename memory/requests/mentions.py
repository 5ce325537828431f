"""Whether a text states a value: in the same words, or in the shortened form people use for it.

"The line ending in 0174" states 415-555-0174 to everybody who saw the number once, "locker 512" the
Simulation Locker 512, "the 2,200 figure" 2,200 USD. A forgotten value must be gone in these forms
too; a longer value that merely contains it (4155550174 in 94155550174) is another value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from memory.requests.values import MONTHS, values_in
from memory.requests.words import STOP_WORDS, UNSPACED, content_stems, keys, normal, words

# What tells that a few digits stand for the end of a number.
_TAIL_TALK = re.compile(r"\b(?:end|ends|ended|ending|last|final|rest|digits?|suffix|finish\w*)\b")
_EXTENSION = re.compile(r"^(?:ext|extension|x)$")
_TAIL = 4  # digits that people quote of a number
_LONG_WORDING = 4  # content words from which on a wording is recognised when slightly changed
_SLACK = 1.5  # how much longer the changed wording may be
_MONTH_NAMES = frozenset(MONTHS)


class Mention:
    """One value, ready to be looked for."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.tokens = words(value)
        found = values_in(value)
        whole = len(found) == 1 and len(found[0].text) >= len(value.strip()) - 1
        self.kind = found[0].kind if whole else "wording"
        if len(self.tokens) == 1 and value.strip()[:1].isupper() and value.strip().isalpha():
            self.kind = "name"  # also "June", which alone could be a month
        self._exact = _exact(self.tokens, value)
        self._short = self._short_forms()
        self._stems = content_stems(value)

    @property
    def words(self) -> frozenset[str]:
        """Words one of which every text has that states the value, in whatever form."""
        if UNSPACED.search(self.value) is not None:
            # 주소 stands in 주소는, so that only pairs of characters are sure to be there.
            return frozenset(keys(self.value)) - {t for t in self.tokens if len(t) > 2}
        digits = "".join(t for t in self.tokens if t.isdigit())
        forms = {*self.tokens, digits, digits[-10:], digits[-7:], digits[-_TAIL:]}
        telling = {form for form in forms if len(form) > 1 and form not in STOP_WORDS}
        return frozenset(telling or {form for form in forms if form})

    def exact_in(self, text: str) -> bool:
        """Whether the text holds the value: whole words, white space and punctuation aside."""
        if self._exact is None:
            return False
        if self.kind == "name" and len(self.tokens) == 1:
            return self._names(text)
        return self._exact.search(normal(text)) is not None

    def near_in(self, text: str) -> bool:
        """Whether the text states the value in a shortened or slightly changed form."""
        form = normal(text)
        if any(pattern.search(form) for pattern in self._short):
            return True
        if self.kind == "phone" and _TAIL_TALK.search(form):
            return re.search(rf"(?<!\w){self._digits()[-_TAIL:]}(?!\w)", form) is not None
        if self.kind == "wording" and len(self._stems) >= _LONG_WORDING:
            return _within(self._stems, content_stems(text))
        return False

    def in_(self, text: str) -> bool:
        """Exact or near."""
        return self.exact_in(text) or self.near_in(text)

    def _names(self, text: str) -> bool:
        """A name of one word, unless it is part of a longer name ("Elena" in "Elena Morales")."""
        plain = unicodedata.normalize("NFKC", text)
        for match in re.finditer(rf"(?<!\w){re.escape(self.value.strip())}(?!\w)", plain, re.I):
            month = self.value.strip().casefold() in _MONTH_NAMES
            if month and (re.match(r"\.? \d", plain[match.end() :]) or match[0][0].islower()):
                continue
            if not re.match(r"\s[A-Z][a-z]+", plain[match.end() :]):
                return True
        return False

    def _digits(self) -> str:
        return "".join(c for c in self.value if c.isdigit())

    def _short_forms(self) -> list[re.Pattern[str]]:
        shorts: list[str] = []
        if self.kind == "phone" and len(self._digits()) > 7:
            shorts.append(_spaced(self._digits()[-7:-4], self._digits()[-4:]))
        elif self.kind == "amount":
            figures = re.sub(r"[^\d.]", "", self.value)
            if len(figures) >= _TAIL:
                whole, _, cents = figures.partition(".")
                shorts.append(
                    ",?".join(_threes(whole)) + (rf"\.{cents}" if cents else r"(?:\.00)?")
                )
        elif self.kind == "code":
            shorts.extend(map(_code, _code_tails(self.value)))
        elif self.kind == "labelled" and len(self.tokens) >= 2:
            label, number = self.tokens[-2:]
            label = r"(?:ext\.?|extension|x)" if _EXTENSION.match(label) else re.escape(label)
            shorts.append(rf"{label}[\W_]*{re.escape(number)}")
        return [re.compile(rf"(?<![\w]){short}(?![\w]|[.,]\d)") for short in shorts]


@lru_cache(maxsize=4096)
def mention(value: str) -> Mention:
    """The `Mention` of a value, made once."""
    return Mention(value)


def holds_any(text: str, values: Iterable[str]) -> bool:
    """Whether the text states one of the values, exactly or nearly."""
    return any(mention(value).in_(text) for value in values)


def same_value(value: str, kept: Iterable[str]) -> bool:
    """Whether a value is one of these, punctuation aside."""
    told = words(value)
    return any(told == words(other) for other in kept)


def _exact(tokens: list[str], value: str) -> re.Pattern[str] | None:
    if not tokens:
        return None
    body = re.escape(tokens[0])
    for before, after in pairwise(tokens):
        # 415 555 0186 is 415-555-0186 is 4155550186; words need something between them.
        loose = before.isdigit() and after.isdigit()
        body += (r"[\W_]{0,3}" if loose else r"[\W_]+") + re.escape(after)
    if UNSPACED.search(value):
        return re.compile(body.replace(r"[\W_]+", r"[\W_]*"))
    # An underscore belongs to a code, so that a code is not found inside of a longer one.
    return re.compile(rf"(?<!\w){body}(?!\w|[.,]\d)")


def _spaced(*groups: str) -> str:
    return r"[ .-]?".join(groups)


def _threes(digits: str) -> list[str]:
    head = len(digits) % 3
    return [part for part in (digits[:head], *_chunks(digits[head:])) if part]


def _chunks(digits: str) -> list[str]:
    return [digits[i : i + 3] for i in range(0, len(digits), 3)]


def _code_tails(code: str) -> list[str]:
    """The ends of a code that are told alone: `7Q4M-H2LA` and `H2LA` of `tdx_TMP_7Q4M-H2LA`."""
    tails = []
    after = code.rsplit("_", 1)[-1]
    if after != code and len(after) >= 6 and any(c.isdigit() for c in after):
        tails.append(after)
    last = re.split(r"[-_]", code)[-1]
    mixed = any(c.isdigit() for c in last) and any(c.isalpha() for c in last)
    if last != code and len(last) >= _TAIL and mixed:
        tails.append(last)
    return tails


def _code(tail: str) -> str:
    return r"[\W_]?".join(re.escape(part) for part in words(tail))


def _within(wanted: list[str], held: list[str]) -> bool:
    """Whether nearly all wanted stems stand close together in the text."""
    need = set(wanted)
    least = len(need) if len(need) <= _LONG_WORDING else len(need) - 1
    span = round(len(wanted) * _SLACK)
    places = [i for i, stem in enumerate(held) if stem in need]
    return any(len(need.intersection(held[start : start + span])) >= least for start in places)
