"""Every file below `conf/` composes and parses; wrong values give one clear error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from retriever.errors import ConfigError
from tests.repo.configs import CONF, ROOTS, groups, options, parsed
from tests.repo.imports import ROOT

#: What the options of a group may leave to the user, given here.
LEFT_OPEN = {"data": ["data.train=rows.jsonl"], "experiment": ["data.train=rows.jsonl"]}


def choices() -> list[tuple[str, str, str]]:
    return [
        (root, group, option)
        for root in ROOTS
        for group in groups(root)
        for option in options(group)
    ]


@pytest.mark.parametrize("root", ROOTS)
def test_the_defaults_of_an_entry_point_are_a_valid_configuration(root):
    parsed(root)


@pytest.mark.parametrize(("root", "group", "option"), choices())
def test_every_option_of_every_group_is_a_valid_configuration(root, group, option):
    parsed(root, f"{group}={option}", *LEFT_OPEN.get(group, []))


def test_every_file_below_conf_is_reached_by_an_entry_point():
    reached = {CONF / group / f"{option}.yaml" for _, group, option in choices()}
    reached |= {CONF / f"{root}.yaml" for root in ROOTS}
    files = {path for path in CONF.rglob("*.yaml") if "hydra" not in path.relative_to(CONF).parts}
    assert sorted(str(path.relative_to(CONF)) for path in files - reached) == []


def test_configuration_holds_values_only():
    for path in CONF.rglob("*.yaml"):
        if "hydra" not in path.relative_to(CONF).parts:
            assert "_target_" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize(
    ("root", "override", "named"),
    [
        ("train", "+trainer.learning_rat=0.1", "learning_rate"),
        ("train", "trainer.epochs=many", "epochs"),
        ("train", "trainer.epochs=0", "epochs"),
        ("train", "device=gpu", "device"),
        ("train", "seed=-1", "seed"),
        ("train", "data.planted.seed=-1", "data.planted.seed"),
        ("train", "data.planted.noise=.inf", "data.planted.noise"),
        ("train", "data.planted.noise=.nan", "data.planted.noise"),
        ("train", "data.planted.policy_temperature=.inf", "data.planted.policy_temperature"),
        ("train", "report.bootstrap=100001", "report.bootstrap"),
        ("train", "model.hidden=65537", "model.hidden"),
        ("evaluate", "dataset.world.seed=-1", "dataset.world.seed"),
        ("evaluate", "dataset.world.noise=.inf", "dataset.world.noise"),
        ("evaluate", "benchmark.resamples=100001", "benchmark.resamples"),
        ("serve", "+service.prt=80", "port"),
        ("serve", "service.port=eighty", "port"),
        ("serve", "service.port=-5", "port"),
        ("evaluate", "+benchmark.resample=500", "resamples"),
        ("evaluate", "benchmark.resamples=lots", "resamples"),
        ("evaluate", "benchmark.resamples=1", "resamples"),
        ("evaluate", "benchmark.name=plantd", "planted"),
        ("evaluate", "benchmark.top_k=[0]", "top_k"),
        ("evaluate", "llm.name=oracle", "none"),
        ("evaluate", "dataset.world.cases=3", "top_k"),
    ],
)
def test_a_wrong_key_type_or_value_is_one_error_that_names_it(root, override, named):
    with pytest.raises(ConfigError) as caught:
        parsed(root, override)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mementos_recipe_runs_all_its_epochs():
    trainer = parsed("train", "experiment=memento", "data.train=rows.jsonl").trainer
    assert (trainer.epochs, trainer.patience) == (10, 0)


@pytest.mark.parametrize(
    ("script", "overrides"),
    [
        ("train", ["hydra.run.dir=TMP/file"]),
        ("train", ["hydra.run.dir=TMP/file/deeper"]),
        ("train", ["-m", "hydra.sweep.dir=TMP/file"]),
        ("train", ["hydra.run.dir=TMP/run", "output_dir=TMP/file"]),
        ("serve", ["hydra.run.dir=TMP/file", "artifact=nowhere"]),
        ("evaluate", ["hydra.run.dir=TMP/file"]),
        ("evaluate", ["hydra.run.dir=TMP/run", "output_dir=TMP/file"]),
    ],
)
def test_an_output_folder_that_cannot_be_made_is_one_line(script, overrides, tmp_path):
    (tmp_path / "file").touch()
    words = [word.replace("TMP", str(tmp_path)) for word in overrides]
    done = subprocess.run(
        [sys.executable, str(ROOT / f"{script}.py"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'file'}")
    assert "check the path" in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("script", "override"),
    [
        ("train", "trainer.epochs=0"),
        ("serve", "service.port=-5"),
        ("evaluate", "benchmark.resamples=1"),
    ],
)
def test_a_script_refuses_a_wrong_value_in_one_line_before_any_work(script, override, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / f"{script}.py"), override, f"hydra.run.dir={tmp_path}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
