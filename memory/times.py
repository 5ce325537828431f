"""Times: integer microseconds since 1970-01-01 UTC inside, RFC 3339 with a zone outside.

A time without a zone is refused, and so is anything finer than a microsecond: it could not come
back.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from memory.errors import InvalidInput, shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
# RFC 3339, section 5.6; a space instead of T is its note for readability.
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_FORM = "write it with date, time and zone, such as 2026-01-31T09:30:00Z"


def microseconds(moment: int | str | datetime) -> int:
    """A moment as microseconds since 1970-01-01 UTC.

    Args:
        moment: microseconds already, RFC 3339 text, or a datetime with a zone.

    Raises:
        InvalidInput: no zone, no such date, finer than a microsecond, or outside the years 1-9999.
    """
    reason = f"{_FORM}, or give a datetime with a zone"
    value: Any = moment
    if isinstance(value, bool):
        pass
    elif isinstance(value, int):
        if _FIRST <= value <= _LAST:
            return value
        reason = "as microseconds it lies outside the years 1 to 9999"
    elif isinstance(value, datetime):
        if value.tzinfo is not None and value.utcoffset() is not None:
            return (value - _EPOCH) // _MICROSECOND
        reason = "it has no zone; use datetime(..., tzinfo=UTC) or .astimezone()"
    elif isinstance(value, str):
        return _parsed(value)
    raise InvalidInput(f"{shown(moment)} is not a time: {reason}")


def now() -> int:
    """The machine's clock, microseconds UTC. Nothing relies on it to rise: order is by id."""
    return time.time_ns() // 1000


def rfc3339(moment: int) -> str:
    """Microseconds as RFC 3339 in UTC; the fraction is left out where it is zero."""
    when = _EPOCH + moment * _MICROSECOND
    # isoformat pads the year to four digits on every platform; strftime does not.
    return when.replace(tzinfo=None).isoformat() + "Z"


def _parsed(text: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{shown(text)} is not a time: {_FORM}")
    *clock, fraction, _, sign, hours, minutes = match.groups()
    fraction = (fraction or "").rstrip("0")
    if len(fraction) > 6:
        raise InvalidInput(f"{shown(text)} is finer than a microsecond: at most 6 digits are kept")
    try:
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        if offset >= timedelta(days=1) or int(minutes or 0) > 59:
            raise ValueError("the zone must be below 24:00")
        zone = timezone(-offset if sign == "-" else offset)
        year, month, day, hour, minute, second = map(int, clock)
        when = datetime(
            year, month, day, hour, minute, second, int(fraction.ljust(6, "0")), tzinfo=zone
        )
        moment = (when - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{shown(text)} is not a time: {error}") from error
    if not _FIRST <= moment <= _LAST:
        raise InvalidInput(f"{shown(text)} lies outside the years 1 to 9999 in UTC")
    return moment
