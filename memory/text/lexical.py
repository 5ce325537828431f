"""The full-text index of a namespace: BM25 over what cases say, in the bank's own transactions.

SQLite has one FTS5 table a namespace, for its BM25 would otherwise count the documents of all
tenants; PostgreSQL has one table with a GIN index, and its `ts_rank` counts no documents. Words are
cut, stemmed and turned into keyed digests before either engine sees them (`tokens.py`), so the same
cases match on both; only the order differs. A case's length, in BM25, counts its tags, source and
metadata too.

Besides ranking, the index answers what a request to forget must know and may not guess: which cases
can hold a string, and which can be near-verbatim copies of a text.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Select,
    and_,
    func,
    insert,
    select,
    true,
)

from memory.checks import checked_query
from memory.errors import BankUnavailable
from memory.schema import cases, meta, texts
from memory.text.lexical_postgres import PostgresIndex
from memory.text.lexical_sqlite import SqliteIndex
from memory.text.matching import word_list
from memory.text.tokens import Cutter, Entry, Groups, Phrase, Row

__all__ = [
    "Entry",
    "add",
    "alike",
    "check",
    "covering",
    "create",
    "drop",
    "holding",
    "remove",
    "scores",
    "search",
    "word_list",
]

#: The row of `meta` with the secret of the index's digests.
SECRET = "lexical_secret"
#: How often a word is counted to find the rare ones: beyond, it is common.
_COMMON = 20_000
#: As many cases are scored at a time; either engine takes more values.
_AT_ONCE = 10_000
#: With trigrams, as many cases are looked at for the share of a text's words that they hold.
_BEST = 5_000


class Index(Protocol):
    """The index of one namespace on one engine; see `SqliteIndex`."""

    def create(self) -> None: ...

    def drop(self) -> None: ...

    def add(self, rows: Sequence[Row]) -> None: ...

    def remove(self, text_ids: Iterable[int]) -> int: ...

    def tidy(self) -> None: ...

    def scored(
        self,
        terms: Sequence[Phrase],
        among: Sequence[Phrase],
        rows: Sequence[int] | None = None,
    ) -> Select[tuple[int, float]]: ...

    def holders(self, groups: Groups) -> Select[tuple[int]]: ...

    def stored(self) -> Iterator[tuple[int, Any]]: ...

    def told(self, row: Row) -> Any: ...


def create(connection: Connection, namespace_id: int, style: str) -> None:
    """Make the index of a new namespace; how it cuts words is said again with every call."""
    known = connection.execute(select(meta.c.value).where(meta.c.key == SECRET)).scalar()
    if known is None:
        connection.execute(insert(meta), [{"key": SECRET, "value": secrets.token_hex(32)}])
    _index(connection, namespace_id).create()


def drop(connection: Connection, namespace_id: int) -> None:
    """Take the index of a namespace away."""
    _index(connection, namespace_id).drop()


def add(connection: Connection, namespace_id: int, entries: Sequence[Entry], style: str) -> None:
    """Index text rows."""
    if entries:
        cutter = _cutter(connection, namespace_id, style)
        _index(connection, namespace_id).add([cutter.row(entry) for entry in entries])


def remove(connection: Connection, namespace_id: int, text_ids: Iterable[int]) -> int:
    """Take text rows out of the index, overwriting their terms; how many there were."""
    ids = list(text_ids)
    return _index(connection, namespace_id).remove(ids) if ids else 0


def tidy(connection: Connection, namespace_id: int) -> None:
    """Write the index anew, so that nothing of what was removed stands between its pages."""
    _index(connection, namespace_id).tidy()


def check(
    connection: Connection, namespace_id: int, entries: Iterable[Entry], style: str
) -> list[int]:
    """The text rows that the index lacks, has too many, or has otherwise; in a writing transaction.

    Args:
        connection: SQLite's own check of the index writes, if only by name.
        namespace_id: whose index.
        entries: what it should hold, made from the texts (`rows.lexical_entries`).
        style: how it cuts words.
    """
    cutter, index = _cutter(connection, namespace_id, style), _index(connection, namespace_id)
    stored = dict(index.stored())
    wrong = [e.text_id for e in entries if index.told(cutter.row(e)) != stored.pop(e.text_id, None)]
    return sorted([*wrong, *stored])


def search(
    connection: Connection,
    namespace_id: int,
    query: str,
    k: int,
    style: str,
    condition: ColumnElement[bool] | None = None,
    *,
    invalidated: bool = False,
) -> list[tuple[int, float]]:
    """The k best cases for a query by BM25 (PostgreSQL: `ts_rank`), as (case id, score).

    A hit has any of the query's words, stop words not counted unless there are no others; best
    first, ties to the lower id. No words, no hits. A query of over 256 words is ranked by the first
    256. With trigrams, a query of one or two characters finds the cases that have them.

    What has only words that over 20,000 cases have is looked at only if the query's rarer words
    give fewer than k hits.

    Args:
        connection: an open transaction.
        namespace_id: where to search.
        query: the words.
        k: how many.
        style: how the index cuts words.
        condition: on the table `cases`; further filters.
        invalidated: also cases that are kept only for history.
    """
    checked_query(query)
    terms = _cutter(connection, namespace_id, style).ranked(query)
    if not terms or k < 1:
        return []
    where: ColumnElement[bool] = true() if invalidated else cases.c.invalidated_at.is_(None)
    if condition is not None:
        where = and_(where, condition)
    rare = _rare(connection, namespace_id, terms)
    if len(rare) < len(terms):
        found = _best(connection, namespace_id, terms, rare, k, where)
        if len(found) == k:
            return found
    return _best(connection, namespace_id, terms, terms, k, where)


def scores(
    connection: Connection, namespace_id: int, query: str, ids: Sequence[int], style: str
) -> dict[int, float]:
    """What `search` gives some cases for a query, by case id; those that do not match are left out.

    Cases kept for history have no score. Where `search` only looked at what has the query's rarer
    words, its BM25 is higher than this by about a millionth.
    """
    terms = _cutter(connection, namespace_id, style).ranked(query)
    found: dict[int, float] = {}
    if not terms:
        return found
    index = _index(connection, namespace_id)
    for first in range(0, len(ids), _AT_ONCE):
        wanted = ids[first : first + _AT_ONCE]
        live = and_(cases.c.id == texts.c.case_id, cases.c.invalidated_at.is_(None))
        asked = select(texts.c.id, texts.c.case_id).join(cases, live)
        asked = asked.where(texts.c.case_id.in_(wanted), cases.c.namespace_id == namespace_id)
        owners = {int(row[0]): int(row[1]) for row in connection.execute(asked)}
        if owners:
            scored = index.scored(terms, terms, list(owners))
            found |= {owners[r.text_id]: float(r.score) for r in connection.execute(scored)}
    return found


def holding(connection: Connection, namespace_id: int, string: str, style: str) -> list[int] | None:
    """Ids of the cases that may hold a string in any of their texts; all that do are among them.

    "Hold" as `matching.holds` has it. Invalidated cases are among them: what is forgotten goes from
    history too. None: the string has no letters or digits, so that the index cannot tell.
    """
    groups = _cutter(connection, namespace_id, style).held(string)
    return None if groups is None else _case_ids(connection, namespace_id, groups)


def alike(connection: Connection, namespace_id: int, words: str, style: str) -> list[int]:
    """Ids of the cases that may say a text near-verbatim: those whose sketch meets the text's.

    "Near-verbatim" as `matching.near_verbatim` has it, of `rows.spoken`. Copies in normal form are
    always among them, others but for a chance of at most 1.2e-8 (see `sketch.py`).
    """
    marks = _cutter(connection, namespace_id, style).copies(words)
    phrases = [Phrase("marks", (mark,)) for mark in marks]
    return _case_ids(connection, namespace_id, [phrases])


def covering(
    connection: Connection, namespace_id: int, words: str, share: float, style: str
) -> list[int]:
    """Ids of the cases that may have this share of a text's content words; all that do are there.

    "Content words" as `matching.coverage` has them, of `rows.spoken`. With trigrams, only the 5,000
    best cases by BM25 are given, for stems cannot be told from pieces of words.
    """
    if style == "trigrams":
        best = search(connection, namespace_id, words, _BEST, style, invalidated=True)
        return sorted(id_ for id_, _ in best)
    tokens = list(_cutter(connection, namespace_id, style).content(words).values())
    if not tokens:
        return []
    # Rounded down by a hair, for 0.8 * 5 must not ask for a fifth word.
    needed = max(1, math.ceil(share * len(tokens) - 1e-9))
    words_ = [Phrase("words", (token,)) for token in tokens]
    spread = {word: _spread(connection, namespace_id, word) for word in words_}
    # Who has `needed` of them has one of any so many; the rarest are the fewest cases.
    rarest = sorted(words_, key=lambda word: spread[word])[: len(tokens) - needed + 1]
    return _case_ids(connection, namespace_id, [rarest])


def _index(connection: Connection, namespace_id: int) -> Index:
    if connection.dialect.name == "postgresql":
        return PostgresIndex(connection, namespace_id)
    return SqliteIndex(connection, namespace_id)


def _cutter(connection: Connection, namespace_id: int, style: str) -> Cutter:
    # Read anew every time: a restored bank has another.
    query = select(meta.c.value).where(meta.c.key == SECRET)
    secret = connection.execute(query).scalar_one_or_none()
    if secret is None:
        raise BankUnavailable(f"the bank has lost the row {SECRET} of its table meta; restore it")
    return Cutter(bytes.fromhex(secret), namespace_id, style)


def _best(
    connection: Connection,
    namespace_id: int,
    terms: Sequence[Phrase],
    among: Sequence[Phrase],
    k: int,
    where: ColumnElement[bool],
) -> list[tuple[int, float]]:
    """The k best of the cases that have any of the terms `among`."""
    if not among:
        return []
    scored = _index(connection, namespace_id).scored(terms, among)
    # Only the best are joined with their cases, unless too many of them are filtered out.
    found = _best_of_few(connection, scored, k, where, 2 * k + 200)
    return _best_of_all(connection, scored, k, where) if found is None else found


def _best_of_few(
    connection: Connection,
    scored: Select[tuple[int, float]],
    k: int,
    where: ColumnElement[bool],
    few: int,
) -> list[tuple[int, float]] | None:
    """The k best cases; None if that cannot be told from so many best rows of the index alone."""
    best = scored.order_by(scored.selected_columns["score"].desc()).limit(few).subquery()
    # Not a join of joins: SQLite would make the inner one of the whole bank.
    joined = best.outerjoin(texts, texts.c.id == best.c.text_id)
    joined = joined.outerjoin(cases, and_(cases.c.id == texts.c.case_id, where))
    query = select(cases.c.id, best.c.score).select_from(joined)
    rows = connection.execute(query.order_by(best.c.score.desc(), cases.c.id)).all()
    hits = [(int(id_), float(score)) for id_, score in rows if id_ is not None]
    if len(rows) == few:
        # Beyond the last row may lie others with its score, and lower ids.
        hits = [hit for hit in hits if hit[1] > rows[-1].score]
        if len(hits) < k:
            return None
    return hits[:k]


def _best_of_all(
    connection: Connection,
    scored: Select[tuple[int, float]],
    k: int,
    where: ColumnElement[bool],
) -> list[tuple[int, float]]:
    best = _first(scored)
    joined = best.join(texts, texts.c.id == best.c.text_id)
    joined = joined.join(cases, and_(cases.c.id == texts.c.case_id, where))
    query = select(cases.c.id, best.c.score).select_from(joined)
    rows = connection.execute(query.order_by(best.c.score.desc(), cases.c.id).limit(k))
    return [(int(id_), float(score)) for id_, score in rows]


def _first(found: Select[Any]) -> CTE:
    """Rows of the index, found before anything is joined to them.

    Else SQLite might go through the cases and ask the index about each.
    """
    return found.cte().prefix_with("MATERIALIZED")


def _case_ids(connection: Connection, namespace_id: int, groups: Groups) -> list[int]:
    found = _first(_index(connection, namespace_id).holders(groups))
    query = select(texts.c.case_id).join(found, found.c.text_id == texts.c.id)
    return sorted(int(id_) for id_ in connection.execute(query).scalars() if id_ is not None)


def _rare(connection: Connection, namespace_id: int, terms: Sequence[Phrase]) -> list[Phrase]:
    """The terms that are not common; in a bank that is not large, all of them."""
    last = connection.execute(select(func.max(texts.c.id))).scalar()
    if (last or 0) < _COMMON:
        return list(terms)
    return [term for term in terms if _spread(connection, namespace_id, term) < _COMMON]


def _spread(connection: Connection, namespace_id: int, term: Phrase) -> int:
    """How many cases have a term, counted up to where it is common."""
    found = _index(connection, namespace_id).holders([[term]])
    counted = select(func.count()).select_from(found.limit(_COMMON).subquery())
    return int(connection.execute(counted).scalar_one())
