"""Whole categories that people ask to forget ("all my medical information"), as word lists.

A list holds stems (`words.stem`); one of them in a record puts it into the category. They are
coarse on purpose: a request for a whole category errs towards forgetting, and its dry run shows
every record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memory.requests.words import content_stems, stem

_LISTS: dict[str, tuple[str, str]] = {
    # name: (words that ask for it, words that a record of it holds)
    "health": (
        "health medical medicine clinical hospital doctor illness disease treatment therapy",
        "health medical medicine medication clinic hospital doctor nurse illness disease treatment "
        "therapy therapist diagnosis diagnosed symptom pain allergy allergic surgery operation "
        "prescription prescribed dose mg mcg blood pressure scan mri xray biopsy cancer diabetes "
        "insulin asthma depression anxiety pregnant pregnancy vaccine infection fever antibiotic "
        "ibuprofen sertraline migraine rehab injury patient lab checkup dentist vitamins",
    ),
    "money": (
        "money financial finances finance financial income banking payment debt salary",
        "money salary income wage bank account debt loan mortgage credit card invest investment "
        "savings tax taxes budget rent bonus usd eur dollar euro pay paid stipend pension "
        "insurance "
        "overdraft broker stock invoice scholarship",
    ),
    "contact": (
        "contact phone telephone",
        "phone number cell mobile email mail address callback voicemail extension line fax",
    ),
    "home": (
        "address home living residence location whereabouts",
        "address street avenue apartment flat house home live living moved move neighbourhood "
        "neighborhood city town zip postcode landlord roommate",
    ),
    "family": (
        "family relatives relationship marriage children kids",
        "family mother father mom mum dad sister brother wife husband spouse partner daughter son "
        "child children kid parent grandmother grandfather aunt uncle cousin married divorce "
        "divorced girlfriend boyfriend niece nephew wedding",
    ),
    "work": (
        "work job career employment employer",
        "work job career employer employee office boss manager colleague salary company project "
        "promotion promoted interview resign fired hired shift team",
    ),
    "school": (
        "school study studies education university grades",
        "school university college class course grade exam professor teacher student homework "
        "thesis "
        "semester scholarship tutor degree",
    ),
    "travel": (
        "travel trip trips vacation holiday travelling",
        "travel trip flight hotel vacation holiday airport visa passport itinerary booking train "
        "cruise luggage",
    ),
    "food": (
        "food eating diet dietary meals cooking",
        "food eat eating diet vegetarian vegan meal dinner lunch breakfast restaurant recipe cook "
        "cuisine dish snack coffee tea",
    ),
    "faith and politics": (
        "religion religious faith politics political beliefs",
        "religion religious church mosque temple pray prayer god faith vote voted party election "
        "political politics belief",
    ),
}
_GENERIC_WORDS = (
    "everything anything all information info detail details data record records history "
    "fact facts thing things stuff conversation conversations memory memories note notes "
    "related regarding concerning about know knew knowledge told said mention mentions "
    "mentioned talk talked ever related whatever personal private ask asked category topic "
    "issues matters old older earlier previous former exact current new value values "
    "specifics"
)
_GENERIC = frozenset(map(stem, _GENERIC_WORDS.split()))
_WHOLE = re.compile(
    r"\b(?:everything|anything|all|whatever|every(?:\s+\w+)?|any)\b"
    r"|전부|모두|모든|所有|全部|すべて|全て|\balles\b|\balle\b"
)
_SORT = re.compile(r"\b(?:information|info|history|details|data|records?|facts)$|기록$|记录$|記録$")
_MOST = 0.6  # share of an unknown topic's words that a record must hold


@dataclass(frozen=True, slots=True)
class Category:
    """A category as it was asked for: its name, and the stems one of which a record must hold."""

    name: str
    stems: frozenset[str]
    known: bool

    def holds(self, stems: set[str]) -> bool:
        """Whether a record with these stems belongs to it: one word of ours, most of a topic's."""
        hits = len(self.stems & stems)
        return hits > 0 if self.known else hits >= _MOST * len(self.stems)


def asks_for_all(about: str) -> bool:
    """Whether the words ask for a whole category or a time rather than for single facts."""
    low = about.lower().strip(" .!")
    if _WHOLE.search(low):
        return True
    wanted = category(low) if _SORT.search(low) else None
    return wanted is not None and wanted.known


def category(about: str) -> Category | None:
    """The category that the words name; one of ours where they fit, else their own topic words."""
    asked = [s for s in content_stems(about) if s not in _GENERIC]
    if not asked:
        return None
    for name, (asking, holding) in _LISTS.items():
        if set(asked) <= set(map(stem, asking.split())):
            return Category(name, frozenset(map(stem, holding.split())), known=True)
    return Category(" ".join(asked), frozenset(asked), known=False)
