"""What the full-text index holds in place of words: keyed digests, 32 bits each.

An index keeps pieces of its terms where a deletion does not reach (SQLite's FTS5 keeps a separator
for every page, often a whole word; a B-tree keeps copies in the gaps of its pages), so no word may
stand in it at all. The digests of equal words in two namespaces have nothing in common. Of a
vocabulary of a million words about one in 4,000 shares its digest with another: what depends on the
words themselves is compared with the texts.

Three columns: `words` (query and plan), `rest` (tags, source, external id, metadata), and `marks`:
the sketch by which copies are found (`g...`), how long numbers begin (`n...`), and for trigrams the
single characters and pairs, in the words (`s...`) and in the rest (`r...`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from memory.keys import normal_form
from memory.text.matching import (
    LONG,
    STOP_WORDS,
    content_words,
    number_starts,
    pieces,
    words_of,
)
from memory.text.sketch import Sketcher
from memory.text.stemming import Stems

#: The most terms of one query; a longer one is ranked by its first words.
MAX_TERMS = 256
#: The most terms of one phrase that is looked for; what was found is compared whole.
_MAX_PHRASE = 32


class Entry(NamedTuple):
    """What the index is told of one text row."""

    text_id: int
    words: str
    rest: str


class Row(NamedTuple):
    """What it holds of it: tokens, in order in the first two."""

    text_id: int
    words: list[str]
    rest: list[str]
    marks: list[str]


class Phrase(NamedTuple):
    """Tokens in a row, in `text` (words or rest) or in one of the columns `words` and `marks`."""

    where: str
    tokens: tuple[str, ...]


#: Every group must hold, each by any of its phrases.
Groups = list[list[Phrase]]


class Cutter:
    """Cuts the texts and questions of one namespace; remembers words for as long as it lives."""

    def __init__(self, secret: bytes, namespace_id: int, style: str) -> None:
        name = f"lexical\x00{namespace_id}".encode()
        self._key = hashlib.blake2b(name, key=secret, digest_size=32).digest()
        self._trigrams = style == "trigrams"
        self._sketcher = Sketcher(self._key)
        self._stems = Stems()
        self._known: dict[str, str] = {}

    def row(self, entry: Entry) -> Row:
        """A text row's tokens."""
        said, rest = normal_form(entry.words), normal_form(entry.rest)
        marks = self._copies(said)
        for plain in (said, rest):
            marks += [self._mark("n", digits) for digits in number_starts(plain)]
        if self._trigrams:
            marks += [self._mark("s", part) for part in _short_parts(said)]
            marks += [self._mark("r", part) for part in _short_parts(rest)]
        return Row(entry.text_id, self._cut(said), self._cut(rest), list(dict.fromkeys(marks)))

    def copies(self, text: str) -> list[str]:
        """The marks of which a near-verbatim copy of a text has at least one."""
        return self._copies(normal_form(text))

    def ranked(self, query: str) -> list[Phrase]:
        """The terms a query is ranked by, any of which a hit has; empty without words."""
        plain = normal_form(query)
        if not self._trigrams:
            found = list(dict.fromkeys(words_of(plain)))
            kept = [word for word in found if word not in STOP_WORDS] or found
            return self._terms(self._word(word) for word in kept)
        if len(plain) > 2:
            return self._terms(self._cut(plain))
        return [Phrase("marks", (self._mark("s", plain),))] if plain else []

    def content(self, text: str) -> dict[str, str]:
        """The content words of a text with their tokens; only for words, not for trigrams."""
        return {stem: self._digest(stem) for stem in content_words(text, self._stems)}

    def held(self, string: str) -> Groups | None:
        """What a text that holds a string must hold; None: it cannot be told from the index."""
        parts = pieces(string)
        starts = [part.words[:LONG] for part in parts if part.kind == "long"]
        if starts:
            return [[Phrase("marks", (self._mark("n", start),))] for start in starts]
        groups: Groups = []
        for part in parts:
            if part.kind == "thousands":
                plain, split = part.words, f"{part.words[:-3]},{part.words[-3:]}"
                groups.append([*self._phrases(plain), *self._phrases(split)])
            elif phrases := self._phrases(part.words):
                groups.append(phrases)
        return groups or None

    def _phrases(self, part: str) -> list[Phrase]:
        if self._trigrams and len(part) < 3:
            return [Phrase("marks", (self._mark(kind, part),)) for kind in "sr"]
        cut = self._cut(part)
        return [Phrase("text", tuple(cut[:_MAX_PHRASE]))] if cut else []

    def _terms(self, tokens: Iterable[str]) -> list[Phrase]:
        unique = list(dict.fromkeys(tokens))[:MAX_TERMS]
        return [Phrase("words", (token,)) for token in unique]

    def _copies(self, plain: str) -> list[str]:
        return [f"g{band:08x}" for band in self._sketcher.sketch(plain)]

    def _cut(self, plain: str) -> list[str]:
        if self._trigrams:
            return [self._digest(plain[i : i + 3]) for i in range(len(plain) - 2)]
        return [self._word(word) for word in words_of(plain)]

    def _word(self, word: str) -> str:
        return self._digest(self._stems[word])

    def _mark(self, kind: str, text: str) -> str:
        return kind + self._digest(f"{kind}\x00{text}")

    def _digest(self, text: str) -> str:
        found = self._known.get(text)
        if found is None:
            digest = hashlib.blake2b(text.encode(), key=self._key, digest_size=4)
            found = self._known[text] = digest.hexdigest()
        return found


def _short_parts(plain: str) -> list[str]:
    """Every character and every two in a row, each once."""
    return list(dict.fromkeys([*plain, *(plain[i : i + 2] for i in range(len(plain) - 1))]))
