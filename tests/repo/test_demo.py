"""The demo as `make demo` runs it, small; and that it fails clearly and stops what it started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from harness.demo.overrides import override
from tests.repo.documents import blocks
from tests.repo.imports import ROOT

pytestmark = pytest.mark.slow


def small(encoder: Path) -> list[str]:
    """Overrides that make training quick; the model is the tiny one."""
    return [
        "trainer.epochs=1",
        "trainer.progress=false",
        "report.bootstrap=100",
        "model.hidden=16",
        *(
            f"{name}.{key}={value}"
            for name in ("encoder", "cosine_encoder")
            for key, value in (("source", encoder), ("max_length", 48))
        ),
    ]


def demo(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "harness.demo", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path):
    """(folder it ran in, its output): one small demo from a folder with an awkward name."""
    folder = tmp_path_factory.mktemp("any where, it's=odd")
    process = demo("--rows", "320", "--out", "outputs/demo", *small(tiny_encoder), cwd=folder)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    return folder, out


def test_the_demo_shows_ranked_cases_and_an_honest_report_and_stops_the_service(ran):
    _, out = ran
    for step in range(1, 8):
        assert f"{step}/7" in out
    assert len(re.findall(r"rank +chance", out)) == 3
    assert len(re.findall(r"rank +cosine", out)) == 3
    assert "bag_of_words" in out
    assert "estimated chance that a run succeeds" in " ".join(out.split())
    assert "exit status 0" in out


def test_the_demo_leaves_an_artifact_a_bank_and_a_report(ran):
    folder, _ = ran
    left = folder / "outputs" / "demo"
    assert (left / "train" / "artifact" / "manifest.json").is_file()
    assert (left / "bank.sqlite").is_file()
    report = json.loads((left / "train" / "report.json").read_text(encoding="utf-8"))
    assert report["leakage"]["shared_queries"] == 0


def test_the_service_of_the_demo_is_gone(ran):
    folder, _ = ran
    port = int((folder / "outputs" / "demo" / "serve.port").read_text(encoding="ascii"))
    from service.client import Client, Unreachable

    with pytest.raises(Unreachable):
        Client(f"http://127.0.0.1:{port}", timeout_s=2).health()


def embedded() -> list[str]:
    """The documents' Python that needs no running service."""
    return [block.text for block in blocks("python") if "service.client" not in block.text]


@pytest.mark.parametrize("code", embedded(), ids=lambda code: code.split("(")[0].splitlines()[-1])
def test_the_python_of_the_readme_runs_as_written(ran, code):
    folder, _ = ran
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_failed_training_ends_the_demo_with_its_reason(tmp_path):
    process = demo(
        "--rows", "320", "--out", str(tmp_path / "out"), "trainer.epochs=0", cwd=tmp_path
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out
    assert "trainer.epochs = 0" in err
    assert "train.py exited with status 2" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--log", "nothing.jsonl", "--cases", "nothing.jsonl"], "there is no file nothing.jsonl"),
        (["--log", "nothing.jsonl"], "give both"),
        (["--cases", "nothing.jsonl"], "give both"),
    ],
)
def test_missing_files_are_named_before_any_work(tmp_path, arguments, reason):
    process = demo(*arguments, "--out", str(tmp_path / "out"), cwd=tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.startswith("error: ")
    assert reason in err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_peoples_files_is_not_emptied(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    process = demo("--out", str(tmp_path), cwd=tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "choose another --out" in err
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "mine"


def test_an_interrupted_demo_says_so_and_leaves_nothing_running(tmp_path, tiny_encoder):
    process = demo("--rows", "320", "--out", "out", *small(tiny_encoder), cwd=tmp_path)
    while not (tmp_path / "out" / "train").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in err


@pytest.mark.parametrize(
    "value", ["plain", "a b", "it's", "a=b,c", "x\\", "x\\'", "50%", "[1]", "{a}", "~", "null", ""]
)
def test_a_value_of_any_form_arrives_as_it_is(value):
    parsed = OverridesParser.create().parse_override(override("bank.url", value))
    assert parsed.value() == value
