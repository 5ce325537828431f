"""From what a request names to the cases that it means, inside one open transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlalchemy import ColumnElement, Connection, and_, or_, select

from memory.case import Case
from memory.forgetting.lineage import descendants, roots, smallest_cut
from memory.forgetting.selectors import (
    LEXICAL,
    SEMANTIC,
    ByDerivedFact,
    ByIds,
    BySource,
    BySpan,
    ByStrings,
    ByTag,
    ByText,
    Replacement,
    Selector,
)
from memory.keys import Keys
from memory.schema import case_tags, cases
from memory.storage.rows import all_words, cases_by_id, cases_where, chunks, content_key, spoken
from memory.text import lexical
from memory.text.matching import coverage, holds, near_verbatim

#: Cosines of cases with a text, those above a threshold: computed before the transaction.
Similar: TypeAlias = Mapping[str, Mapping[int, float]]

_PAGE = 2000


@dataclass(slots=True)
class Selection:
    """The cases that selectors mean, and how each was found.

    `cases` maps ids to ways: ids, source, tag, span_valid, span_told, span_stored, string,
    semantic, lexical, fact, source_of_fact. `strings` may occur nowhere any more.
    """

    cases: dict[int, set[str]] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    sources: set[int] = field(default_factory=set)
    kept_sources: bool = False

    def add(self, ids: Iterable[int], way: str) -> None:
        """Note cases found in a way."""
        for id_ in ids:
            self.cases.setdefault(id_, set()).add(way)

    @property
    def matched_by(self) -> dict[str, int]:
        """How many cases each way found."""
        return dict(sorted(Counter(way for ways in self.cases.values() for way in ways).items()))


@dataclass(frozen=True, slots=True)
class Scene:
    """The namespace that a selection is made in."""

    connection: Connection
    namespace_id: int
    namespace: str
    keys: Keys
    style: str
    similar: Similar = field(default_factory=dict)

    def cases(self, ids: Iterable[int]) -> dict[int, Case]:
        """These cases, those of them that exist."""
        wanted = sorted(set(ids))
        return cases_by_id(self.connection, self.namespace_id, self.namespace, wanted)

    def ids_where(self, condition: ColumnElement[bool]) -> list[int]:
        """Ids of the namespace's cases that meet a condition."""
        query = select(cases.c.id).where(cases.c.namespace_id == self.namespace_id, condition)
        return [int(id_) for id_ in self.connection.execute(query).scalars()]

    def every(self) -> Iterator[Case]:
        """Every case of the namespace, by id, those of history too."""
        after = 0
        mine = cases.c.namespace_id == self.namespace_id
        while page := cases_where(self.connection, mine, self.namespace, after, _PAGE):
            yield from page
            after = page[-1].id

    def holders(self, string: str) -> list[int]:
        """Ids of the cases that hold a string in any of their texts."""
        maybe = lexical.holding(self.connection, self.namespace_id, string, self.style)
        candidates = self.every() if maybe is None else self._some(maybe)
        return [case.id for case in candidates if any(holds(w, string) for w in all_words(case))]

    def copies(self, case: Case) -> set[int]:
        """Ids of the near-verbatim copies of a case, itself left out."""
        same = content_key(self.keys, self.namespace_id, case)
        equal = self.ids_where(cases.c.content_key == same)
        return {*equal, *self.alike(spoken(case))} - {case.id}

    def alike(self, words: str) -> set[int]:
        """Ids of the cases that say a text near-verbatim."""
        maybe = lexical.alike(self.connection, self.namespace_id, words, self.style)
        return {case.id for case in self._some(maybe) if near_verbatim(words, spoken(case))}

    def _some(self, ids: Iterable[int]) -> Iterator[Case]:
        for part in chunks(sorted(set(ids)), _PAGE):
            yield from self.cases(part).values()


def select_cases(scene: Scene, selectors: Sequence[Selector]) -> Selection:
    """The cases that any of the selectors means."""
    found = Selection()
    for selector in selectors:
        _SELECT[type(selector)](scene, selector, found)
    return found


def texts_to_compare(selectors: Sequence[Selector]) -> dict[str, float]:
    """The texts whose similarity to cases a selection will ask for, with their thresholds."""
    wanted: dict[str, float] = {}
    for selector in selectors:
        if isinstance(selector, ByText):
            wanted[selector.text] = min(selector.semantic, wanted.get(selector.text, 1.0))
        elif isinstance(selector, ByDerivedFact) and selector.text is not None:
            wanted[selector.text] = min(SEMANTIC, wanted.get(selector.text, 1.0))
    return wanted


def _by_ids(scene: Scene, selector: ByIds, found: Selection) -> None:
    for part in chunks([id_ for id_ in selector.ids if 0 < id_ < 2**53]):
        found.add(scene.ids_where(cases.c.id.in_(part)), "ids")


def _by_source(scene: Scene, selector: BySource, found: Selection) -> None:
    key = scene.keys.of("source", scene.namespace_id, selector.source)
    found.add(scene.ids_where(cases.c.source_key == key), "source")


def _by_tag(scene: Scene, selector: ByTag, found: Selection) -> None:
    key = scene.keys.of("tag", scene.namespace_id, selector.tag)
    tagged = select(case_tags.c.case_id).where(
        case_tags.c.namespace_id == scene.namespace_id, case_tags.c.tag_key == key
    )
    found.add((int(id_) for id_ in scene.connection.execute(tagged).scalars()), "tag")


def _by_span(scene: Scene, selector: BySpan, found: Selection) -> None:
    c = cases.c
    start, end = selector.start, selector.end
    valid = or_(c.valid_from.is_not(None), c.valid_to.is_not(None))
    overlaps: list[ColumnElement[bool]] = []
    if end is not None:
        overlaps.append(or_(c.valid_from.is_(None), c.valid_from < end))
    if start is not None:
        overlaps.append(or_(c.valid_to.is_(None), c.valid_to > start))
    found.add(scene.ids_where(and_(valid, *overlaps)), "span_valid")
    told = and_(~valid, c.created_at.is_not(None))
    found.add(scene.ids_where(and_(told, *_inside(c.created_at, start, end))), "span_told")
    stored = and_(~valid, c.created_at.is_(None))
    found.add(scene.ids_where(and_(stored, *_inside(c.stored_at, start, end))), "span_stored")


def _inside(
    column: ColumnElement[int], start: int | None, end: int | None
) -> list[ColumnElement[bool]]:
    parts: list[ColumnElement[bool]] = []
    if start is not None:
        parts.append(column >= start)
    if end is not None:
        parts.append(column < end)
    return parts


def _by_text(scene: Scene, selector: ByText, found: Selection) -> None:
    _say(scene, selector, found, found.add)
    found.thresholds.update(semantic=selector.semantic, lexical=selector.lexical)


def _say(
    scene: Scene,
    selector: ByText,
    found: Selection,
    add: Callable[[Iterable[int], str], None],
) -> None:
    """The cases that say what a text says, by cosine or by the share of its words they hold."""
    for id_, score in scene.similar.get(selector.text, {}).items():
        if score >= selector.semantic:
            found.scores[id_] = max(score, found.scores.get(id_, 0.0))
            add([id_], "semantic")
    share_of = (scene.connection, scene.namespace_id, selector.text, selector.lexical, scene.style)
    for id_, case in scene.cases(lexical.covering(*share_of)).items():
        share = coverage(selector.text, spoken(case))
        if share >= selector.lexical:
            found.scores[id_] = max(share, found.scores.get(id_, 0.0))
            add([id_], "lexical")


def _by_strings(scene: Scene, selector: ByStrings, found: Selection) -> None:
    for string in selector.strings:
        found.add(scene.holders(string), "string")
    found.strings.extend(selector.strings)


def _replacement(scene: Scene, selector: Replacement, found: Selection) -> None:
    _by_ids(scene, ByIds(selector.ids), found)
    if selector.old is not None:
        _by_strings(scene, ByStrings((selector.old,)), found)


def _by_fact(scene: Scene, selector: ByDerivedFact, found: Selection) -> None:
    facts: set[int] = set(scene.cases(selector.ids))
    if selector.text is not None:
        text = selector.text
        facts.update(scene.alike(text))
        _say(scene, ByText(text, SEMANTIC, LEXICAL), found, lambda ids, _: facts.update(ids))
        found.thresholds.update(semantic=SEMANTIC, lexical=LEXICAL)
    for case in list(scene.cases(facts).values()):
        facts.update(scene.copies(case))
    found.add(facts, "fact")
    if selector.keep_sources:
        found.kept_sources = True
        return
    known = [roots(scene.connection, scene.namespace_id, id_) - facts for id_ in sorted(facts)]
    cost = {
        id_: len(descendants(scene.connection, scene.namespace_id, [id_]))
        for id_ in set().union(*known)
    }
    cut = smallest_cut(known, cost)
    found.sources.update(cut)
    found.add(cut, "source_of_fact")


_SELECT: dict[type, Callable[[Scene, Selector, Selection], None]] = {
    ByIds: _by_ids,  # type: ignore[dict-item]
    BySource: _by_source,  # type: ignore[dict-item]
    ByTag: _by_tag,  # type: ignore[dict-item]
    BySpan: _by_span,  # type: ignore[dict-item]
    ByText: _by_text,  # type: ignore[dict-item]
    ByStrings: _by_strings,  # type: ignore[dict-item]
    ByDerivedFact: _by_fact,  # type: ignore[dict-item]
    Replacement: _replacement,  # type: ignore[dict-item]
}
