"""The full-text index in SQLite: one FTS5 table a namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, bindparam, column, func, literal_column, select, table
from sqlalchemy import text as sql

from memory.text.tokens import Groups, Phrase, Row

#: A mark of every row, for queries that some of their terms need not match.
_EVERY = "every"
_COLUMNS = {"text": "words rest", "words": "words", "marks": "marks"}


class SqliteIndex:
    """The index of one namespace, in an open transaction."""

    def __init__(self, connection: Connection, namespace_id: int) -> None:
        self._connection = connection
        self._name = f"lexical_{namespace_id:d}"

    def create(self) -> None:
        """Make it."""
        columns = "words, rest, marks, tokenize='ascii'"
        self._connection.execute(sql(f"CREATE VIRTUAL TABLE {self._name} USING fts5({columns})"))
        # Deleted terms are overwritten in the index at once, not at some later merge.
        self._tell("secure-delete", 1)

    def drop(self) -> None:
        """Take it away."""
        self._connection.execute(sql(f"DROP TABLE IF EXISTS {self._name}"))

    def add(self, rows: Sequence[Row]) -> None:
        """Index text rows."""
        values = []
        for row in rows:
            words, rest, marks = self.told(row)
            values.append({"id": row.text_id, "words": words, "rest": rest, "marks": marks})
        columns, names = "rowid, words, rest, marks", ":id, :words, :rest, :marks"
        self._connection.execute(
            sql(f"INSERT INTO {self._name} ({columns}) VALUES ({names})"), values
        )

    def remove(self, text_ids: Iterable[int]) -> int:
        """Take text rows out; how many there were."""
        gone = sql(f"DELETE FROM {self._name} WHERE rowid = :id")
        return sum(self._connection.execute(gone, {"id": id_}).rowcount for id_ in text_ids)

    def tidy(self) -> None:
        """Write the index anew."""
        self._connection.execute(
            sql(f"INSERT INTO {self._name} ({self._name}) VALUES ('optimize')")
        )

    def scored(
        self,
        terms: Sequence[Phrase],
        among: Sequence[Phrase],
        rows: Sequence[int] | None = None,
    ) -> Select[tuple[int, float]]:
        """The rows that have any of the terms `among`, as (text_id, score): the larger, the better.

        All terms count for the score. With `rows`, only of these text rows.
        """
        groups = [list(among)]
        if len(terms) > len(among):
            # What is in every row tells nothing apart: BM25 gives it next to no weight.
            others = [term for term in terms if term not in among]
            groups.append([*others, Phrase("marks", (_EVERY,))])
        # The smaller, the better, says FTS5 of its bm25().
        found = self._matching(groups, -func.bm25(literal_column(self._name)))
        if rows is None:
            return found
        # The plus keeps SQLite from asking the index once a row, each time for all its statistics.
        return found.where(literal_column(f"+{self._name}.rowid").in_(rows))

    def holders(self, groups: Groups) -> Select[tuple[int]]:
        """The rows in which every group holds, as (text_id)."""
        return self._matching(groups)

    def stored(self) -> Iterator[tuple[int, Any]]:
        """What it holds of every text row, to compare with `told`.

        Raises sqlite3's error for a damaged file if the index itself is not what its rows say.
        """
        self._tell("integrity-check", 0)
        rows = sql(f"SELECT rowid, words, rest, marks FROM {self._name}")
        for row in self._connection.execute(rows):
            yield row[0], tuple(row[1:])

    def told(self, row: Row) -> Any:
        """What `stored` gives for a row that was added."""
        return " ".join(row.words), " ".join(row.rest), " ".join([_EVERY, *row.marks])

    def _tell(self, command: str, value: int) -> None:
        self._connection.execute(
            sql(f"INSERT INTO {self._name} ({self._name}, rank) VALUES (:command, :value)"),
            {"command": command, "value": value},
        )

    def _matching(self, groups: Groups, *more: Any) -> Select[Any]:
        source = table(self._name, column("rowid"))
        asked = " AND ".join(f"({' OR '.join(map(_asked, group))})" for group in groups)
        match = literal_column(self._name).op("MATCH")(bindparam(None, asked, unique=True))
        columns = [source.c.rowid.label("text_id"), *(c.label("score") for c in more)]
        return select(*columns).select_from(source).where(match)


def _asked(phrase: Phrase) -> str:
    # Tokens are letters and digits only: nothing in them is an operator of FTS5's.
    return f'{{{_COLUMNS[phrase.where]}}} : "{" ".join(phrase.tokens)}"'
