"""Cases as lines of JSON: read one at a time with every fault named.

Three forms of a line are read: ours (see `NewCase.to_json`), and the two of Memento's banks
(Memento-Teams/Memento): `{"case", "plan", "case_label"}` and `{"question", "plan", "reward"}`. Keys
that Memento's forms do not have are kept in `metadata`; in our own form they are an error.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from memory.case import ROW_KEYS, NewCase
from memory.errors import InvalidCase, InvalidInput, shown

#: A longer line is a file of another kind; reading it whole would only fill the memory.
MAX_LINE_BYTES = 64 * 2**20

_BOM = b"\xef\xbb\xbf"
_FIELDS = frozenset(
    (*ROW_KEYS, "external_id", "plan_json", "case", "case_label", "question", "reward")
)
_LABELS = {"positive": 1.0, "negative": 0.0}


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank: its number from 1, where it ends, and a case or what is wrong.

    In a Parquet file it is a row, and `end` the share of the bytes up to it. `problem` quotes the
    line; `field` does not: it is the format's own name of the field that is wrong, and "" where
    the line has no such field.
    """

    number: int
    end: int
    case: NewCase | None
    problem: str = ""
    field: str = ""


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Every line that is not blank, in order, from the start of an open file."""
    end = 0
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        end += len(raw)
        if len(raw) > MAX_LINE_BYTES:
            while not raw.endswith(b"\n") and (raw := file.readline(MAX_LINE_BYTES)):
                end += len(raw)
            limit = MAX_LINE_BYTES // 2**20
            yield Line(number, end, None, f"longer than {limit} MiB; one line holds one case")
            continue
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if not raw.strip():
            continue
        try:
            yield Line(number, end, parse_case(raw))
        except InvalidInput as error:
            yield Line(number, end, None, str(error), field_of(error))


def parse_case(raw: bytes) -> NewCase:
    """The case of one line, in any of the three forms.

    Raises:
        InvalidInput: what is wrong with it: field, value and remedy.
    """
    return case_of(parse_json(_decoded(raw)))


def case_of(row: Any) -> NewCase:
    """The case of a row's values, in any of the three forms.

    Raises:
        InvalidInput: what is wrong with it: field, value and remedy.
    """
    if not isinstance(row, dict):
        raise InvalidInput(f'{shown(row)} is not an object; write a case as {{"query": …}}')
    if "query" in row and "case" in row:
        raise InvalidInput(
            "has both query and case: a row of an outcome log, not a case; train on it instead"
        )
    if "query" in row:
        return NewCase.from_json(row)
    if "case" in row:
        return _memento(row, query="case", outcome="case_label", parse=_label)
    if "question" in row:
        return _memento(row, query="question", outcome="reward", parse=lambda reward: reward)
    near = [(key, m) for key in row for m in difflib.get_close_matches(key, ["query"], n=1)]
    hint = f"did you mean query instead of {near[0][0]}?" if near else f"keys: {shown(list(row))}"
    raise InvalidInput(f"query is missing (or Memento's case or question); {hint}")


def encoded(row: Mapping[str, Any]) -> bytes:
    """A row as one line."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def field_of(error: InvalidInput) -> str:
    """The format's field that an error is about; other names are words of the file, so ""."""
    if not isinstance(error, InvalidCase):
        return ""
    root = re.split(r"[.\[]", error.field.removeprefix("key of "), maxsplit=1)[0]
    return root if root in _FIELDS else ""


def parse_json(text: str) -> Any:
    """The value of a JSON text, without what JSON does not have: repeated keys, NaN, infinity.

    Raises:
        InvalidInput: what is wrong with it.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except InvalidInput:
        raise
    except json.JSONDecodeError as error:
        around = text[max(0, error.pos - 20) : error.pos + 20]
        raise InvalidInput(
            f"not JSON: {error.msg} at character {error.pos}, near {shown(around)}; one line holds "
            "one whole object"
        ) from error
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits, or thousands of brackets.
        raise InvalidInput(f"not JSON that can be read: {error}") from error


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"byte {error.start} is not UTF-8 ({raw[error.start : error.start + 4]!r}); save the "
            "file as UTF-8"
        ) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        values = [value for key, value in pairs if key == repeated]
        raise InvalidInput(f"{shown(repeated)} is given twice: {shown(values)}; keep one of them")
    return row


def _no_constant(name: str) -> Any:
    raise InvalidInput(f"{name} is not JSON; write null for what is not known")


def _memento(row: dict[str, Any], *, query: str, outcome: str, parse: Any) -> NewCase:
    known = (query, "plan", outcome)
    extra = {key: value for key, value in row.items() if key not in known}
    for key in extra:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if near and near[0] not in row:
            raise InvalidInput(f"{key} = {shown(extra[key])}: did you mean {near[0]}?")
    if outcome not in row:
        raise InvalidInput(f"{outcome} is missing; write null where it is not known")
    try:
        return NewCase(
            query=row[query], plan=row.get("plan"), outcome=parse(row[outcome]), metadata=extra
        )
    except InvalidCase as error:
        # The reader knows the field by the name in the file.
        names = {"query": query, "outcome": outcome}
        raise InvalidCase(names.get(error.field, error.field), error.value, error.remedy) from error


def _label(label: Any) -> float | None:
    if label is None:
        return None
    if not isinstance(label, str):
        raise InvalidCase("case_label", label, "write positive, negative or unknown")
    return _LABELS.get(label.strip().casefold())
