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
