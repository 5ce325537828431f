"""The whole process: `serve.py` started, asked, stopped; and what stays between starts."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from retriever.errors import ConfigError
from retriever.settings import parse_config
from service.build import built
from service.client import Client, Refused, Unreachable
from service.config import ServeConfig
from tests.service.conftest import configured, serving

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 60


def started(arguments, folder):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "serve.py"), "device=cpu", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@contextmanager
def process(folder, artifact, *more):
    """serve.py on a free port, killed at the end if it is still there."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    arguments = [f"artifact={artifact}", "service.port=0", f"service.port_file={port_file}", *more]
    running = started(arguments, folder)
    try:
        end = time.monotonic() + BOUND_S
        while not port_file.exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert port_file.exists(), running.communicate(timeout=5)
        yield running, Client(f"http://127.0.0.1:{int(port_file.read_text())}", timeout_s=20)
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def stop(running, number):
    running.send_signal(number)
    output, errors = running.communicate(timeout=20)
    assert running.returncode == 0, errors
    assert "Traceback" not in output + errors
    return output


@pytest.mark.slow
def test_sigterm_ends_the_process_cleanly_and_the_cases_are_there_again(
    tmp_path, tiny_artifact, tiny_cosine_encoder
):
    rows = [{"query": f"question {n}", "outcome": n % 2} for n in range(5)]
    cases = tmp_path / "cases.jsonl"
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = (f"cosine_encoder={tiny_cosine_encoder}", f"bank.cases={cases}")
    with process(tmp_path, tiny_artifact, *more) as (running, client):
        (added,) = client.add_cases([{"query": "which river"}])
        expected = client.search("which river", 6, return_cases=True)["results"]
        near = client.search("which river", 1, mode="cosine")["results"]
        assert near[0]["case_id"] == added
        assert "serving on http://127.0.0.1:" in stop(running, signal.SIGTERM)
    litter = {path.name for path in tmp_path.iterdir()} - {"cases.jsonl", "data", "port"}
    assert litter == set()
    with process(tmp_path, tiny_artifact, *more) as (running, client):
        assert client.search("which river", 6, return_cases=True)["results"] == expected
        assert len(client.list_cases()["data"]) == 6  # the file was not imported again
        idle = http.client.HTTPConnection(client.base_url.removeprefix("http://"), timeout=20)
        idle.request("GET", "/health")
        idle.getresponse().read()  # and stays open: nobody has to hang up first
        stop(running, signal.SIGINT)
        idle.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["artifact=nowhere"], "error: no artifact at nowhere; make one with"),
        ([], "artifact"),
        (["artifact=x", "+artefact=y"], "did you mean artifact?"),
    ],
)
def test_a_start_that_cannot_work_ends_with_one_clear_line(tmp_path, arguments, message):
    running = started(arguments, tmp_path)
    output, errors = running.communicate(timeout=BOUND_S)
    assert running.returncode == 2
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert output == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("service.port=70000", "service.port = 70000: from 0"),
        ("service.port=many", "service.port"),
        ("service.threads=0", "service.threads = 0: at least 1"),
        ("service.shutdown_timeout_s=nan", "service.shutdown_timeout_s = nan"),
        ("service.limits.max_k=0", "service.limits.max_k = 0"),
        ("service.limits.max_cases=100000", "service.limits.max_cases = 100000"),
        ("bank.on_bad_line=ignore", "bank.on_bad_line = 'ignore'"),
        ("bank.url=' '", "bank.url = ' ': is blank"),
        ("engine=tf", "engine = 'tf'"),
        ("device=tpu", "device = 'tpu'"),
        ("+service.prot=1", "did you mean service.port?"),
    ],
)
def test_an_impossible_value_is_one_error_that_names_the_key(override, message):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("serve", overrides=["artifact=x", override])
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config(ServeConfig, composed)


def test_every_group_composes_into_the_typed_configuration():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose(
            "serve", overrides=["artifact=x", "index=transient", "service=network", "device=cpu"]
        )
    config = parse_config(ServeConfig, composed)
    assert config.index.folder is None
    assert config.index.device == "cpu"
    assert config.service.host == "0.0.0.0"
    assert config.service.port == 8080


def test_skipped_lines_are_logged_by_number_and_field_without_their_words(
    tmp_path, tiny_artifact, caplog
):
    path = tmp_path / "cases.jsonl"
    path.write_text(
        '{"query": "good"}\n'
        '{"query": "a", "plan": {"plan": "ok"}, "outcome": "whisper"}\n'
        '{"query": "a", "whisper": 1}\n'
        "whisper\n"
    )
    config = configured(tmp_path, tiny_artifact)
    config.bank.cases, config.bank.on_bad_line = str(path), "skip"
    with caplog.at_level(logging.DEBUG), built(config) as state:
        assert state.bank.count() == 1
    assert "whisper" not in caplog.text
    assert "1 cases added, 3 lines skipped" in caplog.text
    assert "line 2 skipped: its 'outcome' is wrong" in caplog.text
    assert "line 3 skipped: not one JSON object of the format" in caplog.text
    assert "line 4 skipped: not one JSON object of the format" in caplog.text


def test_cases_stay_when_the_service_starts_again(tmp_path, tiny_artifact, tiny_cosine_encoder):
    config = configured(tmp_path, tiny_artifact, tiny_cosine_encoder)
    with serving(config) as first:
        first.client.add_cases([{"query": "a song"}, {"query": "a film"}])
        expected = first.client.search("a song", mode="cosine")["results"]
    with serving(config) as second:
        assert second.client.search("a song", mode="cosine")["results"] == expected
    with serving(configured(tmp_path, tiny_artifact)) as exact_only:
        assert len(exact_only.client.search("a song")["results"]) == 2
        with pytest.raises(Refused, match="cosine_encoder=FOLDER") as refused:
            exact_only.client.search("a song", mode="cosine")
        assert refused.value.status == 409


def test_a_damaged_index_is_rebuilt_and_answers_the_same(
    tmp_path, tiny_artifact, tiny_cosine_encoder, caplog
):
    config = configured(tmp_path, tiny_artifact, tiny_cosine_encoder)
    with serving(config) as first:
        first.client.add_cases([{"query": "a song"}, {"query": "a film"}])
        expected = first.client.search("a song", mode="cosine")["results"]
    (saved,) = (tmp_path / "index").glob("*/index.faiss")
    data = bytearray(saved.read_bytes())
    data[-3] ^= 1
    saved.write_bytes(data)
    with serving(config) as second:
        assert second.client.search("a song", mode="cosine")["results"] == expected
    assert "truncated or changed" in caplog.text


def test_a_taken_port_is_named_before_anything_is_loaded(tmp_path):
    from service.config import ServiceConfig
    from service.errors import CannotStart
    from service.server import bound

    with bound(ServiceConfig(port=0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port}"), bound(ServiceConfig(port=port)):
            pass
    with (
        pytest.raises(CannotStart, match="no-such-host"),
        bound(ServiceConfig(host="no-such-host.")),
    ):
        pass


def test_the_client_needs_the_standard_library_only_and_says_when_nobody_is_there():
    code = (
        "import sys; before = set(sys.modules); import service.client; "
        "print({m.split('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "{'service'}"
    with pytest.raises(Unreachable, match="is the service running"):
        Client("http://127.0.0.1:9").health()
    for wrong in ("127.0.0.1:8080", "ftp://x", "http://"):
        with pytest.raises(ValueError, match="base_url"):
            Client(wrong)
    with pytest.raises(ValueError, match="timeout_s"):
        Client("http://x", timeout_s=0)
    client = Client("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="wrap it in a list"):
        client.embed("one text")
    for pair in ("ab", ("a",), ("a", "b", None, 4)):
        with pytest.raises(ValueError, match=r"pairs\[0\]"):
            client.score([pair])


def test_serving_with_onnx_never_imports_torch(tmp_path, tiny_artifact, tiny_cosine_encoder):
    code = f"""
import sys
from pathlib import Path
from memory import NewCase
from service.app import create_app
from service.build import built
from tests.service.conftest import configured
config = configured(
    Path({str(tmp_path)!r}), {str(tiny_artifact)!r}, {str(tiny_cosine_encoder)!r}
)
with built(config) as state:
    create_app(state)
    state.bank.add([NewCase("a song")])
    for mode in ("exact", "cosine"):
        assert len(state.searcher.search(["a song"], 1, mode=mode)[0]) == 1
print("torch" in sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"
