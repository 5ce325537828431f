"""`train.py` as people start it: alone, as a sweep, on several processes, and with mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retriever.learning.config import PlantedConfig
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a run that takes seconds."""
    from retriever.learning.synthetic import PlantedWorld

    log = tmp_path_factory.mktemp("log") / "log.jsonl"
    PlantedWorld(PlantedConfig(rows=240, cases=30, cases_per_run=4, families=4)).write_log(log)
    return [
        "data=log",
        f"data.train={log}",
        f"encoder.source={tiny_encoder}",
        "encoder.max_length=64",
        "cosine_encoder=null",
        "model.hidden=8",
        "trainer.epochs=1",
        "trainer.queries_per_batch=8",
        "report.bootstrap=100",
        "report.baselines=false",
        "export.onnx=false",
        "device=cpu",
    ]


def run(
    arguments: list[str], folder: Path, *, launcher: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *launcher, str(ROOT / "train.py"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("+trainer.epoch=3", "trainer.epochs"),
        ("trainer.epochs=many", "many"),
        ("trainer.epochs=0", "trainer.epochs = 0: at least 1"),
        ("device=gpu", "cpu, cuda"),
        ("data.train=nowhere.jsonl", "nowhere.jsonl"),
    ],
    ids=["misspelt", "wrong type", "impossible value", "unknown device", "missing file"],
)
def test_a_mistake_is_one_clear_line_before_any_work(
    small: list[str], tmp_path: Path, mistake: str, said: str
) -> None:
    done = run([*small, mistake, f"hydra.run.dir={tmp_path / 'run'}"], tmp_path)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_sweep_gives_each_job_its_folder_and_survives_a_failed_one(
    small: list[str], tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    done = run(
        [
            "-m",
            *small,
            "trainer.max_steps=1,0,2",  # 0 is impossible: the second job fails
            "objective=cross_entropy",
            f"hydra.sweep.dir={sweep}",
        ],
        tmp_path,
    )
    assert done.returncode != 0
    assert "trainer.max_steps" in done.stdout + done.stderr
    assert (
        json.loads((sweep / "0" / "report.json").read_text())["config"]["trainer"]["max_steps"] == 1
    )
    assert not (sweep / "1" / "report.json").exists()
    assert (
        json.loads((sweep / "2" / "report.json").read_text())["config"]["trainer"]["max_steps"] == 2
    )


def test_a_sweep_over_seeds_and_objectives_runs_side_by_side(
    small: list[str], tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    done = run(
        [
            "-m",
            *small,
            "seed=1,2",
            "objective=cross_entropy,query_balanced",
            "hydra/launcher=cores",
            f"hydra.sweep.dir={sweep}",
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    made = [json.loads((sweep / str(i) / "report.json").read_text())["config"] for i in range(4)]
    assert {(c["seed"], c["objective"]["query_weighting"]) for c in made} == {
        (1, "rows"),
        (1, "queries"),
        (2, "rows"),
        (2, "queries"),
    }


def test_two_processes_train_one_model_and_only_the_first_reports(
    small: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "ddp"
    done = run(
        [*small, "trainer.devices=2", f"hydra.run.dir={folder}"],
        tmp_path,
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((folder / "report.json").read_text())
    alone = tmp_path / "alone"
    assert run([*small, f"hydra.run.dir={alone}"], tmp_path).returncode == 0
    straight = json.loads((alone / "report.json").read_text())
    assert report["split"]["digest"] == straight["split"]["digest"]
    # Two ranks share the batches of an epoch: about half as many steps.
    assert report["training"][0]["steps"] == -(-straight["training"][0]["steps"] // 2)


def test_a_killed_run_goes_on_where_it_was(small: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [
        *small,
        "trainer.epochs=40",
        "trainer.patience=0",
        "trainer.checkpoint_every_steps=1",
        f"hydra.run.dir={folder}",
    ]
    last = folder / "checkpoints" / "last.ckpt"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not last.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert last.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    refused = run(arguments, tmp_path)
    assert refused.returncode == 2
    assert "resume=true" in refused.stderr
    resumed = run([*arguments, "resume=true"], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from" in resumed.stdout
    report = json.loads((folder / "report.json").read_text())
    assert report["training"][0]["epochs"] == 40
