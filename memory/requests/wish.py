"""Whether a turn asks to forget something, says that it was forgotten, or does neither.

`recognise` reads one turn. It knows nothing of what is stored, so it cannot say what is meant: that
is the resolver's part. Questions about forgetting, negations, reports of what others said, and
tasks that merely use the same verbs are no wishes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from memory.requests import acknowledging, asking, evidence, languages, wording
from memory.requests.values import values_in
from memory.requests.words import UNSPACED, Span, clauses, sentences, without_quotes


class Act(StrEnum):
    """What a turn does."""

    WISH = "wish"
    ACKNOWLEDGEMENT = "acknowledgement"


@dataclass(frozen=True, slots=True)
class Part:
    """One sentence or clause: what it asks to forget, on what condition, and what is to stay.

    `act` is None for a part that only tells something; `told` is what a part tells before it asks.
    """

    act: Act | None
    text: str
    about: str = ""
    when: str | None = None
    kept: str = ""
    code: str = ""
    told: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """The request, or the acknowledgement, in one turn; `rest` is what else the turn tells."""

    act: Act
    parts: tuple[Part, ...] = field(repr=False)
    rest: str = field(repr=False)
    confidence: float
    reasons: tuple[str, ...]

    @property
    def about(self) -> tuple[str, ...]:
        """What is asked to be forgotten, one text for each asking sentence."""
        return tuple(part.about for part in self.parts if part.act is self.act)

    @property
    def when(self) -> str | None:
        """The condition or the time of the request, as it was said."""
        return next((part.when for part in self.parts if part.when), None)

    @property
    def kept(self) -> str:
        """The words about what is to stay."""
        return " ".join(part.kept for part in self.parts if part.kept)


# "Deletion request recorded: remove …" holds an order, too, and is read first.
_NOTED = tuple(p for p in acknowledging.ACKNOWLEDGEMENTS if p.code == "request_noted")
_DONE = tuple(p for p in acknowledging.ACKNOWLEDGEMENTS if p.code != "request_noted")
_CONFIDENCE = {"order": 0.95, "ask": 0.95, "want": 0.9, "unwanted": 0.9, "not_keep": 0.85}
_OTHERWISE = 0.8

_WHEN_BEFORE = re.compile(
    r"^(?:[\w'’ ]{0,40}[,:.!]\s+)*(?P<when>(?:after|once|when|as soon as|on|by|starting|at"
    r"|in)\s[^,]{2,80}),\s"
)
_WHEN_BEHIND = re.compile(
    r"\s(?P<when>(?:after|once|when|as soon as|at the end of|tomorrow|tonight|next (?:week|month)"
    r"|(?:on|by|starting)\s+(?:next\s+)?(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|on \w+ \d{1,2}\b)"
    # "after 6 PM" is mostly part of what is to be forgotten, not the time to do it.
    r"(?!\s+\d{1,2}(?::\d\d)?\s*(?:am|pm|a\.m|p\.m|o'clock)).*)$"
)
_REASON = re.compile(
    r"[,\s](?:now that|because|since|so that|so (?:i|we|it|they|you)\b|as (?:it|they|i|we)\b"
    r"|given that"
    r"|in favou?r of|replaced by|instead of|which|unless|and (?:do not|don'?t|never) (?:use|share"
    r"|show|tell)"
    r"|at (?:\w+ )?request|but)\b.*$"
)
# "Cleanup note: ", "on the finance side: ", "after the crosswalk, " before what it is about.
_TITLE = re.compile(r"(?:[a-z][a-z’' -]{2,40}:\s+)?(?:(?:after|once|when)\s[^,]{2,80},\s+)?")
# "delete these from memory: …": the list follows the place.
_LISTED = re.compile(rf"(?:{evidence.MEMORY_PLACE.pattern})\s*:\s*(?P<list>.+)$")
_STRONG_DONE = re.compile(r"delet|eras|remov|forg|purg|scrub|wip|expung|redact|destroy")
_CONNECTIVE = re.compile(r"[\s,;:.—–-]*(?:\b(?:and|so|then|but|please|now|also)\b[\s,]*)*$", re.I)
_LONGEST = 800  # characters of a clause: requests are short, documents are told, too
_TELLING = 3  # words from which on a sentence tells something
_LEANING = re.compile(r"(?:it|they|that|this|those|these|thank\w*)\b", re.I)  # means the request
_AFFIRMED = re.compile(
    r"^(?:yes|yeah|yep|sure|please(?: do)?|go ahead|ok(?:ay)?|correct|exactly|right|absolutely"
    r"|definitely"
    r"|of course|i do|that is right|that's right|do (?:it|that))\b",
    re.I,
)
_OFFER = re.compile(
    rf"\b(?:do you want|would you like|should (?:i|we)|shall (?:i|we)|can (?:i|we)|may (?:i|we)"
    r"|is it ok(?:ay)? to|want me|want us)\b.*?"
    rf"(?:\b(?P<verb>{wording.FORGET}|{wording.DELETE})\b(?P<object>.*)"
    rf"|\s(?P<passive>the .+?|my .+?|your .+?|any .+?|all .+?)\s+(?:\w+ )?{wording.DELETED}\b)"
)
_FIRST_PERSON = re.compile(r"\b(?:my|our|mine|i|i'm|i've|me|that|what|about)\b")
# "Remove it now.", not "remove it with a spoon".
_ALONE = re.compile(
    r"^[\s:,]*(?:(?:it|that|this|those|these|them|both|all|all of (?:it|that|this|them)"
    r"|all (?:two|three|four|five|\d)|(?:the|my|our) (?:old|older|previous|earlier"
    r"|former)(?: ones?)?)"
    r"(?:\s+(?:now|please|all|too|also|completely|entirely|immediately|as well))*)\s*(?:$|[.,;:!?])"
)
_POINTING = re.compile(
    r"^[\s:,]*(?:please\s+)?(?:about\s+)?(?:(?:it|that|this|those|these|them|all of (?:it|that"
    r"|this|them))\b"
    r"|(?:all|both)(?: (?:of )?(?:the )?\w+)?\s*(?:$|[.,!])"
    r"|(?:the|my|our) (?:old|older|previous|earlier|former|other|last|first)(?: ones?)?\s*(?:$"
    r"|[.,!]))"
)


def recognise(text: str, before: str | None = None) -> Wish | None:
    """The wish or acknowledgement of one turn, or None.

    Args:
        text: the turn.
        before: the turn before it; a plain "yes" to "shall I delete it?" is a wish.
    """
    accepts = before is not None and _AFFIRMED.match(text.strip()) is not None
    if not accepts and wording.TRIGGER.search(_lowered(text)) is None:
        return None
    parts: list[Part] = []
    for sentence in sentences(text):
        pieces = clauses(sentence)
        parts.extend(_judged(piece) for piece in pieces)
    acts = [part.act for part in parts]
    points = all(_POINTING.match(part.about) for part in parts if part.act is Act.WISH)
    if accepts and before is not None and points:
        accepted = _accepted_offer(before)
        if accepted is not None:
            parts = [accepted, *(part for part in parts if part.act is not Act.WISH)]
            acts = [part.act for part in parts]
    act = next((a for a in (Act.WISH, Act.ACKNOWLEDGEMENT) if a in acts), None)
    if act is None:
        return None
    codes = tuple(dict.fromkeys(part.code for part in parts if part.act is not None))
    return Wish(
        act=act,
        parts=tuple(parts),
        rest=_rest(parts),
        confidence=max(_CONFIDENCE.get(code, _OTHERWISE) for code in codes),
        reasons=codes,
    )


def _judged(piece: Span) -> Part:
    """What one clause does; of an endless one only the beginning is read."""
    if len(piece.text) > _LONGEST:
        start = _judged(Span(piece.text[:_LONGEST], piece.start, piece.start + _LONGEST))
        return replace(start, text=piece.text)
    said = _lowered(without_quotes(piece.text))
    question = wording.QUESTION.search(said) and not wording.POLITE_QUESTION.search(said)
    if not question and not _blocked(said, ("upkeep", "already")):
        for patterns, act in (
            (_NOTED, Act.ACKNOWLEDGEMENT),
            (asking.WISHES, Act.WISH),
            (_DONE, Act.ACKNOWLEDGEMENT),
        ):
            if act is Act.ACKNOWLEDGEMENT and (
                said.endswith("?") or _blocked(said, ("hypothetical",))
            ):
                continue
            part = _matched(piece.text, said, patterns, act)
            if part is not None:
                return part
        part = _in_other_language(piece.text)
        if part is not None:
            return part
    kept = evidence.KEPT_CLAUSE.match(said)
    return Part(None, piece.text, kept=piece.text if kept else "")


def _matched(text: str, said: str, patterns: tuple[wording.Pattern, ...], act: Act) -> Part | None:
    if act is Act.WISH and _blocked(said):
        return None
    for pattern in patterns:
        match = pattern.regex.search(said)
        if match is None:
            continue
        start, end = match.span("object")
        about = text[start:end]
        if act is Act.WISH and not _means_memory(pattern.code, match, said, about):
            continue
        if act is Act.ACKNOWLEDGEMENT and not _means_deletion(pattern.code, match, said, about):
            continue
        part = _part(act, text, said, start, end, pattern.code)
        first = _matched(text[: match.start()], said[: match.start()], patterns, act)
        if first is not None and match.start() and act is Act.WISH:
            part = replace(part, about=f"{first.about}, {part.about}")
        elif act is Act.WISH:
            part = _with_lead(part, text[: match.start()])
        if "new" in match.re.groupindex:
            new = text[match.start("new") : match.end("new")]
            part = replace(part, about=about.strip(), kept=f"{part.kept} {new}".strip())
        return part
    return None


def _with_lead(part: Part, lead: str) -> Part:
    """What the sentence tells before it asks, where that is a value: "it is 555-0199 now; …"."""
    lead = _CONNECTIVE.sub("", lead).strip()
    if len(lead.split()) < _TELLING or all(v.kind == "name" for v in values_in(lead)):
        return part
    return replace(part, told=lead, kept=f"{lead} {part.kept}")


def _blocked(said: str, codes: tuple[str, ...] | None = None) -> bool:
    return any(
        blocker.regex.search(said)
        for blocker in wording.BLOCKERS
        if codes is None or blocker.code in codes
    )


def _means_memory(code: str, match: re.Match[str], said: str, about: str) -> bool:
    """Whether the verb is about memory, by what it is applied to and where from."""
    verb = match.groupdict().get("verb") or "delete"
    low = _lowered(without_quotes(about))
    if evidence.MEMORY.search(said) and not re.match(r"\s*to\b", low):
        return True
    if code == "order_and":  # "a botched heist to survive and clear his name" has the same form
        firm = any(value.kind != "name" for value in values_in(about))
        return firm or bool(evidence.MEMORY_PLACE.search(low))
    if not low.strip(" .!?"):  # "415-555-0186 is no longer needed, please delete."
        lead = said[: match.start()]
        return bool(evidence.INFORMATION.search(lead) or values_in(lead))
    informs = bool(evidence.INFORMATION.search(low)) or bool(values_in(about))
    thing = bool(evidence.THING.search(low)) or bool(evidence.OTHER_PLACE.search(said))
    if code == "off_record":
        return True
    if re.fullmatch(wording.FORGET, verb):
        if evidence.IDIOM.match(low):
            return "please" in said and bool(_POINTING.match(low))
        return (
            informs
            or code != "order"
            or "please" in said
            or bool(_FIRST_PERSON.search(low) or _POINTING.match(low))
        )
    if thing:
        return False
    if verb == "retire":  # a badge is retired from use; to forget it takes more
        return bool(evidence.MEMORY_PLACE.search(said)) or "recall" in said or "remember" in said
    if code == "should_go":
        placed = bool(evidence.MEMORY_PLACE.search(said))
        if verb in ("go", "disappear", "stop circulating"):
            return placed
        return placed or bool(values_in(about)) or (informs and bool(_STRONG_DONE.search(verb)))
    return informs or bool(evidence.MEMORY_PLACE.search(said)) or bool(_ALONE.match(low))


def _means_deletion(code: str, match: re.Match[str], said: str, about: str) -> bool:
    """Whether a report of something done is about information in memory."""
    if code == "request_noted":
        return True
    verb = match.groupdict().get("verb") or "deleted"
    low = _lowered(without_quotes(about))
    if evidence.MEMORY.search(said):
        return True
    if evidence.THING.search(low) or evidence.OTHER_PLACE.search(said):
        return False
    if evidence.MEMORY_PLACE.search(said):
        return bool(about.strip())
    if code == "told":
        return any(value.kind != "name" for value in values_in(about))
    # "cleared", "retired", "dropped" alone say that something is no longer in use.
    informs = bool(evidence.INFORMATION.search(low)) or bool(values_in(about))
    return bool(_STRONG_DONE.search(verb)) and informs


def _part(act: Act, text: str, said: str, start: int, end: int, code: str) -> Part:
    """The part with its object freed of place, time, reason and what is to stay."""
    when = None
    before = _WHEN_BEFORE.match(said)
    if before is not None:
        when = text[before.start("when") : before.end("when")]
    kept = []
    title = _TITLE.match(said[start:end])
    start += title.end() if title else 0
    low = said[start:end]
    # What follows the object ("… from memory once the audit is done") may hold time and kept parts.
    tail = said[start:]
    late = _WHEN_BEHIND.search(tail)
    if when is None and late is not None and not re.match(r"\s*(?:about )?what i", low):
        when = text[start + late.start("when") : start + late.end("when")]
        low = low[: late.start()]
    for pattern in (evidence.KEPT_CLAUSE, _REASON, evidence.MEMORY, evidence.MEMORY_PLACE):
        cut = pattern.search(low)
        if cut is not None:
            kept.append(text[start + cut.start() : len(text)])
            low = low[: cut.start()]
    about = text[start : start + len(low)].strip(" ,:;.!?—–-")
    listed = _LISTED.search(said[start:])
    if listed is not None:
        about = f"{about}: {text[start + listed.start('list') : start + listed.end('list')]}"
    if act is Act.WISH and not about:
        about = "it"
    return Part(act, text, about, when.rstrip(" .!?") if when else None, " ".join(kept), code)


def _in_other_language(text: str) -> Part | None:
    low = _lowered(text)
    if UNSPACED.search(text) is None and languages.GERMAN.search(low) is None:
        return None
    for pattern, exception in languages.OTHER_LANGUAGES:
        match = pattern.regex.search(low)
        if match is None or (exception is not None and exception.search(low)):
            continue
        about = (text[match.start("object") : match.end("object")]).strip(" ,.!?。！？，")
        return Part(Act.WISH, text, about, None, "", pattern.code)
    return None


def _accepted_offer(before: str) -> Part | None:
    low = _lowered(without_quotes(before))
    match = _OFFER.search(low)
    if match is None:
        return None
    if evidence.OTHER_PLACE.search(low):
        return None
    group = "object" if match["object"] is not None else "passive"
    start, end = match.span(group)
    return _part(Act.WISH, before, low, start, end, "accepted")


def _rest(parts: list[Part]) -> str:
    """What the turn tells besides: its plain parts, whole, in their order."""
    plain = [part if not part.told else replace(part, act=None, text=part.told) for part in parts]
    told = [
        part.text[:1].upper() + part.text[1:].rstrip(";")
        for part in plain
        if part.act is None
        and (part.told or not part.kept)
        and len(part.text.split()) >= _TELLING
        and not part.text.endswith("?")
        and not _LEANING.match(part.text)
    ]
    return " ".join(told)


def _lowered(text: str) -> str:
    """Lower case, each character in its place."""
    return "".join(low if len(low := c.lower()) == 1 else c for c in text)
