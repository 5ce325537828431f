"""The full-text index in PostgreSQL: one table of tsvectors for the whole bank, with a GIN index.

A tsvector has its limits: positions up to 16,383, 255 of them for a lexeme, and a megabyte in all.
A text beyond them is stored as far as they go, and its row says so: 1 where positions are missing
(phrases cannot be asked for, only their words), 2 where words are (it may hold anything).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    SmallInteger,
    Table,
    and_,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from memory.text.tokens import Groups, Phrase, Row

_POSITIONS, _OF_ONE = 16_383, 255
_LEXEMES = 40_000  # 10 digits and 4 to 6 bytes more each: well below a megabyte

_FEW = 4  # terms that are asked for together

WHOLE, NO_PHRASES, CUT_OFF = 0, 1, 2

_CREATE = (
    "CREATE TABLE IF NOT EXISTS lexical_words (text_id bigint PRIMARY KEY, namespace_id bigint NOT "
    "NULL, words tsvector NOT NULL, rest tsvector NOT NULL, marks tsvector NOT NULL, "
    "missing smallint NOT NULL)",
    "CREATE INDEX IF NOT EXISTS lexical_words_gin ON lexical_words USING gin (words, rest, marks)",
    "CREATE INDEX IF NOT EXISTS lexical_words_missing ON lexical_words (namespace_id, missing) "
    "WHERE missing > 0",
)

_WORDS = Table(
    "lexical_words",
    MetaData(),
    Column("text_id", BigInteger, primary_key=True),
    Column("namespace_id", BigInteger),
    Column("words", TSVECTOR),
    Column("rest", TSVECTOR),
    Column("marks", TSVECTOR),
    Column("missing", SmallInteger),
)


_COLUMNS = {
    "text": (_WORDS.c.words, _WORDS.c.rest),
    "words": (_WORDS.c.words,),
    "marks": (_WORDS.c.marks,),
}


class PostgresIndex:
    """The index of one namespace, in an open transaction."""

    def __init__(self, connection: Connection, namespace_id: int) -> None:
        self._connection = connection
        self._namespace_id = namespace_id
        self._mine = _WORDS.c.namespace_id == namespace_id

    def create(self) -> None:
        """Make it."""
        for statement in _CREATE:
            self._connection.execute(sql(statement))

    def drop(self) -> None:
        """Take it away."""
        self._connection.execute(delete(_WORDS).where(self._mine))

    def add(self, rows: Sequence[Row]) -> None:
        """Index text rows."""
        values = []
        for row in rows:
            words, rest, marks, missing = self.told(row)
            values.append(
                {
                    "text_id": row.text_id,
                    "namespace_id": self._namespace_id,
                    "words": _literal(words),
                    "rest": _literal(rest),
                    "marks": _literal(marks),
                    "missing": missing,
                }
            )
        self._connection.execute(insert(_WORDS), values)

    def remove(self, text_ids: Iterable[int]) -> int:
        """Take text rows out; how many there were."""
        gone = self._mine & _WORDS.c.text_id.in_(list(text_ids))
        return self._connection.execute(delete(_WORDS).where(gone)).rowcount

    def tidy(self) -> None:
        """Nothing: a VACUUM does."""

    def scored(
        self,
        terms: Sequence[Phrase],
        among: Sequence[Phrase],
        rows: Sequence[int] | None = None,
    ) -> Select[tuple[int, float]]:
        """The rows that have any of the terms `among`, as (text_id, score): the larger, the better.

        All terms count for the score. With `rows`, only of these text rows.
        """
        column = _WORDS.c[terms[0].where]
        rank = func.ts_rank(column, _any_of(terms)).label("score")
        matches = column.op("@@")(_any_of(among))
        mine = self._mine if rows is None else self._mine & _WORDS.c.text_id.in_(rows)
        return select(_WORDS.c.text_id, rank).where(mine, matches)

    def holders(self, groups: Groups) -> Select[tuple[int]]:
        """The rows in which every group may hold, as (text_id)."""
        if len(groups) == 1 and len(groups[0]) > _FEW:
            # Without statistics, many rare terms in one question look like most of the table.
            parts = [self._holders([[phrase]]) for phrase in groups[0]]
            return select(union_all(*parts).subquery().c.text_id).distinct()
        return self._holders(groups)

    def _holders(self, groups: Groups) -> Select[tuple[int]]:
        held = and_(*map(_held, groups))
        return select(_WORDS.c.text_id).where(self._mine, or_(held, _WORDS.c.missing == CUT_OFF))

    def stored(self) -> Iterator[tuple[int, Any]]:
        """What it holds of every text row, to compare with `told`."""
        c = _WORDS.c
        rows = select(c.text_id, c.words, c.rest, c.marks, c.missing).where(self._mine)
        for id_, words, rest, marks, missing in self._connection.execute(rows):
            yield id_, (*map(_lexemes, (words, rest, marks)), missing)

    def told(self, row: Row) -> Any:
        """What `stored` gives for a row that was added."""
        words, words_missing = _positions(row.words)
        rest, rest_missing = _positions(row.rest)
        marks: dict[str, list[int]] = {mark: [] for mark in row.marks[:_LEXEMES]}
        missing = max(words_missing, rest_missing)
        return words, rest, marks, CUT_OFF if len(row.marks) > _LEXEMES else missing


def _positions(tokens: Sequence[str]) -> tuple[dict[str, list[int]], int]:
    """Lexemes with their positions, as far as they fit, and what is missing."""
    found: dict[str, list[int]] = {}
    missing = WHOLE
    for position, token in enumerate(tokens, start=1):
        if token not in found:
            if len(found) == _LEXEMES:
                return found, CUT_OFF
            found[token] = []
        if position <= _POSITIONS and len(found[token]) < _OF_ONE:
            found[token].append(position)
        else:
            missing = NO_PHRASES
    return found, missing


def _literal(lexemes: dict[str, list[int]]) -> str:
    return " ".join(
        f"{name}:{','.join(map(str, places))}" if places else name
        for name, places in lexemes.items()
    )


def _lexemes(stored: str) -> dict[str, list[int]]:
    parts = (part.rpartition("'") for part in stored.split())
    return {
        name.strip("'"): [int(place) for place in places[1:].split(",")] if places else []
        for name, _, places in parts
    }


def _held(group: Sequence[Phrase]) -> ColumnElement[bool]:
    """Whether any phrase of a group may be held, asked once for all phrases of a column."""
    questions: list[ColumnElement[bool]] = []
    for where, columns in _COLUMNS.items():
        phrases = [phrase.tokens for phrase in group if phrase.where == where]
        if not phrases:
            continue
        exact = _query(" | ".join(f"({' <-> '.join(tokens)})" for tokens in phrases))
        questions += [column.op("@@")(exact) for column in columns]
        if any(len(tokens) > 1 for tokens in phrases):
            loose = _query(" | ".join(f"({' & '.join(tokens)})" for tokens in phrases))
            found = or_(*(column.op("@@")(loose) for column in columns))
            questions.append(and_(_WORDS.c.missing > WHOLE, found))
    return or_(*questions)


def _any_of(terms: Sequence[Phrase]) -> ColumnElement[Any]:
    return _query(" | ".join(term.tokens[0] for term in terms))


def _query(tokens: str) -> ColumnElement[Any]:
    # Tokens are letters and digits only: nothing in them is an operator or ends a text. They are
    # written out: a prepared statement would be planned without them, and read the whole table.
    return literal_column(f"CAST('{tokens}' AS tsquery)", TSQUERY)
