"""How people say that a request was taken, or done: patterns with their reasons."""

from __future__ import annotations

from memory.requests.wording import (
    DELETE,
    DELETED,
    DELETING,
    FORGET,
    LEAD,
    Pattern,
    described,
)

REMOVED = r"(?:deleted|erased|removed|purged|scrubbed|wiped|forgotten)"
NOTED = (
    r"(?:logged|recorded|acknowledged|received|entered|executed|noted|confirmed|filed|processed"
    r"|applied"
    r"|completed?|accepted|registered|queued|submitted|sent|forwarded|passed on|documented"
    r"|finished|done)"
)

#: Somebody says that it was done, or that the request was taken; group `object` likewise.
ACKNOWLEDGEMENTS: tuple[Pattern, ...] = (
    described(
        "request_noted",
        r"\b(?:deletion|delete|forget|erasure|removal|cleanup|clean-up|purge)\s+(?:\w+\s)?"
        r"(?:request|instruction|wish|order)s?\s+(?:\w+\s)?(?:was |were |is |has been |have been )?"
        rf"{NOTED}\b(?P<object>.*)",
        "deletion request recorded: …",
    ),
    described(
        "request_noted",
        rf"^{LEAD}(?:[\w-]+ )?(?:deletion|erasure|removal|cleanup|clean-up|purge)\s+(?:is |was "
        rf"|now )?"
        rf"{NOTED}\b(?P<object>.*)",
        "deletion applied: …",
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
        r"(?:marked|flagged)\s+for\s+(?P<verb>deletion|removal"
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
        rf"^(?:[\w’' -]{{2,40}}?\s(?P<verb>{REMOVED})\s*:|[\w’' -]{{2,40}}:\s+{REMOVED}\b\s*:?)"
        r"(?P<object>.+)",
        "entry deleted: …; memory update: deleted …",
    ),
    described(
        "told",
        r"^(?:[\w’' -]{2,40}:\s+)?(?P<object>.+?)\s+"
        rf"(?P<verb>{REMOVED})"
        r"(?:\s+(?:at|per|by|on|as|upon)\b.*)?[.!]?$",
        "… deleted at the patient's request",
    ),
)
