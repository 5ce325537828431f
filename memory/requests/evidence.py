"""What tells that "delete", "remove" or "drop" is meant for memory, and not for a file or a stain.

The patterns read lower-case text with quotations blanked out, as those of `wording` do.
"""

from __future__ import annotations

import re

#: Where it is to be forgotten: enough to know that a "delete" is meant for memory.
MEMORY = re.compile(
    r"\b(?:from|in|out of|of|within|off)\s+(?:[\w’'-]+\s+){0,4}?(?:memory|memories|mind"
    r"|what you know)\b"
    r"|\b(?:retrievable|recoverable)\b"
)
MEMORY_PLACE = re.compile(
    MEMORY.pattern
    + r"|\b(?:from|in|out of|off|within)\s+(?:[\w’'-]+\s+){0,3}?(?:records?|charts?|notes?|profile"
    r"|history|summary|summaries|file history)\b"
    r"|\b(?:from|in|out of|off|within|on)\s+(?:your|my|our|this|the|shared|active"
    r"|the assistant'?s?|\w+'s)\s+"
    r"(?:\w+\s+){0,3}?(?:files?|database|logs?|system|storage|knowledge|conversation|chat|context"
    r"|end)\b"
    r"|\b(?:anywhere|at all|on file|on record)\b"
)
#: Places that are somebody else's: a task, not a wish to forget.
OTHER_PLACE = re.compile(
    r"\b(?:from|off|out of|in|on|under|inside|at)\s+(?:\w+\s+){0,3}?(?:laptop|computer|desktop"
    r"|disk|drive|phone app"
    r"|folder|directory|repo|repository|branch|server|bucket|cart|basket|shelf|wall|floor|carpet"
    r"|shirt|skin"
    r"|wound|oven|fridge|pan|car|truck|garage|garden|house wall|table|bed|inbox|spreadsheet"
    r"|document|draft"
    r"|code|script|function|list|menu|playlist|calendar|schedul\w+(?: \w+)?|team|group|meeting"
    r"|roster"
    r"|statement\w*(?: \w+)?|permissions?|recipe|diet|water|soup|dish|tree|engine|screen|window)\b"
)
#: Nouns for information; with one of them (or a value) as its object, "delete" is meant for memory.
INFORMATION = re.compile(
    r"\b(?:numbers?|phones?|address(?:es)?|names?|alias(?:es)?|nicknames?|labels?|notes?|wording"
    r"|phrase"
    r"|phrasing|tokens?|codes?|credentials?|badges?|amounts?|figures?|passwords?|passcodes?|pins?"
    r"|preferences?"
    r"|history|details?|information|info|data|facts?|entry|entries|mentions?|contacts?|lines?"
    r"|instructions?"
    r"|emails?|e-mails?|birthdays?|birth ?date|date of birth|diagnos[ei]s|conditions?|allerg\w+"
    r"|mappings?"
    r"|locations?|routes?|what i (?:said|told|mentioned)|i (?:told|said|mentioned|gave)|memor(?:y"
    r"|ies)"
    r"|conclusions?|inference|guess|everything|anything|messages?|conversations?|records?|values?"
    r"|references?"
    r"|specifics|scope|salary|account|card|iban|ssn|appointments?|override|secret|backups?|identity"
    r"|whereabouts)\b"
)
#: Things that lie in files and rooms, whatever they are called.
THING = re.compile(
    r"\b(?:(?<!on )files?|folders?|photos?|pictures?|images?|apps?|emails? from|bandages?|stains?"
    r"|trash"
    r"|garbage|rows?"
    r"|columns?|comments?|lines? of code|duplicates?|branch(?:es)?|containers?|packages?|access"
    r"|permissions?"
    r"|cookies|browser|cache|temp(?:orary)? files|lid|skin|seeds|sentence|paragraph|virus|spam"
    r"|bugs?"
    r"|liquids?|patch|catheter|stitches|sutures|staples|drain|medication|dose|pill|event|meeting"
    r"|item)\b"
)
IDIOM = re.compile(
    r"^\s*(?:it|about it|about that|me not|the rest)?\s*(?:[,.!…—–-]|$|then\b|never ?mind\b"
    r"|for now\b|i\b)"
)

#: What is to stay; group `kept`. The value behind it is no target.
KEPT_CLAUSE = re.compile(
    r"(?:\b(?:and|but|while|then|,|—|–|;)\s*)?\b(?:only\s+)?(?:keep|keeping|kept|retain|retaining"
    r"|leave|leaving|left"
    r"|use|using|rely on|retained?|preserve|preserving)\b(?!\s+(?:it|that|this"
    r"|them)\b)(?:\s+(?:only|just))?"
    r"(?P<kept>.*)"
)
