"""From the words of a request to values and records: what exactly is to be forgotten.

A request is a list of items ("the Willow House desk number, extension 24, and the alias Mara"). An
item that states a value is that value. One that describes it ("the old desk number") is looked up
among the records; where several values fit and nothing tells them apart, nobody guesses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from memory.requests.lookup import QUALIFIERS, Targets, look_up
from memory.requests.mentions import holds_any, mention, same_value
from memory.requests.plan import RecordView, Remembered
from memory.requests.values import Value, values_in
from memory.requests.words import content_stems, stem, without_quotes, words

_SPLIT = re.compile(
    r"\s*[;,:]\s+(?:and\s+|plus\s+|also\s+)?|\s+(?:and|plus|as well as|along with)\s+"
    r"(?=(?:the|my|our|his|her|their|that|this|those|these|any|all|delete|remove|erase|forget|stop|"
    r"also|alias|number|room|suite|ext|extension|ask|retired|old|earlier|related|voicemail|x)\b"
    r"|[A-Z0-9+$€£'\"“‘])"
)
_VERB = re.compile(
    r"^(?:(?:and|also|please|to|for|of|about|delete|remove|erase|forget|deleted|removed|drop"
    r"|purge|the fact"
    r"|stop (?:recalling|remembering|storing|keeping)|any mention of|all mentions? of)\s+)+",
    re.I,
)
_PLACE = re.compile(r"\b(?:place|site|lodge|house|shelter|hotel|location|contact|backup|details)\b")
_PROPOSITION = re.compile(
    r"\b(?:is|are|was|were|am|has|have|had|will|would|did|does|works?|lives?|likes?|loves?|hates?"
    r"|got|went"
    r"|told|said|moved|met)\b|^(?:what|where|how|why|when|who|that)\b"
)
_CONTACT_WORDS = (
    "desk line number phone callback backup contact extension ext voicemail room note alias call "
    "route site house lodge hotline back-up mail address"
)
_CONTACT = frozenset(map(stem, _CONTACT_WORDS.split()))
_FEW = 3  # records of a name that are few in any namespace
_MOSTLY = 0.5  # share of a name's records from which on the name goes with what it names
_OF_ALL = 0.2  # a name in more than this share of all records is never forgotten along


def items_of(about: str) -> list[str]:
    """The single things that a request lists."""
    masked = without_quotes(about)
    for value in values_in(about):
        # A value may hold a comma or "and" itself.
        masked = masked[: value.start] + "X" * (value.end - value.start) + masked[value.end :]
    cuts = [0]
    ends = []
    for match in _SPLIT.finditer(masked):
        ends.append(match.start())
        cuts.append(match.end())
    ends.append(len(about))
    parts = [about[a:b] for a, b in zip(cuts, ends, strict=True)]
    return [cleaned for part in parts if (cleaned := _VERB.sub("", part.strip(" ,.;:")).strip())]


def find(
    about: Sequence[str],
    request: Remembered,
    view: RecordView,
    keep: Collection[str],
    *,
    described: bool = True,
) -> Targets:
    """The values and records that a request means.

    Args:
        about: what each asking sentence is about.
        request: the turn that asks.
        view: the records.
        keep: values that stay.
        described: look up items that state no value; an acknowledgement states them or means none.
    """
    found = Targets()
    names: list[tuple[str, str]] = []
    left: list[str] = []
    for item in [item for text in about for item in items_of(text)]:
        found.items += 1
        stated, modifiers = _stated(item, keep, request)
        names.extend((name, item) for name in modifiers)
        found.strings.extend(value.text for value in stated if value.text not in found.strings)
        if not stated:
            left.append(item)
    if described:
        for item in left:
            look_up(item, request, view, keep, found)
    if any(_PLACE.search(item.lower()) for item in left):
        names.extend((name, "backup contact") for name in _beside(view, found.strings, keep))
    if described or found.strings:  # "the Harbor details are gone" alone names nothing to forget
        _with_their_names(names, view, keep, found)
    return found


def states(record: Remembered, strings: Iterable[str], keep: Collection[str]) -> bool:
    """Whether a record states one of the values; one that only resembles a kept value does not."""
    for string in strings:
        one = mention(string)
        if one.exact_in(record.text):
            return True
        if one.near_in(record.text) and not holds_any(record.text, keep):
            return True
    return False


def holders(view: RecordView, strings: Sequence[str], keep: Collection[str]) -> list[Remembered]:
    """Every record of the view that states one of the values."""
    if not strings:
        return []
    telling = frozenset().union(*(mention(string).words for string in strings))
    return [record for record in view.having(telling) if states(record, strings, keep)]


def _stated(item: str, keep: Collection[str], request: Remembered) -> tuple[list[Value], list[str]]:
    """The values that an item states, and the names that only say whose or which."""
    values = [value for value in values_in(item) if not same_value(value.text, keep)]
    stated: list[Value] = []
    modifiers: list[str] = []
    firm = [v for v in values if v.kind not in ("name", "date")]
    for value in values:
        if value.kind == "date":
            if not firm and re.search(
                r"\b(?:date|birthday|deadline|appointment|visit)\b", item.lower()
            ):
                stated.append(value)
        elif value.kind != "name":
            stated.append(value)
        elif _PROPOSITION.search(item.lower()):
            continue  # "that Carol is getting divorced" is not about all that is known of Carol
        elif value.text.endswith(("'s", "’s")) or _heads_a_noun(item, value):
            modifiers.append(re.sub(r"['’]s$", "", value.text))
        elif value.text != request.speaker:
            stated.append(value)
    return stated, modifiers


def _heads_a_noun(item: str, value: Value) -> bool:
    """Whether a name stands before the noun it belongs to: "Willow House desk number"."""
    behind = re.split(r"[,;:]", item[value.end :])[0]
    noun = re.match(r"[-\s]+([a-z][\w-]*)", behind)
    return noun is not None and noun[1] not in (
        *("at", "in", "on", "from", "under", "is", "was", "and", "or", "with", "for", "to", "as"),
        *("only", "before", "after", "again", "per", "now", "that"),
    )


def _with_their_names(
    names: Sequence[tuple[str, str]], view: RecordView, keep: Collection[str], found: Targets
) -> None:
    """Names go along where they stand for little else than what is to be forgotten.

    Who forgets the desk number of Willow House wants nobody to be told of Willow House; who forgets
    a Citibank PIN may bank there all the same.
    """
    total = sum(1 for _ in view.records())
    for name, item in dict(names).items():
        if same_value(name, keep) or name in found.strings:
            continue
        told = holders(view, [name], keep)
        near = set(content_stems(item)) - set(content_stems(name)) - QUALIFIERS
        near |= _CONTACT if near & _CONTACT else set()
        bound = [
            record
            for record in told
            if states(record, found.strings, keep)
            or record.id in found.ids
            or (
                near & (set(content_stems(record.text)) - set(content_stems(name)))
                and not _tells_another(record, found.strings)
            )
        ]
        few = len(told) <= max(_FEW, _OF_ALL * total)
        if told and few and len(bound) >= _MOSTLY * len(told) and len(words(name)) > 1:
            found.names.append(name)
            found.ids.update(
                r.id for r in told if r in bound or not _tells_another(r, found.strings)
            )
            found.reasons.append("name_with_its_value")


def _beside(view: RecordView, strings: Sequence[str], keep: Collection[str]) -> list[str]:
    """Names told beside the values: what "the place" is where the number alone is known."""
    told = holders(view, [s for s in strings if mention(s).kind != "name"], keep)
    named = Counter(v.text for r in told for v in values_in(r.text) if v.kind == "name")
    return [name for name, count in named.items() if count * 2 >= len(told) and " " in name]


def _tells_another(record: Remembered, strings: Sequence[str]) -> bool:
    """Whether a record tells another value of a forgotten kind, as the new number is one."""
    kinds = {mention(string).kind for string in strings} - {"name", "wording"}
    return any(value.kind in kinds for value in values_in(record.text))
