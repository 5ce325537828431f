"""The command as a shell would run it, in this process."""

from __future__ import annotations

import io
import json
from typing import NamedTuple

import pytest

from service.command.main import main
from tests.memory.conftest import postgres_server_url, postgres_url  # noqa: F401, fixtures


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def data(self):
        return json.loads(self.out)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "bank.db")


@pytest.fixture
def run(capsys, monkeypatch, location):
    """A function: arguments, what stdin holds, whether a terminal is there -> the answer."""
    monkeypatch.setenv("PRECEDENT_BANK", location)
    monkeypatch.setenv("LOGNAME", "tester")

    def call(*arguments, stdin="", terminal=False):
        given = Terminal(stdin) if terminal else io.StringIO(stdin)
        monkeypatch.setattr("sys.stdin", given)
        monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        got = capsys.readouterr()
        return Answer(status, got.out, got.err)

    return call


@pytest.fixture
def cases(tmp_path):
    """A file of four cases."""
    path = tmp_path / "cases.jsonl"
    rows = [
        {"id": "n", "query": "my number is 415-555-0186", "kind": "turn", "tags": ["private"]},
        {"query": "the user can be reached", "kind": "fact", "derived_from": ["n"]},
        {"query": "boil the kettle", "outcome": 1.0, "source": "kitchen"},
        {"query": "told long ago", "created_at": "1999-01-01T00:00:00Z", "outcome": 0.0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
