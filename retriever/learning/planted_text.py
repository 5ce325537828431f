"""The English of the planted world: questions and plans whose words show what helps.

A question tells its family (what kind of thing it asks about), its hops (how many links its chain
has), how obscure its subject is, and which source it wants. A plan tells its habits (decomposing,
checking, guessing) and the source it goes to. Names carry no signal. All names are made up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task: what is asked about, what is asked of it, and the source that answers it."""

    noun: str
    relations: tuple[str, str, str]
    source: int  # index into SOURCES


@dataclass(frozen=True, slots=True)
class Source:
    """Where an answer is found: how a question asks for it, and how a plan goes there."""

    asked: str
    step: str


@dataclass(frozen=True, slots=True)
class Habit:
    """A visible trait of a plan and its effect on the logit of success."""

    step: str
    effect: float
    share: float  # of the plans


SOURCES = (
    Source("according to the official register", "Look it up in the official register"),
    Source("as reported in the newspapers", "Search the newspaper archive"),
    Source("by the published figures", "Compute it from the tables of published figures"),
    Source("judging by the map", "Locate it on a detailed map"),
    Source("going by the chronicle", "Put the dates of the chronicle on a timeline"),
    Source("as the library catalogue has it", "Consult the library catalogue"),
)

HABITS = (
    Habit("Break the question into one sub-question for each link of the chain.", 1.1, 0.5),
    Habit("Verify that names and dates agree before answering.", 1.5, 0.45),
    Habit("Cross-check the finding against a second, independent source.", 1.2, 0.4),
    Habit("Guess the most likely answer from memory.", -1.9, 0.3),
    Habit("Take the first search result and stop there.", -1.3, 0.3),
)
#: Where the habits stand in a plan: those before the source step, then those after it.
_BEFORE, _AFTER = (0, 3), (4, 2, 1)

#: (wording, effect on difficulty)
OBSCURITY = (("world-famous", -0.75), ("", 0.0), ("little-known", 0.75))
#: Effect on difficulty of one, two or three links.
HOPS = (-0.6, 0.0, 0.6)

FAMILIES = (
    Family("football club", ("head coach", "record scorer", "founding president"), 0),
    Family("river", ("longest tributary", "lowest bridge", "highest weir"), 3),
    Family("novel", ("first translator", "narrator", "publisher"), 5),
    Family("sailing ship", ("last captain", "builder", "figurehead carver"), 4),
    Family("silent film", ("director", "leading actor", "camera operator"), 1),
    Family("beetle species", ("first describer", "type locality", "main host plant"), 5),
    Family("savings bank", ("largest shareholder", "first auditor", "managing director"), 2),
    Family("railway line", ("steepest section", "chief engineer", "busiest station"), 3),
    Family("chamber opera", ("librettist", "first soprano", "dedicatee"), 1),
    Family("chess tournament", ("runner-up", "arbiter", "youngest entrant"), 2),
    Family("monastery", ("second abbot", "founder", "cartographer"), 4),
    Family("pharmacy chain", ("registered owner", "legal successor", "first licensee"), 0),
    Family("mountain hut", ("warden", "nearest pass", "architect"), 3),
    Family("radio play", ("script editor", "sound designer", "voice of the narrator"), 1),
    Family("wind farm", ("operator", "largest turbine supplier", "grid partner"), 2),
    Family("botanical garden", ("curator", "oldest tree donor", "seed bank keeper"), 5),
    Family("town council", ("longest-serving clerk", "youngest mayor", "treasurer"), 0),
    Family("comet", ("discoverer", "first orbit computer", "naming committee chair"), 4),
    Family("brewery", ("master brewer", "trademark holder", "first cooper"), 0),
    Family("lighthouse", ("last keeper", "lens maker", "nearest harbour master"), 3),
    Family("dance company", ("choreographer", "principal dancer", "costume maker"), 1),
    Family("insurance fund", ("chief actuary", "largest creditor", "supervisor"), 2),
    Family("grammar book", ("compiler", "first reviewer", "illustrator"), 5),
    Family("siege", ("commander of the garrison", "negotiator", "chronicler"), 4),
)
#: More families than nouns: the same nouns of another time.
ERAS = ("", "medieval", "early modern", "nineteenth-century", "interwar", "post-war", "modern")
MOST_FAMILIES = len(FAMILIES) * len(ERAS)

_LINKS = ("birthplace", "former employer", "successor", "elder sister", "home town", "teacher")
_OPENINGS = ("Who or what is", "Name", "Find out", "I need to know", "Tell me", "Identify")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADJECTIVES = _words(
    """
    Silver Golden Quiet Northern Southern Eastern Western Upper Lower Old New Red Blue Green
    White Black Grey Amber Crimson Violet Bright Dark Swift Slow Bold Gentle Hollow Broad Narrow
    High Deep Long Short Royal Common Hidden Lonely Merry Proud Humble Noble Brave Clever
    Distant Early Late First Second Third Winter Summer Autumn Spring Morning Evening Midnight
    Copper Iron Marble Oak Willow Maple Cedar Hazel
    """
)
_STARTS = _words(
    """
    Ash Bram Cald Dun Elm Fen Glen Hal Ing Kel Lang Mar Nor Orm Pen Quen Rav Sel Thorn Ulver
    Vast Wick Yar Zeal Brok Cres Drum Eld Farn Gris Hox Kirk
    """
)
_ENDS = _words(
    """
    by ford ham ton wick worth stead mere dale combe ley hurst field gate bury port minster stow
    thorpe well wood bridge brook cliff croft den holm kirk moor shaw tree vale
    """
)
_PLACES = _words(
    """
    Alder Birch Clay Dove Eagle Fern Gorse Heron Ivy Juniper Kestrel Linden Moss Nettle Otter
    Plover Quarry Rowan Sedge Teal Umber Vetch Wren Yew Adder Badger Curlew Dipper Egret Falcon
    Grouse Hare Ibis Jackdaw Kite Lark Magpie Newt Owl Pike Quail Raven Stork Thrush Urchin
    Viper Weasel Xenon Yarrow Zander Anchor Beacon Castle Dolmen Ember Forge Granary Hamlet
    Island Jetty Kiln Lantern Mill Nook
    """
)
#: How many different names there are; a power of two, which `scrambled` relies on.
NAMES = len(_ADJECTIVES) * len(_STARTS) * len(_ENDS) * len(_PLACES)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a question shows."""

    family: int
    relation: int  # of the family's three
    hops: int  # 1, 2 or 3
    links: tuple[int, int]  # the outer links, where there are some
    obscurity: int  # index into OBSCURITY
    source: int  # index into SOURCES
    opening: int
    name: int  # 0 <= name < NAMES

    @property
    def place(self) -> int:
        """The county of the name: chance overlap that a similarity search falls for."""
        return self.name % len(_PLACES)


def scrambled(number: int, key: int) -> int:
    """A one-to-one map of 0..NAMES-1 onto itself, another for each key."""
    mask = NAMES - 1
    for shift, factor in ((11, 2 * key + 1), (9, 0x9E3779B1), (13, 0x85EBCA6B)):
        number = ((number ^ (number >> shift)) * factor + key) & mask
    return number


def family(number: int) -> Family:
    """Family `number`, 0 <= number < MOST_FAMILIES."""
    era, which = divmod(number, len(FAMILIES))
    base = FAMILIES[which]
    return Family(f"{ERAS[era]} {base.noun}".strip(), base.relations, base.source)


def draws() -> dict[str, int]:
    """How many choices a question has of each trait that is drawn at random and shows nothing."""
    return {"relation": 3, "link": len(_LINKS), "opening": len(_OPENINGS)}


def question(traits: Traits) -> str:
    """Such as `Name the birthplace of the warden of the mountain hut …, judging by the map.`."""
    kind = family(traits.family)
    chain = [*(_LINKS[link] for link in traits.links[: traits.hops - 1])]
    chain.append(kind.relations[traits.relation])
    asked = " of ".join(f"the {link}" for link in chain)
    wording = OBSCURITY[traits.obscurity][0]
    subject = " ".join(filter(None, (wording, kind.noun, _name(traits.name))))
    opening = _OPENINGS[traits.opening]
    mark = "?" if opening.startswith("Who") else "."
    return f"{opening} {asked} of the {subject}, {SOURCES[traits.source].asked}{mark}"


def plan(traits: Traits, habits: Sequence[bool], source: int) -> str:
    """A plan as JSON text in Memento's form: `{"plan": [{"id": 1, "description": …}, …]}`."""
    kind = family(traits.family)
    target = f"the {kind.relations[traits.relation]} of the {kind.noun}"
    steps = [HABITS[number].step for number in _BEFORE if habits[number]]
    steps.append(f"{SOURCES[source].step} to find {target}.")
    steps += [f"Go on to the {_LINKS[link]}." for link in traits.links[: traits.hops - 1][::-1]]
    steps += [HABITS[number].step for number in _AFTER if habits[number]]
    numbered = [{"id": number, "description": step} for number, step in enumerate(steps, start=1)]
    return json.dumps({"plan": numbered})


def _name(number: int) -> str:
    rest, place = divmod(number, len(_PLACES))
    rest, end = divmod(rest, len(_ENDS))
    adjective, start = divmod(rest, len(_STARTS))
    return f"{_ADJECTIVES[adjective]} {_STARTS[start]}{_ENDS[end]} of {_PLACES[place]} County"
