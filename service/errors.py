"""What can go wrong in `service`, and the one table from any error to its HTTP answer.

ServiceError
├── TooLarge            a body, or the number of things in it, over the limits
├── BadRequest          a value of a request that only the endpoint can judge
├── WrongMediaType      a body that does not say it is JSON
└── CannotStart         the server cannot listen where it was told to

Every error has one shape, which the clients of several ecosystems read: OpenAI's `error` object,
`error_type` where clients of text-embeddings-inference look, `detail` for the Jina ones.
"""

from __future__ import annotations

import difflib
import json
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import memory.errors as bank
import retriever.errors as model

log = logging.getLogger(__name__)


class ServiceError(Exception):
    """Base of every error that `service` raises on purpose; `param` names the request's field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TooLarge(ServiceError):
    """A body, or the number of things in it, is over the limits."""


class BadRequest(ServiceError):
    """A value of a request is wrong in a way that only the endpoint can judge."""


class WrongMediaType(ServiceError):
    """A body does not say that it is JSON."""


class CannotStart(ServiceError):
    """The server cannot listen where it was told to."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a type of error is answered: status, OpenAI's `type` and `code`, TEI's `error_type`."""

    status: int
    type: str
    code: str
    error_type: str


_CALLER, _SERVER = "invalid_request_error", "server_error"

#: The nearest class among an error's own bases decides.
TABLE: dict[type[BaseException], Kind] = {
    TooLarge: Kind(413, _CALLER, "too_large", "Validation"),
    BadRequest: Kind(422, _CALLER, "invalid_value", "Validation"),
    WrongMediaType: Kind(415, _CALLER, "wrong_media_type", "Validation"),
    model.InvalidInput: Kind(422, _CALLER, "invalid_value", "Validation"),
    model.IndexUnavailable: Kind(409, _CALLER, "index_unavailable", "Validation"),
    model.BankChanging: Kind(503, _SERVER, "bank_changing", "Overloaded"),
    model.RetrieverError: Kind(500, _SERVER, "model_failed", "Backend"),
    bank.InvalidInput: Kind(422, _CALLER, "invalid_value", "Validation"),
    bank.NotFound: Kind(404, "not_found_error", "not_found", "Validation"),
    bank.AlreadyStored: Kind(409, _CALLER, "already_stored", "Validation"),
    bank.DuplicateCase: Kind(409, _CALLER, "duplicate_case", "Validation"),
    bank.VersionConflict: Kind(409, _CALLER, "version_conflict", "Validation"),
    bank.IdempotencyConflict: Kind(409, _CALLER, "idempotency_conflict", "Validation"),
    bank.AlreadyScored: Kind(409, _CALLER, "already_scored", "Validation"),
    bank.BankUnavailable: Kind(503, _SERVER, "bank_unavailable", "Unhealthy"),
    bank.BankError: Kind(500, _SERVER, "bank_failed", "Backend"),
}
INVALID_BODY = Kind(422, _CALLER, "invalid_body", "Validation")
EMPTY = Kind(400, _CALLER, "empty", "Empty")
UNEXPECTED = Kind(500, _SERVER, "internal_error", "Backend")

#: pydantic's and our own error types that say there was nothing to work on.
_EMPTY_TYPES = ("too_short", "string_too_short", "blank")
_SHOWN = 5
#: Ends the names of the forms that one body may have; they are no part of a field's path.
FORM = "-form"


def envelope(kind: Kind, message: str, param: str | None = None) -> Response:
    """The answer to an error, in the one shape."""
    error = {"message": message, "type": kind.type, "param": param, "code": kind.code}
    body = {"error": error, "error_type": kind.error_type, "detail": message}
    headers = {"Retry-After": "1"} if kind.status == HTTPStatus.SERVICE_UNAVAILABLE else None
    # ASCII only: a lone surrogate quoted from a request must not break the answer about it.
    return Response(json.dumps(body), kind.status, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Answer every known error of the app's endpoints by the table."""
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http)
    for root in (ServiceError, model.RetrieverError, bank.BankError):
        app.add_exception_handler(root, _known)


def unexpected(error: Exception) -> Response:
    """Log where it happened, but not the message: it may quote a query or a case."""
    frames = traceback.extract_tb(error.__traceback__)
    places = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    log.error("unexpected %s%s", type(error).__name__, places)
    return envelope(UNEXPECTED, "the server failed; its log names the place")


def did_you_mean(key: str, known: Sequence[str]) -> str:
    """A hint at the known key that was probably meant."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"


async def _known(request: Request, error: Exception) -> Response:
    kind = next(TABLE[base] for base in type(error).__mro__ if base in TABLE)
    if kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s on %s", type(error).__name__, request.url.path)
    return envelope(kind, str(error), getattr(error, "param", None))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == TABLE[TooLarge].status:
        return envelope(TABLE[TooLarge], message)
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"no {request.url.path} here; /docs lists what is"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method} is not possible on {request.url.path}; see /docs"
    code = HTTPStatus(error.status_code).name.lower()
    kind = Kind(error.status_code, _CALLER, code, "Validation")
    response = envelope(kind, message)
    response.headers.update(error.headers or {})
    return response


async def _invalid_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    lines = [_line(one) for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more")
    kind = EMPTY if found[0]["type"] in _EMPTY_TYPES else INVALID_BODY
    return envelope(kind, "; ".join(lines), field_path(found[0]["loc"]))


def _line(error: Any) -> str:
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", error["msg"])
        return f"body: not valid JSON at character {error['loc'][-1]}: {reason}"
    return f"{field_path(error['loc'])}: {error['msg']}"


def field_path(location: Sequence[int | str]) -> str:
    """`('body', 'pairs', 0, 'query')` -> `body.pairs[0].query`."""
    path = ""
    for part in location:
        if isinstance(part, str) and part.endswith(FORM):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
