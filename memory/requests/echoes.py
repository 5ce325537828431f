"""What was forgotten, as keyed digests: enough to notice that a turn repeats it, not to read it.

After a value is gone people still speak of it: they confirm the deletion, or ask "was the deleted
number the one ending in 0174?". To store such a turn would bring the value back. A turn that tells
the value anew is stored: to forget is no ban on learning.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator

from memory.requests.mentions import mention
from memory.requests.wording import QUESTION
from memory.requests.words import normal, without_quotes, words

_LONGEST = 24  # words of a value that are compared; a longer one is known by its beginning
_TAIL = 4
# A turn that looks back, denies or asks tells nothing new.
_LOOKS_BACK = re.compile(
    r"\b(?:delet\w+|remov\w+|eras\w+|forgot\w*|forget\w*|purg\w+|scrub\w+|clear(?:ed|ing)|retired"
    r"|cleanup"
    r"|clean-up|old|older|earlier|previous|previously|former|formerly|before|used to|was|were"
    r"|no longer"
    r"|not|no|never|none|n't|without|instead of|gone|asked whether|asked if|replac\w+|history"
    r"|archiv\w+"
    r"|recover\w*|restor\w+|reconstruct\w*|revis\w+|supersed\w+|obsolete|stale)\b|n't\b"
)
_ASKS = re.compile(
    r"\b(?:tell me|confirm|remind me|give me|recover|restore|complete|finish|fill in|verify"
    r"|compare|repeat"
    r"|read back|yes or no|just say|spell|paste|send me|whether)\b"
)


class Forgotten:
    """Digests of the values forgotten in one namespace."""

    def __init__(self, key: bytes, digests: Iterable[tuple[int, str]] = ()) -> None:
        self._key = key
        self._digests: set[tuple[int, str]] = {(size, digest) for size, digest in digests}

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, strings: Iterable[str]) -> None:
        """Remember the digests of these values."""
        for string in strings:
            for form in _forms(string):
                self._digests.add((len(form), self._digest(form)))

    def digests(self) -> list[tuple[int, str]]:
        """(words, digest) of every form, sorted: what may be kept on disk."""
        return sorted(self._digests)

    def named_in(self, text: str) -> bool:
        """Whether a text states a forgotten value, in whatever tone."""
        told = words(text)
        for size in {size for size, _ in self._digests}:
            for start in range(len(told) - size + 1):
                if (size, self._digest(tuple(told[start : start + size]))) in self._digests:
                    return True
        return False

    def echoed_by(self, text: str) -> bool:
        """Whether a turn only speaks of a forgotten value, and does not tell it anew."""
        return only_speaks_of_it(text) and self.named_in(text)

    def _digest(self, form: tuple[str, ...]) -> str:
        return hmac.new(self._key, " ".join(form).encode(), hashlib.sha256).hexdigest()[:32]


def only_speaks_of_it(text: str) -> bool:
    """Whether a turn asks, denies or looks back instead of telling something."""
    said = normal(without_quotes(text))
    return bool(QUESTION.search(said) or _ASKS.search(said) or _LOOKS_BACK.search(said))


def _forms(string: str) -> Iterator[tuple[str, ...]]:
    """The ways in which a value is written: as it is, joined, and by its end."""
    told = words(string)
    yield tuple(told[:_LONGEST])
    one = mention(string)
    digits = "".join(word for word in told if word.isdigit())
    if one.kind == "phone":
        yield (digits,)
        yield (digits[-_TAIL:],)
        if len(digits) > 7:
            yield (digits[-7:-_TAIL], digits[-_TAIL:])
    elif one.kind == "amount" and len(digits) >= _TAIL:
        yield tuple(word for word in told if word.isdigit())
        yield (digits,)
    elif one.kind == "code":
        if len(told[-1]) >= _TAIL:
            yield (told[-1],)
    elif one.kind == "labelled" and len(told) > 2:
        yield tuple(told[-2:])
