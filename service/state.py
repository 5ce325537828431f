"""What every endpoint works with, made once at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from typing import Annotated

from fastapi import Depends, Request

from memory import CaseBank
from retriever.artifact import short_name
from retriever.scorer import Scorer, TextEncoder
from retriever.searcher import Searcher
from service.config import LimitsConfig
from service.errors import TooLarge


@dataclass(frozen=True)
class ServiceState:
    """The scorer, the bank, and the searcher over both."""

    scorer: Scorer
    bank: CaseBank
    searcher: Searcher
    encoder: TextEncoder | None = None
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    threads: int = 8

    @property
    def model_name(self) -> str:
        """A name for the `model` field of answers; changes with the artifact and the precision."""
        return f"precedent-{short_name(self.scorer.fingerprint)}"

    def close(self) -> None:
        """Keep what is worth keeping, and close the bank."""
        self.searcher.close()
        self.bank.close()


def version() -> str:
    """The version of the installed distribution."""
    try:
        return metadata.version("precedent-memory")
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        return "unknown"


def within(count: int, most: int, what: str) -> None:
    """Refuse a request that asks for more things than the limits allow."""
    if count > most:
        raise TooLarge(f"{count} {what} in one request; at most {most}: send them in parts", what)


async def _of_app(request: Request) -> ServiceState:
    state = request.app.state.service
    assert isinstance(state, ServiceState)
    return state


#: How an endpoint asks for the state.
State = Annotated[ServiceState, Depends(_of_app)]
