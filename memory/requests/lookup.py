"""What a description means: "the old desk number", "my dog's name", "that".

The records near the description are asked for values of the kind it names, or are meant themselves.
Where several fit and nothing tells them apart, they are named as unclear and nobody guesses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from memory.requests.mentions import mention, same_value
from memory.requests.plan import RecordView, Remembered
from memory.requests.values import values_in
from memory.requests.words import content_stems, quoted, stem, words

_POINTER = re.compile(
    r"^(?:about\s+)?(?:it|that|this|those|these|them|all of (?:it|that|this|them)"
    r"|what i (?:just )?(?:said|told you|mentioned|wrote)|(?:my|the) last (?:message|turn|one|note)"
    r"|(?:the|my|that) (?:old|older|previous|earlier|former) ones?)(?:\s+(?:now|please|too"
    r"|anymore))*$"
)
_MESSAGE = re.compile(r"\b(?:messages?|turns?|last one)\b")
_THAT = re.compile(r"\b(?:that|this|those|these)\b")
OLD = re.compile(
    r"\b(?:old|older|earlier|previous|prior|former|retired|superseded|expired|outdated|stale"
    r"|provisional"
    r"|temporary|first|original|legacy|obsolete)\b"
)
_CURRENT = re.compile(r"\b(?:current|new|newer|newest|latest|active|present)\b")
# What the latest teller says of a value that is not the old one.
_IN_USE = re.compile(r"\b(?:current|currently|new|newer|newest|latest|active|present|still)\b")
_AROUND = 80  # characters before a value in which it is called current
_MANY = re.compile(r"\b(?:all|every|everything|any|both|each|whatever)\b")
_MINE = re.compile(r"\b(?:my|mine|i|our)\b")

#: What a noun says about the values meant by it: (nouns, kinds of value).
_ATTRIBUTES: tuple[tuple[frozenset[str], frozenset[str]], ...] = tuple(
    (frozenset(nouns.split()), frozenset(kinds.split()))
    for nouns, kinds in (
        ("amount figure stipend salary income price balance budget fee rent cost wage", "amount"),
        ("token credential code badge password passcode pin override key login", "code labelled"),
        ("email mail mailbox", "email"),
        ("address street home live living residence", "address"),
        ("number phone line cell mobile callback telephone hotline fax extension contact", "phone"),
        ("wording label phrase phrasing title mapping string scope", "wording"),
        ("room suite desk locker bay apartment unit", "labelled"),
        ("alias name nickname", "name"),
        ("birthday birthdate anniversary deadline date", "date"),
    )
)
_ADDRESS = stem("address")  # of a house or a mailbox: tells neither
_QUALIFYING = (
    "old older earlier previous prior former retired superseded expired outdated stale provisional "
    "temporary first original legacy obsolete current new newer newest latest active present exact "
    "internal private saved stored related whole full entire own real actual tell told know knew "
    "mention said say fact ask note notes detail details info information"
)
#: Words that say which one, not what.
QUALIFIERS = frozenset(map(stem, _QUALIFYING.split()))
_NAMED_WITHIN = 60  # characters before a wording in which its noun stands
_INTRODUCES = re.compile(
    r"(?:\bask(?:s|ing)? for|\b(?:alias|nick)?name[ds]?(?: is| was)?|\balias(?: is| was)?"
    r"|\bcalled|\bi'?m"
    r"|\bis|\bgoes by|\bunder)[\s:'\"“‘]*$"
)
_FITS = 0.5  # share of a description's words near which a value is looked for
_FEW = 3  # records that a description may mean together without being ambiguous
_REPEATED = 12  # records that may hold one description whole before it is too wide
_WHOLE = 0.95
_COVERED = 0.6  # share of a description's weight a record must hold
_SAME_THING = 0.8  # a second candidate this close to the best cannot be told from it
_NEAR_TURNS = 6
_JUST_BEFORE = 2  # turns in which "that" finds its value, whoever told it
_LOOK_AT = 30


@dataclass
class Targets:
    """What was found for a request so far."""

    strings: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # said to be whose or which; see `targets`
    ids: set[int] = field(default_factory=set)
    unclear: set[int] = field(default_factory=set)  # between these somebody must choose
    items: int = 0
    reasons: list[str] = field(default_factory=list)


def look_up(
    item: str, request: Remembered, view: RecordView, keep: Collection[str], found: Targets
) -> None:
    """The value or the records that an item describes without stating it."""
    low = item.lower()
    if _POINTER.match(low.strip()):
        _pointed_at(request, view, keep, found, old=OLD.search(low) is not None)
        return
    kinds = _kinds(low)
    if kinds:
        beside = _beside(view, found.strings)
        scores, told = _candidates(item, kinds, request, view, keep, beside)
        if OLD.search(low):
            scores = _without_current(scores, told, view)
        values, unclear = _chosen(low, scores, told)
        if not scores and told:
            found.reasons.append("only_current_left")
            return
        if values:
            found.strings.extend(value for value in values if value not in found.strings)
            found.reasons.append("described_value")
            return
        if unclear and len({i for value in unclear for i in told[value]}) == 1:
            found.ids.update(told[unclear[0]])  # whichever is meant, this record states it
            found.reasons.append("described_records")
            return
        if unclear:
            found.unclear.update(i for value in unclear for i in told[value])
            found.reasons.append("several_values")
            return
    covered = _covered(item, view, keep)
    whole = [i for i, part in covered.items() if part >= _WHOLE]
    chosen = list(covered)
    if len(covered) > _FEW and not (_MANY.search(low) or _plural(low)):
        # A fact is told again and again; what holds every word of its description is that fact.
        chosen = whole if len(whole) <= _REPEATED else []
    if chosen:
        found.ids.update(chosen)
        found.reasons.append("described_records")
    elif covered:
        found.unclear.update(covered)
        found.reasons.append("several_records")


def _without_current(
    scores: dict[str, float], told: dict[str, list[int]], view: RecordView
) -> dict[str, float]:
    """The candidates for "the old one": not the value told last, if that is in use."""
    if not scores:
        return scores
    last = {value: _last_telling(value, told[value], view) for value in scores}
    newest = max(scores, key=lambda value: last[value].order)
    if len(scores) > 1 or _in_use(newest, last[newest].text):
        return {value: score for value, score in scores.items() if value != newest}
    return scores


def _last_telling(value: str, ids: Sequence[int], view: RecordView) -> Remembered:
    one = mention(value)
    tellings = [record for record in view.having(one.words) if one.exact_in(record.text)]
    return max([*tellings, *map(view.get, ids)], key=lambda record: record.order)


def _in_use(value: str, text: str) -> bool:
    """Whether a text calls the value current, or safe to use."""
    at = text.find(value)
    behind = text[at + len(value) :]
    near = f"{text[max(0, at - _AROUND) : at]} {re.split('[.;]', behind)[0]}".lower()
    return _IN_USE.search(near) is not None and OLD.search(near) is None


def _pointed_at(
    request: Remembered, view: RecordView, keep: Collection[str], found: Targets, *, old: bool
) -> None:
    """What "that" or "the old one" points at: the latest record of the same speaker."""
    near = [
        record
        for record in reversed(view.recent(_NEAR_TURNS))
        if record.speaker == request.speaker or request.speaker is None
    ]
    if old:
        with_values = [(r, v) for r in near for v in values_in(r.text) if v.kind != "name"]
        fresh = [v for v in values_in(request.text) if v.kind != "name"]
        kinds = {v.kind for v in fresh}
        values = {v.text: r.id for r, v in with_values if not kinds or v.kind in kinds}
        values = {text: i for text, i in values.items() if not same_value(text, keep)}
        if len(values) == 1:
            found.strings.extend(values)
            found.reasons.append("pointed_at_value")
        elif values:
            found.unclear.update(values.values())
            found.reasons.append("several_values")
        return
    latest = None
    if not _MESSAGE.search(request.text.lower()):
        latest = next((r for r in reversed(view.recent(_JUST_BEFORE)) if _states_a_value(r)), None)
    if latest is not None:
        stated = [v.text for v in values_in(latest.text) if v.kind not in ("name", "date")]
        found.strings.extend(v for v in stated if not same_value(v, [*keep, *found.strings]))
        found.ids.add(latest.id)
        found.reasons.append("pointed_at_value")
    elif near:
        found.ids.add(near[0].id)
        found.reasons.append("pointed_at_record")
    else:
        found.unclear.update(record.id for record in view.recent(_FEW))
        found.reasons.append("points_at_nothing")


def _states_a_value(record: Remembered) -> bool:
    """Whether a record tells a value that "that" can mean; a question tells none."""
    return not record.text.rstrip().endswith("?") and any(
        value.kind not in ("name", "date") for value in values_in(record.text)
    )


def _kinds(low: str) -> frozenset[str]:
    nouns = {word.removesuffix("s") for word in words(low)} | set(words(low))
    return next((kinds for named, kinds in _ATTRIBUTES if named & nouns), frozenset())


def _plural(low: str) -> bool:
    return any(
        f"{noun}s" in words(low) or f"{noun}es" in words(low)
        for named, _ in _ATTRIBUTES
        for noun in named
    )


def _beside(view: RecordView, strings: Sequence[str]) -> set[int]:
    """Records that state a value found already: "the alias" after "the backup number" is there."""
    mentions = [mention(string) for string in strings]
    return {r.id for one in mentions for r in view.having(one.words) if one.in_(r.text)}


def _candidates(
    item: str,
    kinds: frozenset[str],
    request: Remembered,
    view: RecordView,
    keep: Collection[str],
    beside: set[int],
) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Values of these kinds near the item's words: value -> how well it fits, and who states it."""
    near = {r.id for r in view.recent(_NEAR_TURNS)} if _THAT.search(item.lower()) else set()
    near |= beside
    named = [word for words_, of in _ATTRIBUTES if of == kinds for word in sorted(words_)]
    nouns = set(map(stem, named))
    asked_nouns = nouns & set(map(stem, words(item)))
    # "phone number" must find "my cell is ...": the nouns of one kind stand for each other.
    asked = (item, f"{item} {' '.join(named)}")
    ids = dict.fromkeys([*near, *(i for text in asked for i, _ in view.search(text, _LOOK_AT))])
    names = [v.text for v in values_in(item) if v.kind == "name"]
    telling = set(content_stems(item)) - QUALIFIERS - nouns - {_ADDRESS}
    telling -= {s for name in names for s in content_stems(name)}  # they must be there anyway
    scores: defaultdict[str, float] = defaultdict(float)
    told: defaultdict[str, list[int]] = defaultdict(list)
    for record in map(view.get, ids):
        held = set(content_stems(record.text))
        if names and not any(mention(name).in_(record.text) for name in names):
            continue
        fit = len(telling & held) / len(telling) if telling else 0.5
        if _MINE.search(item.lower()) and request.speaker is not None:
            fit += 0.5 if record.speaker == request.speaker else -0.25
        fit += 0.25 * bool(nouns & held) + 0.5 * (record.id in near)
        if telling and len(telling & held) < _FITS * len(telling):
            continue
        for value in _values_of(record, kinds, nouns, asked_nouns):
            if fit > _FITS and not same_value(value, keep):
                scores[value] = max(scores[value], fit)
                told[value].append(record.id)
    whole = [value for value in scores if not _shortens(value, scores)]
    return {value: scores[value] for value in whole}, {value: told[value] for value in whole}


def _shortens(value: str, others: Collection[str]) -> bool:
    """Whether a value is another one's short form: "locker 512" beside "Simulation Locker 512"."""
    return any(
        len(other) > len(value) and mention(other).near_in(value)
        for other in others
        if other != value
    )


def _values_of(
    record: Remembered, kinds: frozenset[str], nouns: set[str], asked: set[str]
) -> Iterator[str]:
    """The record's values of these kinds; wordings and names only right behind their noun."""
    for value in values_in(record.text):
        if value.kind not in kinds:
            continue
        if value.kind == "labelled" and not asked & set(map(stem, words(value.text))):
            continue  # a room is no locker
        before = record.text[max(0, value.start - _NAMED_WITHIN) : value.start]
        if value.kind == "name" and not _INTRODUCES.search(before.lower()):
            continue
        if value.kind == "wording" and not nouns & set(map(stem, words(before))):
            continue
        yield value.text


def _chosen(
    low: str, scores: dict[str, float], told: dict[str, list[int]]
) -> tuple[list[str], list[str]]:
    """The values meant, or those between which nothing decides."""
    if not scores:
        return [], []
    best = max(scores.values())
    close = [value for value, score in scores.items() if score >= _SAME_THING * best]
    if len(close) == 1 or _MANY.search(low) or _plural(low):
        return close, []
    by_age = sorted(close, key=lambda value: min(told[value]))
    if _CURRENT.search(low):
        return by_age[-1:], []
    return [], close


def _covered(item: str, view: RecordView, keep: Collection[str]) -> dict[int, float]:
    """Records that hold most of the item's words, rare words counting more: id -> share."""
    wanted = set(content_stems(item)) - QUALIFIERS
    if not wanted:
        return {}
    hits = [view.get(i) for i, _ in view.search(item, _LOOK_AT)]
    held = {record.id: set(content_stems(record.text)) for record in hits}
    spread = {w: 1 + sum(w in stems for stems in held.values()) for w in wanted}
    weight = {w: 1 / spread[w] for w in wanted}
    whole = sum(weight.values())
    names = [v.text for v in values_in(item) if v.kind == "name"]
    parts = {i: sum(weight[w] for w in wanted & stems) / whole for i, stems in held.items()}
    return {
        record.id: parts[record.id]
        for record in hits
        if parts[record.id] >= _COVERED
        and (not names or any(mention(name).in_(record.text) for name in names))
        and not any(span.text in keep for span in quoted(record.text))
    }
