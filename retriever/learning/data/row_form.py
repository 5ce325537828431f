"""The two forms of a row, checked field by field and brought into one.

Memento's:  `query, case, truth_label`, optional `case_label, plan`; how its logs come.
Ours:       `run_id, query, case, outcome`, optional `case_id, plan, case_outcome, rank, score,
            propensity, teacher_score, time`.

A field that is null counts as absent (Parquet and CSV know no other absence). A field that the form
does not know is an error, so that a misspelt one is never lost.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from retriever.errors import InvalidInput
from retriever.learning.data.lines import BadRow, json_type, shown
from retriever.text import plan_steps

MEMENTO_REQUIRED = ("query", "case", "truth_label")
MEMENTO_FIELDS = (*MEMENTO_REQUIRED, "case_label", "plan")
OUR_REQUIRED = ("run_id", "query", "case", "outcome")
OUR_FIELDS = (
    *OUR_REQUIRED,
    *("case_id", "plan", "case_outcome", "rank", "score", "propensity", "teacher_score", "time"),
)

_KNOWN = frozenset((*OUR_FIELDS, *MEMENTO_FIELDS))
_BANK_FORMS = ({"question", "plan", "reward"}, {"case", "plan", "case_label"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class LogRow(NamedTuple):
    """One checked row; the fields are the columns of the table, in this order."""

    run_id: str | None
    query: str
    case_id: str | None
    case: str
    plan: str | None
    case_outcome: float | None
    outcome: float
    rank: int | None
    score: float | None
    propensity: float | None
    teacher_score: float | None
    time: int | None  # microseconds since 1970-01-01 UTC


def checked_row(fields: Mapping[str, Any]) -> LogRow:
    """The row that `fields` hold, in whichever of the two forms.

    Raises:
        BadRow: with the field, its value and the remedy.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    memento, ours = "truth_label" in given, "outcome" in given
    if memento and ours:
        raise BadRow(
            "two forms in one row",
            "the row has truth_label (Memento's form) and outcome (ours); keep one of them",
        )
    if memento:
        _require_fields(fields, given, MEMENTO_REQUIRED, MEMENTO_FIELDS, "Memento's form")
        return LogRow(
            run_id=None,
            query=_text("query", given["query"]),
            case_id=None,
            case=_text("case", given["case"]),
            plan=_plan(given.get("plan")),
            case_outcome=_case_label(given.get("case_label")),
            outcome=_label("truth_label", given["truth_label"]),
            rank=None,
            score=None,
            propensity=None,
            teacher_score=None,
            time=None,
        )
    if ours:
        _require_fields(fields, given, OUR_REQUIRED, OUR_FIELDS, "our form")
        get = given.get
        return LogRow(
            run_id=_identifier("run_id", given["run_id"]),
            query=_text("query", given["query"]),
            case_id=_identifier("case_id", get("case_id")),
            case=_text("case", given["case"]),
            plan=_plan(get("plan")),
            case_outcome=_unit("case_outcome", get("case_outcome")),
            outcome=_outcome(given["outcome"]),
            rank=_rank(get("rank")),
            score=_finite("score", get("score")),
            propensity=_propensity(get("propensity")),
            teacher_score=_finite("teacher_score", get("teacher_score")),
            time=_time(get("time")),
        )
    raise _fits_neither(given)


def row_bytes(row: LogRow) -> bytes:
    """The row as canonical JSON, what digests are taken of."""
    try:
        return _ENCODER.encode(row).encode()
    except UnicodeEncodeError as error:
        field = next(name for name, value in row._asdict().items() if _is_broken_text(value))
        raise BadRow(
            "bad Unicode",
            f"{field} holds half a surrogate pair ({error.object[error.start]!r}); "
            "write the character itself",
        ) from error


def _is_broken_text(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value)


def _require_fields(
    fields: Mapping[str, Any],
    given: Mapping[str, Any],
    required: tuple[str, ...],
    known: tuple[str, ...],
    form: str,
) -> None:
    missing = [name for name in required if name not in given]
    unknown = [key for key in given if key not in known]
    # A null of the other form's column is how Parquet and CSV leave a field out.
    unknown += [key for key in fields if key not in given and key not in _KNOWN]
    if missing:
        raise BadRow(
            "missing field",
            f"{', '.join(missing)} missing or null ({form}){_near_misses(unknown, missing)}",
        )
    if unknown:
        near = _near_misses(unknown, known) or f"; {form} has {', '.join(known)}"
        raise BadRow(
            "unknown field",
            f"unknown field {unknown[0]!r} (value {shown(fields[unknown[0]])}){near}; "
            "rename or remove it",
        )


def _near_misses(unknown: Iterable[str], known: Iterable[str]) -> str:
    known = list(known)
    for key in unknown:
        near = difflib.get_close_matches(key, known, n=1)
        if near:
            return f"; {key!r} may be meant for {near[0]!r}"
    return ""


def _fits_neither(given: Mapping[str, Any]) -> BadRow:
    if "query" not in given and any(form <= set(given) for form in _BANK_FORMS):
        return BadRow(
            "a case, not a row of a log",
            "this is a case of a bank: no query was run and no outcome logged; "
            "import it into a bank, and train on a log of runs",
        )
    lacks = [
        [name for name in form if name not in given] for form in (MEMENTO_REQUIRED, OUR_REQUIRED)
    ]
    unknown = [key for key in given if key not in _KNOWN]
    return BadRow(
        "missing field",
        f"the row fits neither form: Memento's lacks {', '.join(lacks[0])}; "
        f"ours lacks {', '.join(lacks[1])}{_near_misses(unknown, [*lacks[0], *lacks[1]])}",
    )


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(field, value, "a string")
    if not value or value.isspace():
        raise BadRow(
            "empty text", f"{field} is empty or blank ({value!r}); write the text, or drop the row"
        )
    return value


def _plan(value: Any) -> str | None:
    """A plan as text: its own, or the JSON of its object or list; a blank one is no plan."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        text = value
    elif isinstance(value, Mapping | list):
        try:
            text = _ENCODER.encode(value)
        except (TypeError, ValueError) as error:
            raise BadRow("bad plan", f"plan is no JSON: {error}; give text or JSON") from error
    else:
        raise _wrong_type("plan", value, "a string, an object or an array")
    problem = _plan_problem(text)
    if problem:
        raise BadRow("bad plan", f"{problem}; plan = {shown(value)}")
    return text


@lru_cache(maxsize=8192)  # a case is shown many times
def _plan_problem(plan: str) -> str | None:
    """Why the model's text of a plan could not be made, or None; found here, with its line."""
    try:
        "".join(plan_steps(plan)).encode()
    except InvalidInput as error:
        return str(error)
    except UnicodeEncodeError:
        return "plan holds half a surrogate pair; write the character itself"
    except RecursionError:
        return "plan is nested too deeply; flatten it"
    return None


def _identifier(field: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value and not value.isspace()):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        raise BadRow(
            "empty text", f"{field} is empty or blank ({value!r}); give a name or a number"
        )
    raise _wrong_type(field, value, "a string or a whole number")


def _case_label(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and value.lower() in ("positive", "negative"):
        return 1.0 if value.lower() == "positive" else 0.0
    if isinstance(value, str):
        raise BadRow("bad label", f"case_label must be positive or negative, got {shown(value)}")
    raise _wrong_type("case_label", value, '"positive" or "negative"')


def _label(field: str, value: Any) -> float:
    number = _boolean_word(value)
    if number is None and isinstance(value, int | float) and value in (0, 1):
        number = float(value)
    if number is None:
        raise BadRow(
            "bad label", f"{field} must be true, false, 0 or 1, got {shown(value)}; correct it"
        )
    return number


def _outcome(value: Any) -> float:
    word = _boolean_word(value)
    number = _unit("outcome", value) if word is None else word
    assert number is not None
    return number


def _boolean_word(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return float(value.strip().lower() == "true")
    return None


def _unit(field: str, value: Any) -> float | None:
    number = _boolean_word(value)
    if number is None:
        number = _finite(field, value)
    if number is not None and not 0.0 <= number <= 1.0:
        raise BadRow("out of range", f"{field} must be from 0 to 1, got {shown(value)}; rescale it")
    return number


def _propensity(value: Any) -> float | None:
    number = _finite("propensity", value)
    if number is not None and not 0.0 < number <= 1.0:
        raise BadRow(
            "out of range",
            f"propensity must be above 0 and at most 1, got {shown(value)}: it is the probability "
            "with which the policy showed this case; leave it out where it is not known",
        )
    return number


def _finite(field: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(field, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadRow(
            "not a finite number",
            f"{field} must be finite, got {shown(value)}; leave it out if unknown",
        )
    return number


def _rank(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _wrong_type("rank", value, "a whole number from 1")
    if not 1 <= value < 2**31 or int(value) != value:
        raise BadRow("out of range", f"rank must be a whole number from 1, got {shown(value)}")
    return int(value)


def _time(value: Any) -> int | None:
    if value is None:
        return None
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise BadRow(
                "bad time",
                f"time must be like 2026-01-31T09:00:00Z, got {shown(value)}; rewrite it",
            ) from error
    if not isinstance(moment, datetime):
        raise _wrong_type("time", value, "a string like 2026-01-31T09:00:00Z")
    if moment.tzinfo is None:
        raise BadRow("bad time", f"time {shown(value)} has no zone; add Z or an offset")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _wrong_type(field: str, value: Any, wanted: str) -> BadRow:
    return BadRow("wrong type", f"{field} must be {wanted}, got {json_type(value)}: {shown(value)}")
