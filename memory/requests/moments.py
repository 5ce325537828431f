"""Times in requests: when to forget ("after Tuesday"), and which span to forget ("last week").

Everything is reckoned in UTC from the time the request was told. A request without a time cannot
be dated; weekdays and "yesterday" then name no span, and a later time becomes an `Event`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from memory.requests.plan import Due, Event
from memory.requests.values import MONTHS, WEEKDAYS

_DAY = timedelta(days=1)
_FAR = timedelta(days=270)
_WEEKDAY = re.compile(rf"\b({'|'.join(WEEKDAYS)}|mon|tue|tues|wed|thu|thurs|fri|sat|sun)\b")
_MONTH_FORMS = "|".join(f"{name}|{name[:3]}|{name[:4]}" for name in MONTHS)
_MONTH_DAY = re.compile(
    rf"\b({_MONTH_FORMS})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?:,? (\d{{4}}))?\b"
    rf"|\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH_FORMS})(?:,? (\d{{4}}))?\b"
)
_ISO = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_WORDED = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {name: i for i, name in enumerate(_WORDED)} | {
    "a": 1,
    "an": 1,
    "couple of": 2,
    "a couple of": 2,
    "few": 3,
}
_COUNT = rf"(?:\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNITS = {"hour": timedelta(hours=1), "day": _DAY, "week": 7 * _DAY, "month": 30 * _DAY}
_IN = re.compile(rf"\b(?:in|within) ({_COUNT}) (hour|day|week|month)s?\b")
_PAST = re.compile(rf"\b(?:the )?(?:last|past|previous) ({_COUNT}) (hour|day|week|month)s?\b")
_AGO = re.compile(rf"\b({_COUNT}) (hour|day|week|month)s? ago\b")
_LEAD = re.compile(
    r"^(?P<word>after|once|when|as soon as|at the end of|on|by|starting|at|in|until)?\s*"
)
_GERUND = re.compile(r"^(?:you(?:'ve| have)? )?\w+ing\b")
_HAPPENED = re.compile(r"\b(?:was|were|had|did|went|came|left|got|became)\b|\b\w{3,}ed\b")
_AHEAD = re.compile(r"\b(?:is|are|has|have|been|be|gets?)\s+(?:\w+ ){0,2}?\w{3,}ed\b")

_BETWEEN = re.compile(
    r"\b(?:between|from)\s+(?P<a>[\w ,]{3,30}?)\s+(?:and|to|until|till|through"
    r"|-)\s+(?P<b>[\w ,]{3,30})"
)
_OPEN = re.compile(r"\b(?P<word>since|before|after|until|prior to)\s+(?P<a>[\w ,-]{3,30})")
_NAMED = (
    (re.compile(r"\b(?:today|this (?:morning|afternoon|evening))\b"), 0, 1),
    (re.compile(r"\b(?:yesterday|last night)\b"), -1, 0),
    (re.compile(r"\bday before yesterday\b"), -2, -1),
)


def due(when: str | None, asked_at: int | None, key: bytes) -> Due:
    """When a request takes effect: None for now, a moment, or an event that cannot be dated.

    "After Tuesday" is the end of that day; a condition in the past tense has come true already.
    """
    if when is None:
        return None
    low = when.lower().strip(" .,!")
    lead = _LEAD.match(low)
    word = lead["word"] if lead else None
    rest = low[lead.end() :] if lead else low
    if word == "by":
        return None  # "by Friday" is kept by doing it now
    if asked_at is not None:
        at = _moment(low, rest, word, _utc(asked_at))
        if at is not None:
            # A date without a year lies next year only where it cannot be the one just past.
            soon = _micro(at) > asked_at and at - _utc(asked_at) <= _FAR
            return _micro(at) if soon or re.search(r"\d{4}", rest) else None
    dated = _WEEKDAY.search(rest) or _MONTH_DAY.search(rest) or "today" in rest
    happened = _GERUND.match(rest) or (_HAPPENED.search(rest) and not _AHEAD.search(rest))
    if happened and not dated and word is not None:
        return None
    return Event.of(rest, key)


def span(text: str, asked_at: int | None) -> tuple[int | None, int | None, str] | None:
    """The time span a text names: (start, end, the words that name it), or None.

    "Last week" is the calendar week before, Monday to Sunday; "the last 7 days" ends when it is
    asked.
    """
    low = text.lower()
    if asked_at is None:
        return None
    asked = _utc(asked_at)
    found = _relative(low, asked) or _closed(low, asked) or _open(low, asked) or _days(low, asked)
    if found is None:
        return None
    start, end, words = found
    return (
        None if start is None else _micro(start),
        None if end is None else _micro(end),
        words,
    )


_Found = tuple[datetime | None, datetime | None, str]


def _moment(low: str, rest: str, word: str | None, asked: datetime) -> datetime | None:
    today = _midnight(asked)
    within = _IN.search(low)
    if within is not None:
        return asked + _times(within[1], within[2])
    if re.match(r"(?:today|tonight|the day)$", rest) or low == "tonight":
        return today + _DAY
    if rest.startswith("tomorrow"):
        return today + (2 if word == "after" else 1) * _DAY
    ahead = re.match(r"next (week|month)", rest)
    if ahead is not None:
        return today + (7 - asked.weekday()) * _DAY if ahead[1] == "week" else _next_month(today)
    day = _date_in(rest, asked, past=False)
    if day is None:
        return None
    return day if word in ("on", "starting", "at", "in") else day + _DAY


def _date_in(low: str, asked: datetime, *, past: bool) -> datetime | None:
    """The day a text names; without a year the nearest on the side that is meant."""
    iso = _ISO.search(low)
    if iso is not None:
        return _day(int(iso[1]), int(iso[2]), int(iso[3]))
    match = _MONTH_DAY.search(low)
    if match is not None:
        name, number, year = (
            (match[1], match[2], match[3]) if match[1] else (match[5], match[4], match[6])
        )
        month = next(i for i, full in enumerate(MONTHS, 1) if full.startswith(name[:3]))
        if year:
            return _day(int(year), month, int(number))
        day = _day(asked.year, month, int(number))
        if day is not None and past and day > asked:
            return _day(asked.year - 1, month, int(number))
        if day is not None and not past and day + _DAY <= asked:
            return _day(asked.year + 1, month, int(number))
        return day
    weekday = _WEEKDAY.search(low)
    if weekday is None:
        return None
    wanted = next(i for i, full in enumerate(WEEKDAYS) if full.startswith(weekday[1][:3]))
    apart = (asked.weekday() - wanted) % 7 if past else (wanted - asked.weekday()) % 7
    return _midnight(asked) + (-apart if past else apart) * _DAY


def _relative(low: str, asked: datetime) -> _Found | None:
    today = _midnight(asked)
    past = _PAST.search(low)
    if past is not None:
        return asked - _times(past[1], past[2]), asked, past[0]
    ago = _AGO.search(low)
    if ago is not None:
        day = _midnight(asked - _times(ago[1], ago[2]))
        return day, day + (7 * _DAY if ago[2] == "week" else _DAY), ago[0]
    for pattern, first, last in reversed(_NAMED):
        match = pattern.search(low)
        if match is not None:
            return today + first * _DAY, today + last * _DAY, match[0]
    match = re.search(r"\b(last|this|the past|past) (week|month|year)\b", low)
    if match is None:
        return None
    start = {
        "week": today - asked.weekday() * _DAY,
        "month": today.replace(day=1),
        "year": today.replace(month=1, day=1),
    }[match[2]]
    if match[1] == "this":
        return start, asked, match[0]
    if "past" in match[1]:
        return asked - {"week": 7, "month": 30, "year": 365}[match[2]] * _DAY, asked, match[0]
    before = start - _DAY
    begin = {
        "week": start - 7 * _DAY,
        "month": before.replace(day=1),
        "year": before.replace(month=1, day=1),
    }[match[2]]
    return begin, start, match[0]


def _closed(low: str, asked: datetime) -> _Found | None:
    match = _BETWEEN.search(low)
    if match is None:
        return None
    start = _date_in(match["a"], asked, past=True)
    end = _date_in(match["b"], asked, past=True)
    if start is None or end is None:
        return None
    return (start, end + _DAY, match[0]) if start <= end else None


def _open(low: str, asked: datetime) -> _Found | None:
    match = _OPEN.search(low)
    day = None if match is None else _date_in(match["a"], asked, past=True)
    if match is None or day is None:
        return None
    if match["word"] == "since":
        return day, asked, match[0]
    if match["word"] == "after":
        return day + _DAY, asked, match[0]
    return None, day + (_DAY if match["word"] == "until" else timedelta()), match[0]


def _days(low: str, asked: datetime) -> _Found | None:
    match = re.search(rf"\b(?:in|during|from) ({_MONTH_FORMS})\b(?:,? (\d{{4}}))?(?! \d)", low)
    if match is not None:
        month = next(i for i, full in enumerate(MONTHS, 1) if full.startswith(match[1][:3]))
        year = int(match[2] or asked.year - (month > asked.month))
        first = _day(year, month, 1)
        return None if first is None else (first, _next_month(first), match[0])
    match = re.search(
        rf"\b(?:on|from|of|last)\s+(?:last )?(?:{_WEEKDAY.pattern}|{_MONTH_DAY.pattern}"
        rf"|{_ISO.pattern})",
        low,
    )
    day = None if match is None else _date_in(match[0], asked, past=True)
    if match is None or day is None:
        return None
    if "last" in match[0] and day == _midnight(asked):
        day -= 7 * _DAY
    return day, day + _DAY, match[0]


def _times(count: str, unit: str) -> timedelta:
    return (int(count) if count.isdigit() else _NUMBERS[count]) * _UNITS[unit]


def _day(year: int, month: int, day: int) -> datetime | None:
    try:
        return datetime(year, month, day, tzinfo=UTC)
    except ValueError:  # 30 February
        return None


def _next_month(day: datetime) -> datetime:
    return (day.replace(day=1) + 32 * _DAY).replace(day=1)


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _utc(moment: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)


def _micro(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
