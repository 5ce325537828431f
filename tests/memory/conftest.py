"""Where the banks of these tests live: a SQLite file, and a schema of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import fresh_schema, postgres_server


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    """A running server for the whole session."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """An empty schema of its own."""
    with fresh_schema(postgres_server_url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def bank_location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a bank, once on each engine."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "bank" / "bank.db")
