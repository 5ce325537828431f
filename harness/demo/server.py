"""`serve.py` as a child process that is always stopped again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.demo.errors import DemoFailed
from harness.demo.overrides import override
from service.client import Client, ClientError

READY_S = 120.0  # a cold start loads two ONNX sessions and reads the bank
STOP_S = 30.0


@dataclass(frozen=True)
class Server:
    """A running service: how to ask it, and where it writes its log."""

    client: Client
    url: str
    log: Path


@contextmanager
def running(root: Path, settings: dict[str, str], folder: Path) -> Iterator[Server]:
    """Start `serve.py` on a free port; on leaving, stop it by SIGTERM and see that it exits with 0.

    Raises:
        DemoFailed: it did not get ready in time, died, or did not stop cleanly.
    """
    log = folder / "serve.log"
    port_file = folder / "serve.port"
    port_file.unlink(missing_ok=True)
    settings = settings | {"service.port": "0", "service.port_file": str(port_file)}
    command = [sys.executable, str(root / "serve.py")]
    command += [override(key, value) for key, value in settings.items()]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=folder, stdout=sink, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{_port(process, port_file, log)}"
        client = Client(url)
        _wait_until_ready(process, client, log)
        yield Server(client, url, log)
    except BaseException:
        _stop(process)  # the first failure is the one worth telling
        raise
    status = _stop(process)
    if status != 0:
        raise DemoFailed(
            f"the service exited with status {status} when it was stopped\n{_tail(log)}"
        )


def _port(process: subprocess.Popen[bytes], port_file: Path, log: Path) -> int:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if port_file.exists() and (text := port_file.read_text(encoding="ascii").strip()):
            return int(text)
        _check_alive(process, log)
        time.sleep(0.05)
    raise DemoFailed(f"the service chose no port within {READY_S:.0f} s\n{_tail(log)}")


def _wait_until_ready(process: subprocess.Popen[bytes], client: Client, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            client.health()
        except (ClientError, OSError) as error:
            last = str(error)
        else:
            return
        _check_alive(process, log)
        time.sleep(0.1)
    raise DemoFailed(f"the service was not ready within {READY_S:.0f} s ({last})\n{_tail(log)}")


def _check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        raise DemoFailed(f"the service exited with status {process.returncode}\n{_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join([f"the last lines of {log}:", *(f"  {line}" for line in text)])
