"""Running the app under uvicorn: the port, the signals, a bounded and clean end.

The process prints one line once it answers, and ends with status 0 on SIGTERM or SIGINT. Requests
under way have `shutdown_timeout_s` to finish.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from retriever.files import write_text_atomically
from service.app import create_app
from service.build import built
from service.config import ServeConfig, ServiceConfig
from service.errors import CannotStart

#: After the time for requests, for closing index and bank; then the process is ended by force.
CLOSING_S = 10.0

log = logging.getLogger(__name__)


def serve(config: ServeConfig) -> None:
    """Load, serve until a signal comes, close.

    Raises:
        CannotStart: the port is taken, or the host is not ours.
        RetrieverError, BankError: artifact, encoder, bank or cases cannot be used.
    """
    # FAISS tells there which of its builds it tries, ten lines each time.
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)
    # The port first: that it is taken should not come out after minutes of embedding.
    with _signals(config.service) as on_signal, bound(config.service) as listener:
        with built(config) as state:
            url = _url(listener)
            server = Server(create_app(state), config.service, lambda: _announce(url, config))
            on_signal(server)
            server.run(sockets=[listener])
        log.info("stopped")


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling, and with a call once it answers."""

    def __init__(
        self, app: object, config: ServiceConfig, on_ready: Callable[[], None] | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]  # uvicorn's alias is narrower than any ASGI app
                log_config=None,
                log_level="warning" if not config.access_log else "info",
                access_log=config.access_log,
                lifespan="on",
                timeout_graceful_shutdown=max(1, round(config.shutdown_timeout_s)),
            )
        )
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then tell."""
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: uvicorn would raise them again at the end, status 143."""
        yield


@contextmanager
def bound(config: ServiceConfig) -> Iterator[socket.socket]:
    """A socket on the configured host and port, not yet listening."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotStart(
            f"service.host = {config.host!r} is not known here ({error}); 127.0.0.1 serves this "
            "machine only, 0.0.0.0 everyone who can reach it"
        ) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise CannotStart(
                f"cannot listen on {config.host} port {config.port} ({error.strerror}); choose "
                "another with service.port=..., or service.port=0 for a free one"
            ) from error
        yield listener


@contextmanager
def _signals(config: ServiceConfig) -> Iterator[Callable[[uvicorn.Server], None]]:
    """Turn SIGTERM and SIGINT into a clean end, from the first moment on.

    Yields a function that names the server to stop. Without one yet, the process just ends; at the
    second signal, open requests are no longer waited for.
    """
    running: list[uvicorn.Server] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not running:
            raise SystemExit(0)
        (server,) = running
        server.force_exit = server.should_exit
        server.should_exit = True
        # A worker thread cannot be interrupted; a process that waits for one must still end.
        last = threading.Timer(config.shutdown_timeout_s + CLOSING_S, _give_up)
        last.daemon = True
        last.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield running.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_up() -> None:
    log.error("requests did not end in time; the process is ended by force")
    os._exit(1)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(url: str, config: ServeConfig) -> None:
    if config.service.port_file is not None:
        write_text_atomically(Path(config.service.port_file), url.rsplit(":", 1)[1] + "\n")
    sys.stdout.write(f"serving on {url} (API documentation: {url}/docs)\n")
    sys.stdout.flush()
