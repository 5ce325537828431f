"""Requests resolved by rules and the view's search; no language model.

A value that is stated is looked for in every form; a description is looked up. Where a description
fits several things, the plan names what is clear and leaves the rest to be chosen.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from memory.case import KINDS, NewCase
from memory.forgetting.selectors import (
    ByDerivedFact,
    ByIds,
    BySpan,
    ByStrings,
    ByTag,
    Replacement,
    Selector,
)
from memory.requests.categories import asks_for_all, category
from memory.requests.lookup import Targets
from memory.requests.mentions import holds_any, mention
from memory.requests.moments import due, span
from memory.requests.plan import Ambiguous, Due, ForgetPlan, Kind, RecordView, Remembered
from memory.requests.targets import find, holders
from memory.requests.values import values_in
from memory.requests.wish import Act, Wish, recognise
from memory.requests.words import content_stems, sentences, words

_DERIVED = re.compile(
    r"\b(?:conclusions?|conclud\w+|inferences?|infer(?:red)?|deduc\w+|guess(?:ed|es)?|figured out"
    r"|worked out"
    r"|assum\w+|derived?|suspicions?|suspect\w*|pieced together|put together)\b"
)
_TOLD = re.compile(
    r"\b(?:told|said|mentioned|talked|discussed|shared|wrote|typed|sent|asked|chats?"
    r"|conversations?|messages?"
    r"|sessions?|happened|did)\b"
)
_NEW = re.compile(
    r"\b(?:new|now|instead|chang\w+|replac\w+|updat\w+|moved|switch\w+|rather|from now on"
    r"|going forward)\b"
)
_POINTS = re.compile(
    r"^(?:it|that|this|those|these|them)(?:\s+(?:now|please|too|anymore|all|at all|kept"
    r"|retained))*[.!]?$",
    re.I,
)
_ABOUT_TIMES = (
    "everything anything all told said mentioned talked discussed shared wrote typed sent asked "
    "chat "
    "chats conversation conversations message messages session sessions happened did memory "
    "memories "
    "turn turns note notes week month year day days weeks months last past since yesterday today "
    "remember know"
)
_SPAN_WORDS = frozenset(content_stems(_ABOUT_TIMES))
_CONCLUSIONS = frozenset(("fact", "summary", "compound_update", "plan"))
_BY_DESCRIPTION = 0.8
_BY_CATEGORY = 0.7
_LOOK_AT = 50


class RuleResolver:
    """The default `Resolver`.

    Args:
        key: keys the digests of conditions (`Event`); keep it with the bank. Random without one, so
            that conditions then hold for this process only.
    """

    def __init__(self, key: bytes | None = None, *, acknowledged: bool = True) -> None:
        self.key = key if key is not None else secrets.token_bytes(32)
        self._acknowledged = acknowledged

    def resolve(self, request: Remembered, view: RecordView) -> ForgetPlan | Ambiguous | None:
        """The plan for one turn; see `Resolver`."""
        before = view.recent(1)
        wish = recognise(request.text, before[-1].text if before else None)
        if wish is None:
            return None
        about = [text for text in wish.about if text]
        when = wish.when
        timed = self._span(wish, request, view) if wish.act is Act.WISH else None
        if timed is not None:
            return timed
        keep = _kept(wish, about)
        about = _antecedents(wish, about)
        if wish.act is Act.WISH and _DERIVED.search(" ".join(about).lower()):
            return self._derived(wish, about, request, view)
        if wish.act is Act.ACKNOWLEDGEMENT and not self._acknowledged:
            about = []
        found = find(about, request, view, keep, described=wish.act is Act.WISH)
        starts = due(when, request.created_at, self.key)
        if wish.act is Act.WISH and not found.strings and any(map(asks_for_all, about)):
            return _whole_category(wish, about, request, view, starts)
        told = holders(view, found.strings, keep)
        ids = found.ids | {record.id for record in told}
        if not ids and not found.strings and found.unclear:
            return Ambiguous(
                tuple(sorted(found.unclear)),
                "several records could be meant; name the value, or choose among the candidates",
                (*wish.reasons, *found.reasons),
            )
        return _single(wish, request, view, found, ids, keep, starts)

    def _span(self, wish: Wish, request: Remembered, view: RecordView) -> ForgetPlan | None:
        """A plan for "everything I told you last week", or None where no span is asked for."""
        asked = next(part for part in wish.parts if part.act is Act.WISH)
        named = f"{asked.about} {asked.when or ''} {asked.text}"
        low = asked.about.lower()
        if not (asks_for_all(low) or _TOLD.search(low)) or any(
            value.kind != "name" for value in values_in(asked.about)
        ):
            return None
        found = span(named, request.created_at)
        if found is None or (asked.when and not _TOLD.search(low)):
            return None
        start, end, phrase = found
        topic = set(content_stems(asked.about)) - _SPAN_WORDS - set(content_stems(phrase))
        inside = [
            record
            for record in view.records()
            if record.created_at is not None
            and (start is None or record.created_at >= start)
            and (end is None or record.created_at < end)
        ]
        if topic:
            wanted = category(" ".join(sorted(topic)))
            ids = tuple(
                sorted(r.id for r in inside if wanted and wanted.holds(set(content_stems(r.text))))
            )
            selectors: tuple[Selector, ...] = (ByIds(ids),) if ids else ()
        else:
            ids = tuple(sorted(record.id for record in inside))
            selectors = (BySpan(start, end),)
        return ForgetPlan(
            kind=Kind.SPAN,
            selectors=selectors,
            confidence=wish.confidence * (_BY_CATEGORY if topic else 1.0),
            reasons=(*wish.reasons, "span_and_topic" if topic else "span"),
            replacement=_told_besides(wish, request, ()),
            explain=_lines(view, ids),
        )

    def _derived(
        self, wish: Wish, about: Sequence[str], request: Remembered, view: RecordView
    ) -> ForgetPlan | Ambiguous:
        """A plan for a conclusion: the stored facts and summaries that state it."""
        text = _DERIVED.sub(" ", " ".join(about))
        topic = set(content_stems(text)) - set(content_stems("you made about that memory stored"))
        near = dict.fromkeys(
            [*(i for i, _ in view.search(text, _LOOK_AT)), *(r.id for r in view.recent(_LOOK_AT))]
        )
        ids = tuple(
            sorted(
                record.id
                for record in map(view.get, near)
                if record.kind in _CONCLUSIONS
                and topic
                and _on_topic(topic, set(content_stems(record.text)))
            )
        )
        if not topic:
            recent = [r.id for r in view.records() if r.kind in _CONCLUSIONS]
            return Ambiguous(
                tuple(recent[-5:]), "which conclusion? say what it is about", wish.reasons
            )
        return ForgetPlan(
            kind=Kind.DERIVED,
            selectors=(ByDerivedFact(text=" ".join(text.split()), ids=ids),),
            due=due(wish.when, request.created_at, self.key),
            replacement=_told_besides(wish, request, ()),
            confidence=wish.confidence * _BY_DESCRIPTION,
            reasons=(*wish.reasons, "conclusion"),
            explain=_lines(view, ids),
        )


def current_ids(plan: ForgetPlan, view: RecordView) -> tuple[int, ...]:
    """The records that a plan means now: those it names and those that state one of its strings."""
    ids = set(plan.ids) | {record.id for record in holders(view, plan.strings, plan.keep)}
    for selector in plan.selectors:
        if isinstance(selector, BySpan):
            ids |= {record.id for record in view.records() if _inside(record, selector)}
        elif isinstance(selector, ByTag):
            ids |= {record.id for record in view.records() if selector.tag in record.tags}
    return tuple(sorted(ids))


def _single(
    wish: Wish,
    request: Remembered,
    view: RecordView,
    found: Targets,
    ids: set[int],
    keep: Sequence[str],
    starts: Due,
) -> ForgetPlan:
    """One fact, a combination, or a replacement."""
    strings = tuple(found.strings)
    named = tuple(sorted(ids))
    selectors: list[Selector] = []
    fresh = _new_value(wish, request, strings, keep) if wish.act is Act.WISH else None
    replacement = _told_besides(wish, request, strings)
    kind = Kind.COMBINATION if found.items > 1 else Kind.FACT
    if any(map(asks_for_all, wish.about)):
        kind = Kind.CATEGORY
    if fresh is not None and (strings or named):
        kind = Kind.REPLACEMENT
        if replacement is None or not mention(fresh).exact_in(replacement.query):
            replacement = _rewritten(request, view, named, strings, fresh) or replacement
        selectors.append(Replacement(strings[0] if strings else None, replacement, named))
    # A name of one word is part of longer names, of other people; its records are named by id.
    plain = tuple(s for s in strings if not (mention(s).kind == "name" and " " not in s.strip()))
    if plain:
        selectors.append(ByStrings(plain))
    if named and kind is not Kind.REPLACEMENT:
        selectors.append(ByIds(named))
    reasons = [*wish.reasons, *found.reasons]
    if wish.act is Act.ACKNOWLEDGEMENT:
        reasons.append("acknowledgement")
    if strings and not selectors:
        selectors.append(ByStrings(strings))  # nobody holds the name yet, or it waits
    if not selectors:
        reasons.append("nothing_found")
    return ForgetPlan(
        kind=kind,
        selectors=tuple(selectors),
        strings=strings,
        names=tuple(found.names),
        keep=tuple(keep),
        due=starts,
        replacement=replacement,
        unclear=tuple(sorted(found.unclear - ids)),
        confidence=wish.confidence * (1.0 if strings else _BY_DESCRIPTION),
        reasons=tuple(dict.fromkeys(reasons)),
        explain=_lines(view, named),
    )


def _whole_category(
    wish: Wish, about: Sequence[str], request: Remembered, view: RecordView, starts: Due
) -> ForgetPlan | Ambiguous:
    """A plan for everything of a kind: by tag where the records are tagged, and by their words."""
    wanted = category(" ".join(about))
    if wanted is None:
        return Ambiguous(
            (),
            "this asks to forget everything; delete the namespace, or name a time or a topic",
            (*wish.reasons, "everything"),
        )
    records = list(view.records())
    tags = {
        t for r in records for t in r.tags if set(content_stems(t)) & {*wanted.stems, wanted.name}
    }
    own = re.search(r"\b(?:my|mine|i|me)\b", " ".join(about).lower()) is not None
    ids = tuple(
        sorted(
            record.id
            for record in records
            if wanted.holds(set(content_stems(record.text)))
            and not (own and request.speaker and record.speaker not in (request.speaker, None))
        )
    )
    selectors: list[Selector] = [ByTag(tag) for tag in sorted(tags)]
    if ids:
        selectors.append(ByIds(ids))
    return ForgetPlan(
        kind=Kind.CATEGORY,
        selectors=tuple(selectors),
        due=starts,
        replacement=_told_besides(wish, request, ()),
        confidence=wish.confidence * _BY_CATEGORY,
        reasons=(*wish.reasons, "known_category" if wanted.known else "topic"),
        explain=_lines(view, ids),
    )


def _on_topic(topic: set[str], stems: set[str]) -> bool:
    """Whether a conclusion is about the topic: half of its words, or one of its category's."""
    wanted = category(" ".join(sorted(topic)))
    if wanted is not None and wanted.known and wanted.holds(stems):
        return True
    return len(topic & stems) * 2 >= len(topic)


def _kept(wish: Wish, about: Sequence[str]) -> tuple[str, ...]:
    """The values that stay: those of the kept words and of the plain sentences beside the wish."""
    asked = [words(value.text) for text in about for value in values_in(text)]
    beside = " \n ".join(part.text for part in wish.parts if part.act is None)
    if any(_POINTS.match(text) for text in about):
        beside = ""  # "My number is 555-0100. Forget it." speaks of the number, it does not keep it
    kept = [v.text for v in values_in(f"{wish.kept} \n {beside}") if v.kind not in ("name", "date")]
    return tuple(dict.fromkeys(value for value in kept if words(value) not in asked))


def _antecedents(wish: Wish, about: list[str]) -> list[str]:
    """What "it" is in the same turn: "Harbor House was fine, but I don't want it kept"."""
    if not all(_POINTS.match(text) for text in about) or wish.act is not Act.WISH:
        return [text for text in about if not _POINTS.match(text)] if len(about) > 1 else about
    before = []
    for part in wish.parts:
        if part.act is Act.WISH:
            before.append(part.text[: part.text.find(part.about)] if part.about else "")
            break
        before.append(part.text)
    stated = [value.text for text in before for value in values_in(text)]
    return [", ".join(stated)] if stated else about


def _new_value(
    wish: Wish, request: Remembered, strings: Sequence[str], keep: Sequence[str]
) -> str | None:
    """The value that takes the old one's place: of the same kind, and called new."""
    if not _NEW.search(request.text.lower()):
        return None
    kinds = {mention(string).kind for string in strings}
    fresh = [value for value in keep if not kinds or mention(value).kind in kinds]
    return fresh[0] if len(fresh) == 1 else None


def _told_besides(wish: Wish, request: Remembered, strings: Sequence[str]) -> NewCase | None:
    """What else the turn tells, as a case of its own, without a sentence that states the old."""
    told = " ".join(s.text for s in sentences(wish.rest) if not holds_any(s.text, strings))
    return _case(told, request) if told.strip() else None


def _rewritten(
    request: Remembered, view: RecordView, ids: Sequence[int], strings: Sequence[str], fresh: str
) -> NewCase | None:
    """The first record that stated the old value, with the new one in its place."""
    for record in map(view.get, sorted(ids)):
        for string in strings:
            if record.text.count(string) == 1:
                text = record.text.replace(string, fresh)
                if not holds_any(text, strings):
                    return replace(_case(text, request), kind=_kind(record.kind))
    return None


def _case(text: str, request: Remembered) -> NewCase:
    metadata = {} if request.speaker is None else {"speaker": request.speaker}
    return NewCase(
        text,
        kind=_kind(request.kind),
        created_at=request.created_at,
        source=request.source,
        tags=request.tags,
        metadata=metadata,
    )


def _kind(kind: str) -> str:
    return kind if kind in KINDS else "turn"


def _inside(record: Remembered, wanted: BySpan) -> bool:
    at = record.created_at
    if at is None:
        return False
    return (wanted.start is None or at >= wanted.start) and (wanted.end is None or at < wanted.end)


def _lines(view: RecordView, ids: Sequence[int]) -> tuple[str, ...]:
    """One line a record, for the person who asked; never for a log."""
    return tuple(f"record {i}: {view.get(i).text[:120]}" for i in ids)
