"""A real server on loopback, over the tiny artifact and a fresh bank."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from service.app import create_app
from service.build import built
from service.client import Client
from service.config import BankSection, IndexConfig, LimitsConfig, ServeConfig, ServiceConfig
from service.server import Server, bound


@dataclass(frozen=True)
class Live:
    """A running service: its address, its state, and raw requests to it."""

    url: str
    state: Any

    @property
    def client(self) -> Client:
        return Client(self.url, timeout_s=20)

    def ask(self, method, path, body=None, **headers):
        """Send bytes as they are, anything else as JSON; returns status, parsed answer, headers."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {} if content is None else {"Content-Type": "application/json"}
        connection.request(method, path, content, kind | headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data), response.headers


@contextmanager
def serving(config):
    """Run the configured service in a thread of this process."""
    with bound(config.service) as listener, built(config) as state:
        ready = threading.Event()
        server = Server(create_app(state), config.service, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ready.wait(20)
            host, port = listener.getsockname()
            yield Live(f"http://{host}:{port}", state)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def configured(folder, artifact, cosine=None, **service):
    return ServeConfig(
        artifact=str(artifact),
        cosine_encoder=None if cosine is None else str(cosine),
        device="cpu",
        index=IndexConfig(folder=str(folder / "index"), device="cpu"),
        bank=BankSection(url=str(folder / "bank.sqlite")),
        service=ServiceConfig(port=0, threads=4, **service),
    )


@pytest.fixture(scope="session")
def live(tmp_path_factory, tiny_artifact, tiny_cosine_encoder):
    """One server for many tests; each uses a namespace of its own."""
    limits = LimitsConfig(
        max_body_bytes=200_000, max_texts=40, max_queries=5, max_k=50, max_cases=30
    )
    folder = tmp_path_factory.mktemp("live")
    with serving(configured(folder, tiny_artifact, tiny_cosine_encoder, limits=limits)) as running:
        yield running
