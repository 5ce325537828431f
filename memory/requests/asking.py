"""How people ask to forget: the patterns of wishes, each with the reason why it is there."""

from __future__ import annotations

from memory.requests.wording import (
    DELETE,
    DELETED,
    DELETING,
    FORGET,
    KEEP,
    KEEPING,
    KEPT,
    LEAD,
    TITLE,
    WHEN,
    Pattern,
    described,
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
        rf"(?:\b(?:please|kindly)\s+(?:also\s+|just\s+|then\s+)?"
        rf"|[,;:.—–]\s*(?:so|then|and|but)\s+(?:also\s+|just\s+|then\s+|please\s+)?)"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "an imperative later in the sentence, behind please or behind a comma",
    ),
    described(
        "order_and",
        rf"\b(?:so|then|and|but)\s+(?:also\s+|just\s+|then\s+)?(?P<verb>{FORGET}"
        rf"|{DELETE})\b(?P<object>.*)",
        "use only my mobile now and delete the old number from memory",
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
        rf"\b(?:can|could|would|will)\s+you\s+(?:please |kindly |mind )*"
        rf"(?:not|never|stop|no longer)\s+(?:please )?"
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
        rf"|{KEEPING}|{KEPT})\b"
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
        "ask",
        rf"\b(?:can|could|may|should)\s+(?P<object>(?:the|my|that|those|this|these|all|any|our|it"
        rf"|they)\b.*?)"
        rf"\s+(?:please |also )?be\s+(?:please |also )?(?P<verb>{DELETED})\b(?P<tail>.*)",
        "could that be deleted, please?",
    ),
    described(
        "ask",
        rf"\b(?:is it|would it be|if it is|if it's) (?:possible|ok|okay|alright"
        rf"|fine) (?:for you )?to "
        rf"(?:please )?(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "would it be possible to delete",
    ),
    described(
        "want",
        rf"\b(?:ask|asking|beg|begging|urge|urging|telling) you to (?:please |also )?"
        rf"(?P<verb>{FORGET}|{DELETE})\b(?P<object>.*)",
        "I am asking you to forget",
    ),
    described(
        "off_record",
        r"^(?P<object>.*?)\b(?P<verb>off the record|pretend i (?:never|didn'?t)"
        r"|act as if i (?:never|didn'?t)"
        r"|let'?s forget)\b(?P<tail>.*)",
        "indirect idioms",
    ),
)
