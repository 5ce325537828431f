"""How people ask to forget, as data: each pattern with the reason why it is there.

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
    r"|no longer (?:part|in|held)"
    r"|circulat|disappear|\bgo(?:ne)?\b|off the record|pretend|act as if|\bcleaned"
    r"|잊|지워|삭제|버려|없애|기억|忘|删|抹|清除|记住|记|消し|削除|覚え|記憶|vergiss|vergess|l[öo]sch|entfern|merk|speicher"
)

# What may stand before an order without changing it: "Yes.", "Also,", "After Tuesday is done,".
LEAD = (
    r"(?:(?:yes|yeah|yep|no|ok|okay|sure|thanks|thank you|great|alright|right|now|then|so|and"
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

NOTED = (
    r"(?:logged|recorded|acknowledged|received|entered|executed|noted|confirmed|filed|processed"
    r"|applied"
    r"|completed?|accepted|registered|queued|submitted|sent|forwarded|passed on|documented"
    r"|finished|done)"
)

#: Somebody asks; group `object` is what it is about.
WISHES: tuple[Pattern, ...] = (
    described(
        "order",
        rf"^{LEAD}{TITLE}{LEAD}{WHEN}{LEAD}(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "an imperative at the start of the sentence",
    ),
    described(
        "replace",
        rf"^{LEAD}{TITLE}{WHEN}{LEAD}(?:can you |could you |would you )?(?:please )?"
        rf"(?P<verb>replace|swap|overwrite|swap out)\s+(?P<object>.+?)\s+(?:with|by"
        rf"|for)\s+(?P<new>.+)",
        "replace the old value with the new one",
    ),
    described(
        "order",
        rf"(?:^|[,;:.—–]\s*|\b)(?:so|then|and|but|please|kindly)\s+(?:also\s+|just\s+|then\s+"
        rf"|please\s+)?"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "an imperative later in the sentence, behind please, so, and or then",
    ),
    described(
        "order",
        rf"[,;:—–]\s*(?P<verb>{FORGET}|(?<=[;:—–] ){DELETE})\b(?P<object>.*)",
        "I live there now, forget the old address",
    ),
    described(
        "ask",
        rf"\b(?:can|could|would|will)\s+(?:you|we|the assistant)\s+(?:please |kindly |just |also "
        rf"|maybe )*"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "a polite question that asks for the act",
    ),
    described(
        "ask",
        rf"\byou\s+(?:can|may|should|could|must|need to|have to)\s+(?:now |please |also |just "
        rf"|safely )*"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "you can forget that now",
    ),
    described(
        "ask",
        rf"\b(?:would you mind|do you mind|mind|i(?:'d| would) appreciate (?:you"
        rf"|it if you started))\s+"
        rf"(?P<verb>{DELETING})\b(?P<object>.*)",
        "would you mind deleting",
    ),
    described(
        "ask",
        rf"\b(?:can|could|would|will)\s+you\s+(?:please |kindly )*(?:not|never|stop)\s+(?:please )?"
        rf"(?P<verb>{KEEP}|{KEEPING})\b(?P<object>.*)",
        "a polite question that asks not to keep",
    ),
    described(
        "want",
        rf"\bi(?:'d| would)?\s+(?:really |also |now |just |still )*(?:want|need|like|prefer|love"
        rf"|ask|appreciate it if"
        rf"|wish)\s+"
        rf"(?:(?:it )?(?:if )?(?:for )?you (?:to |would |could )?|to (?:have )?)(?:please |just )*"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "I would like you to forget",
    ),
    described(
        "want",
        rf"\bi(?:'d| would)?\s+(?:really |also |now |just |still )*(?:want|need|like"
        rf"|prefer)\s+(?P<object>.+?)\s+(?:to be )?"
        rf"(?:completely |fully )?(?P<verb>{DELETED})\b(?P<tail>.*)",
        "I want that deleted",
    ),
    described(
        "unwanted",
        rf"\bi(?:'d| would)?\s+(?:really )?(?:rather|prefer(?: it if)?)\s+(?:that )?you\s+"
        rf"(?:didn'?t|did not|don'?t|do not|not|no longer|never|stopped)\s+(?P<verb>{KEEP}"
        rf"|{KEEPING})\b"
        rf"(?P<object>.*)",
        "I'd rather you didn't remember",
    ),
    described(
        "unwanted",
        rf"\bi\s+(?:really )?(?:don'?t|do not|no longer|never)\s+(?:want|need|wish|like)\s+"
        rf"(?:(?:for )?you\s+(?:to\s+)?)(?P<verb>{KEEP}|{KEEPING})\b(?P<object>.*)",
        "I don't want you to remember",
    ),
    described(
        "unwanted",
        rf"\bi\s+(?:really )?(?:don'?t|do not|no longer|never)\s+(?:want|need"
        rf"|wish)\s+(?P<object>.+?)\s+"
        rf"(?:to be |be |being )?(?P<verb>{KEPT}|on (?:file|record)|in (?:your|the|my|this|shared) "
        rf"(?:\w+ )?(?:memory|records?|notes?|chart|file|profile))\b(?P<tail>.*)",
        "I don't want that kept",
    ),
    described(
        "not_keep",
        rf"^{LEAD}{TITLE}{WHEN}{LEAD}(?:do not|don'?t|never|no longer|stop|quit|no need to"
        rf"|avoid)\s+"
        rf"(?P<verb>{KEEP}|{KEEPING})\b(?P<object>.*)",
        "do not keep, stop remembering",
    ),
    described(
        "not_keep",
        r"\b(?:and|please|to|should)\s+(?:please )?(?:do not|don'?t|never|no longer|not|stop)\s+"
        r"(?P<verb>remember|store|retain|memori[sz]e|recall|remembering|storing|retaining"
        r"|recalling)\b"
        r"(?P<object>.*)",
        "and stop recalling",
    ),
    described(
        "should_go",
        rf"^(?P<object>.+?)\s+(?:should|must|needs? to|has to|have to|ought to|can|may|is to"
        rf"|are to)"
        rf"\s+(?:now |please |also )?be\s+(?:now |also |fully "
        rf"|completely )?(?P<verb>{DELETED})\b(?P<tail>.*)",
        "that should be deleted",
    ),
    described(
        "should_go",
        rf"^(?P<object>.+?)\s+(?:should|must|may|can)\s+(?:not|no longer|never|n't)\s+"
        rf"(?:be |remain |stay )(?:\w+ )?(?P<verb>{KEPT}|recoverable|retrievable|answerable"
        rf"|on file|in memory)\b"
        rf"(?P<tail>.*)",
        "that should not be recoverable",
    ),
    described(
        "should_go",
        r"^(?P<object>.+?)\s+(?:should|must|needs? to)\s+(?:now )?(?P<verb>stop circulating"
        r"|disappear|go)"
        r"\b(?P<tail>.*)",
        "that should stop circulating in memory",
    ),
    described(
        "order",
        rf"^{LEAD}{WHEN}{LEAD}(?:make sure|ensure|see to it)\s+(?:that\s+)?(?P<object>.+?)\s+"
        rf"(?:is|are|gets?|has been|have been)\s+(?:\w+ly )?(?P<verb>{DELETED})\b(?P<tail>.*)",
        "make sure that it is deleted",
    ),
    described(
        "order",
        rf"(?:^{LEAD}{WHEN}|\bplease )take\s+(?P<object>.+?)\s+(?P<verb>out of|off)\b(?P<tail>.*)",
        "take it out of memory",
    ),
    described(
        "order",
        rf"^{LEAD}{WHEN}{LEAD}(?:have|get|make sure"
        rf"|ensure)\s+(?:that\s+)?(?P<object>.+?)\s+(?:to be )?"
        rf"(?P<verb>{DELETED}|no longer (?:appears?|shows?|exists?))\b(?P<tail>.*)",
        "have it deleted, make sure that it no longer appears",
    ),
    described(
        "order",
        rf"^{LEAD}(?:memory |data )?(?:deletion|erasure|removal|forget)\s*"
        rf"(?:request|instruction|order)?\s*:\s*(?P<object>.*)",
        "deletion request: the list alone",
    ),
    described(
        "ask",
        rf"\b(?:let'?s|let us|we (?:need|have) to|we must)\s+(?:please |now |also |just |then )*"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "let us delete that",
    ),
    described(
        "ask",
        rf"\b(?:good|great|nice|best|better|helpful|grateful|glad|happy|happier) if you (?:could "
        rf"|would )?"
        rf"(?:please )?(?P<verb>{FORGET}|forgot|{DELETE}|{DELETED})\b(?P<object>.*)",
        "it would be good if you forgot",
    ),
    described(
        "want",
        r"^(?:[\w',.!]+\s+){0,3}?(?:i(?:'m| am| would like to| want to| hereby)?\s+)?"
        r"(?:request(?:ing)?|ask(?:ing)? for|want|need)\s+(?:the |a )?"
        r"(?P<verb>deletion|removal|erasure)\s+of\b(?P<object>.*)",
        "requesting deletion of",
    ),
    described(
        "want",
        rf"\b(?:request|requesting|ask|asking|insist|insisting) that (?P<object>.+?) be "
        rf"(?P<verb>{DELETED})\b(?P<tail>.*)",
        "I request that it be deleted",
    ),
    described(
        "want",
        rf"\b(?:rather|prefer(?: it if)?)\s+(?:that )?you\s+(?:would )?"
        rf"(?P<verb>{FORGET}|forgot|{DELETE}|{DELETED})\b(?P<object>.*)",
        "I would rather you forgot",
    ),
    described(
        "unwanted",
        rf"\b(?:revok\w+|withdraw\w*)\s+(?:my |the )?(?:permission|consent"
        rf"|authori[sz]ation)\s+(?:to|for)"
        rf"\s+(?P<verb>{KEEP}|{KEEPING})\b(?P<object>.*)",
        "I withdraw my consent to keep it",
    ),
    described(
        "off_record",
        r"^(?P<object>.*?)\b(?P<verb>off the record|pretend i (?:never|didn'?t)"
        r"|act as if i (?:never|didn'?t)"
        r"|let'?s forget)\b(?P<tail>.*)",
        "indirect idioms",
    ),
)

#: Somebody says that it was done, or that the request was taken; group `object` likewise.
ACKNOWLEDGEMENTS: tuple[Pattern, ...] = (
    described(
        "request_noted",
        r"\b(?:deletion|delete|forget|erasure|removal|cleanup|clean-up|purge)s?\s*(?:\w+\s)?"
        r"(?:request|instruction|wish|order)?s?\s*(?:\w+\s)?(?:was |were |is |has been "
        r"|have been )?"
        rf"{NOTED}\b(?P<object>.*)",
        "deletion request recorded: …",
    ),
    described(
        "request_noted",
        r"\b(?:deletion|removal|erasure|delete) request for (?P<object>.+?),?\s+"
        rf"(?:is|was|has been) (?:now )?(?:complete|done|{NOTED})\b",
        "your deletion request for … is complete",
    ),
    described(
        "request_noted",
        rf"^(?:i |we |i've |i have |we have )?(?:just )?(?:also )?(?:am |are )?(?:documented"
        rf"|recording|{NOTED})"
        r"\b[:.]?\s*(?:a |the |your |this )?"
        r"(?:deletion|delete|erasure|removal|forget)\s?(?:request)?\b(?P<object>.*)",
        "I documented a deletion request for …",
    ),
    described(
        "request_noted",
        rf"\b{NOTED}\s+(?:a |the |your |this )?(?:\w+ )?requests?\s+(?:to|for)\s+"
        rf"(?:{DELETE}|{FORGET}|deletion of|removal of)\b(?P<object>.*)",
        "noted the request to delete …",
    ),
    described(
        "request_noted",
        rf"\brequests?\s+{NOTED}\s*[:,.]?\s*(?:{DELETE}|{FORGET}|deletion of"
        rf"|removal of)\b(?P<object>.*)",
        "request noted: delete …",
    ),
    described(
        "told",
        r"^(?:the |our )?(?:patient|user|client|customer|student|caller|member|guest"
        r"|parent)\s+(?:has |just )?"
        r"(?:requested|asked for|asked|wants|wanted|asks)\s+(?:for |us )?(?:the )?"
        rf"(?:deletion of|removal of|erasure of|to (?:{DELETE}|{FORGET}))\b(?P<object>.*)",
        "the patient requested deletion of …",
    ),
    described(
        "done",
        rf"^{LEAD}(?:(?:acknowledged|confirmed|done|noted|understood|received"
        rf"|completed)[\s,.:—–-]+)"
        rf"(?P<verb>{FORGET}|{DELETE}|{DELETED})\b(?P<object>.*)",
        "acknowledged: remove …",
    ),
    described(
        "done",
        r"\b(?:deletion|cleanup|clean-up|removal|purge)s?\s+(?:\w+\s)?(?:applied|completed?|done"
        r"|finished"
        r"|confirmed|executed)\b(?P<object>.*)",
        "deletion completed",
    ),
    described(
        "done",
        rf"^(?P<object>.*?)\b(?:is|are|was|were|has been|have been|been|got)\s+(?:now |also "
        rf"|just |already "
        rf"|permanently |fully |successfully )*(?P<verb>{DELETED})\b(?P<tail>.*)",
        "X is deleted from memory",
    ),
    described(
        "done",
        rf"^{LEAD}(?P<verb>deleted|erased|removed|scrubbed|wiped|purged|forgotten"
        rf"|cleared)\b(?P<object>.*)",
        "Deleted temporary contact: …",
    ),
    described(
        "done",
        rf"^(?P<object>.+?)\s+(?P<verb>{DELETED})\s+(?:from|out of)\b(?P<tail>.*)",
        "entries cleared from memory",
    ),
    described(
        "done",
        rf"\b(?:i|we)(?:'ve| have| has|'m| am| are)?\s+(?:now |just |also |already )*(?:{DELETED}"
        rf"|{DELETING})\b"
        rf"(?P<object>.*)",
        "I have deleted …",
    ),
    described(
        "done",
        rf"\b(?:memory|record|chart|notes?|file|profile)s?\s+(?:is |was |has been )?(?:updated"
        rf"|cleaned)\s+"
        rf"(?:to|and)\s+(?P<verb>{DELETE}|{DELETED})\b(?P<object>.*)",
        "memory updated to remove …",
    ),
    described(
        "done",
        r"^(?P<object>.+?)\s+(?:is|are)\s+no longer (?:part of|in|held in|stored in|kept in)\s+"
        r"(?P<tail>.*\b(?:memory|memories)\b.*)",
        "X is no longer part of memory",
    ),
    described(
        "told",
        r"^(?P<object>.+?)\s+(?:(?:is|are|was|were|has been|have been)\s+)?(?:now )?"
        r"(?:marked|queued|flagged|scheduled|slated)\s+for\s+(?P<verb>deletion|removal"
        r"|erasure)\b(?P<tail>.*)",
        "marked for deletion",
    ),
    described(
        "told",
        rf"\b(?:i|we)(?:'ll| will)\s+(?:now |also )?(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "I will delete it now",
    ),
    described("told", rf"^{LEAD}(?P<verb>{DELETING})\b(?P<object>.*)", "okay, forgetting …"),
    described(
        "told",
        rf"^[\w’' -]{{2,40}}?(?:\s|:\s+)(?P<verb>{DELETED})\b\s*:?(?P<object>.+)",
        "entry deleted: …; memory update: deleted …",
    ),
    described(
        "told",
        r"^(?:[\w’' -]{2,40}:\s+)?(?P<object>.+?)\s+"
        r"(?P<verb>deleted|erased|removed|purged|scrubbed|wiped|forgotten)"
        r"(?:\s+(?:at|per|by|on|as|upon)\b.*)?[.!]?$",
        "… deleted at the patient's request",
    ),
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
        rf"(?! (?:like|want|need|prefer|rather|appreciate))[^.;:]{{0,90}}\b(?:{FORGET}|{DELETE}"
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
)
