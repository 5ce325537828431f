"""The words that requests are made of, and what looks like a request and is none.

The patterns read one sentence, lower case, with what stands in quotation marks blanked out (what
somebody quotes is not what they ask). They say what is *said*; `wish` decides what it means.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Pattern(NamedTuple):
    """A wording, its code (for `reasons`), and why it counts."""

    code: str
    regex: re.Pattern[str]
    why: str


def described(code: str, regex: str, why: str) -> Pattern:
    """A pattern, compiled."""
    return Pattern(code, re.compile(regex), why)


# Verbs that speak of memory by themselves.
FORGET = r"(?:forget|unlearn|un-?remember)"
# Verbs that may also be about files, stains and bandages; they need memory, or information, as
# their object.
DELETE = (
    r"(?:delete|erase|remove|scrub|wipe|purge|drop(?! off| by| in| me)|discard|expunge|clear"
    r"|retire|strike"
    r"|redact|destroy|get rid of|throw (?:out|away)|let go of|blank out|unsave)"
)
DELETED = (
    r"(?:deleted|erased|removed|scrubbed|wiped|purged|dropped|discarded|expunged|cleared|cleaned"
    r"|retired|struck|redacted|destroyed|forgotten|taken (?:out|off)|gone)"
)
DELETING = (
    r"(?:deleting|erasing|removing|scrubbing|wiping|purging|dropping|discarding|clearing|retiring"
    r"|forgetting|getting rid of)"
)
KEEP = r"(?:remember|keep|store|retain|save|hold on to|hang on to|memori[sz]e|log|record|recall)"
KEPT = r"(?:remembered|kept|stored|retained|saved|memori[sz]ed|logged|recorded|recalled)"
KEEPING = r"(?:remembering|keeping|storing|retaining|saving|recalling|holding on to|bringing up)"

#: Without one of these a turn is no request; most turns end here, at the price of one search.
TRIGGER = re.compile(
    r"forg[eo]t|remember|delet|eras|remov|scrub|\bwip(?:e|ing)|purg|\bdrop|discard|expung|\bclear"
    r"|clean-?up"
    r"|retir|\bstr(?:ike|uck)|redact|destroy|get(?:ting)? rid|throw|let go|blank out|unlearn"
    r"|replace|\bswap"
    r"|overwrite|\btake|\bkeep|\bkept|\bstor(?:e|ing)|retain|\bsav(?:e|ing)|h[oa]ng? on"
    r"|hold(?:ing)? on|memori"
    r"|\blog(?:ged)?\b|\brecord|recall|recover|retriev|answerable|on file|bringing up"
    r"|no longer|unsave"
    r"|circulat|disappear|\bgo(?:ne)?\b|off the record|pretend|act as if|\bcleaned"
    r"|잊|지워|삭제|버려|없애|기억|忘|删|抹|清除|记住|记|消し|削除|覚え|記憶|vergiss|vergess|l[öo]sch|entfern|merk|speicher"
)

# What may stand before an order without changing it: "Yes.", "Also,", "After Tuesday is done,".
LEAD = (
    r"(?:(?:(?:you (?:can|may) )?go ahead and|feel free to|yes|yeah|yep|no|ok|okay|sure|thanks"
    r"|thank you|great|alright|right|now|then|so|and"
    r"|also|but"
    r"|please|pls|kindly|just|actually|oh|hey|hi|hello|assistant|first|second|third|finally|next"
    r"|one more thing|by the way|in that case|if possible|if you can|from now on|going forward)"
    r"[\s,.:!—–-]+)*"
)
# "Deletion request: remove …" names its own kind.
TITLE = (
    r"(?:(?:deletion|delete|forget|erasure|removal|privacy|cleanup|clean-up)\s+"
    r"(?:request|instruction|order|note|wish)s?[^:.]{0,40}:\s*)?"
)
WHEN = (
    r"(?:(?:after|once|when|as soon as|on|by|starting|from|at|until|in|since|now that|because|as"
    r"|for"
    r"|due to|given|per|to)\s[^,]{2,80},\s*)?"
)

#: Not a wish, whatever else the sentence holds.
BLOCKERS: tuple[Pattern, ...] = (
    described(
        "negated",
        rf"\b(?:do not|don'?t|does not|doesn'?t|did not|didn'?t|never|not|cannot|can'?t|won'?t"
        rf"|wouldn'?t"
        rf"|shouldn'?t|mustn'?t|needn'?t|no one|nobody|nothing|without|avoid|instead of"
        rf"|rather than)\s+"
        rf"(?:\w+\s+){{0,2}}?(?:{FORGET}|{DELETE}|{DELETING})\b",
        "don't forget, never delete",
    ),
    described(
        "negated",
        rf"\b(?:should|must|may|can|is|are|was|were|has|have)\s?(?:not|n't|never)\s+(?:be|been"
        rf"|get)?\s*"
        rf"(?:\w+\s)?{DELETED}\b",
        "must not be deleted",
    ),
    described("duty", rf"\b{FORGET}\s+to\b", "forget to …: about doing, not about knowing"),
    described(
        "reported",
        rf"\b(?:she|he|they|it|someone|somebody|my \w+|the \w+|[a-z]+)\s+"
        rf"(?:said|says|say|told|tells|wrote|writes|asked|asks|mentioned|mentions|advised"
        rf"|suggested|read|reads|"
        rf"instructed|ordered)\b.{{0,60}}\b(?:{FORGET}|{DELETE}|{KEEP}|x{{3,}})\b",
        "somebody else said so",
    ),
    described(
        "hypothetical",
        rf"\b(?:if|unless|whether|in case|suppose|imagine)\b[^,;.]{{0,60}}\b(?:{FORGET}|{DELETE}"
        rf"|{DELETED})\b"
        r"(?!.*\bplease\b)",
        "only if; nothing is asked yet",
    ),
    described(
        "plan",
        r"\b(?:(?:i|we|he|she|they|staff|someone)(?:'ll|'d| will| would| can| could| may| might"
        r"| should| had to| am going to| are going to| plan to| try to| am| are)"
        r"|(?:i|he|she|they|staff|someone)(?: must| want to| need to| have to| has to))\b"
        rf"(?! (?:like|want|need|prefer|rather|appreciate|(?:ask|tell"
        rf"|begg)ing you))[^.;:]{{0,90}}\b(?:{FORGET}|{DELETE}"
        rf"|{DELETING})\b"
        r"(?!.*\bplease\b)",
        "the speaker's own plan",
    ),
    described(
        "plan",
        rf"\b(?:prepare|prepared|preparing|plan|plans|queued|ready|going|about|how"
        rf"|supposed) (?:to|for) "
        rf"(?:be )?(?:{DELETE}|{FORGET}|{DELETED}|deletion)\b",
        "planned, not asked",
    ),
    described(
        "upkeep",
        rf"\b(?:keep|keeps|kept|keeping|stay|stays|remain|remains|leave)\b(?! only)"
        rf"[^.;,]{{0,70}}\b{DELETED}\b"
        r"(?! from)",
        "keep it deleted: it is already gone",
    ),
    described("already", r"\bno deleted\b", "no deleted details restored"),
    described(
        "already",
        rf"^{LEAD}(?:deleted|erased|removed|retired)\b[^:;]*\b(?:not|must|should|cannot|remains?"
        rf"|stays?"
        r"|unavailable)\b",
        "deleted details are not available",
    ),
    described(
        "already",
        r"\b(?:the|any|all|no|of|about|these|those|old|earlier|to|reviv\w+|for)\s+(?:\w+\s+)?"
        r"(?:deleted|erased|removed|purged|retired)\s+(?!earlier\b)\w+.*\b(?:stay|remain|should"
        r"|must|not|no|"
        r"cannot|unavailable|gone)\b",
        "about things deleted before",
    ),
)

#: The whole sentence is a question about forgetting, not the act.
QUESTION = re.compile(
    rf"^{LEAD}(?:what|which|who|whose|when|where|why|how|did|do(?! not\b)|does|have|has|had|was"
    rf"|were|is|are|am"
    r"|should|shall|may|didn'?t|isn'?t|wasn'?t|haven'?t)\b|\?[\"'”’)]*$"
)
POLITE_QUESTION = re.compile(
    r"\b(?:can|could|would|will)\s+(?:you|we|the assistant)\b|\b(?:would|do) you mind\b|\bplease\b"
    r"|^(?:[\w, ]{0,20}\b)?(?:can|could|may) (?:the|my|that|those|this|these|all|any|our|it"
    r"|they)\b.*\bbe\b"
    r"|\b(?:is it|would it be) (?:possible|ok|okay|alright|fine)\b"
)
