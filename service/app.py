"""The one FastAPI app: which routers, which middleware, in which order.

Endpoints are plain functions, so they run in the worker threads; the event loop only moves bytes,
and `/health` answers however busy the workers are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import compat, errors, native
from service.body import BodyLimit
from service.schemas import Health, ModelFacts
from service.state import ServiceState, State, version


def create_app(state: ServiceState) -> FastAPI:
    """The app over a scorer and a bank; whoever made `state` closes it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = state.threads
        yield

    app = FastAPI(
        title="Precedent",
        summary="Which past case helps with which new task.",
        version=version(),
        lifespan=lifespan,
        # From the outside in.
        middleware=[
            Middleware(Unexpected),
            Middleware(BodyLimit, limit=state.limits.max_body_bytes),
        ],
    )
    app.state.service = state
    errors.install(app)
    app.add_api_route("/health", health, response_model=Health, tags=["operations"])
    app.include_router(native.router)
    app.include_router(compat.router)
    return app


async def health(state: State) -> Health:
    """Alive, and what is served."""
    scorer = state.scorer
    return Health(
        version=version(),
        model=ModelFacts(
            name=state.model_name,
            fingerprint=scorer.fingerprint,
            dimensions=scorer.dim,
            max_length=scorer.max_length,
            provider=scorer.provider,
            device=str(scorer.device),
        ),
        bank=state.bank.uid,
        modes=list(state.searcher.modes),
    )


class Unexpected:
    """ASGI middleware: an error nobody foresaw becomes a 500 in our shape.

    Starlette's own handler would let it through to the server, which logs the message; and that may
    quote the text of a query or a case.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in place of an endpoint that failed, unless it had begun to answer."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http":
                raise
            response = errors.unexpected(error)
            if not begun:
                await response(scope, receive, send)
