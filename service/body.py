"""Reading a body: strict JSON, said to be JSON, of a bounded size, parsed off the event loop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

from anyio import to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import TABLE, TooLarge, WrongMediaType, envelope

#: Below this a thread costs more than the parsing.
PARSED_IN_PLACE = 64 * 1024


class BodyLimit:
    """ASGI middleware: a body of more than `limit` bytes is answered with 413 and not kept."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse at once by the declared length, else count what comes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        message = f"the body is over {self.limit} bytes; send it in parts"
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limit:
            await envelope(TABLE[TooLarge], message)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            part = await receive()
            received += len(part.get("body", b""))
            if received > self.limit:
                # The one exception that FastAPI lets through while it reads a body.
                raise HTTPException(TABLE[TooLarge].status, message)
            return part

        await self.app(scope, counted, send)


class JsonRoute(APIRoute):
    """A route whose body, where it has one, must be strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a request that parses strictly."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None and not _says_json(request):
                # Other types are what a web page may send to us behind a user's back.
                raise WrongMediaType("send the header Content-Type: application/json")
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) < PARSED_IN_PLACE:
            return parse(body)
        return await to_thread.run_sync(parse, body)


def parse(body: bytes) -> Any:
    """Strict JSON: no NaN, no infinity (`1e999` is one), no key twice, no bottomless nesting.

    Raises:
        json.JSONDecodeError: with the reason.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("the body is not UTF-8", "", error.start) from error
    try:
        return json.loads(
            text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_once
        )
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", "", 0) from error
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def _says_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON knows; leave the key out, or send null")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} is given twice")
    return found
