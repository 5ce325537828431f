"""Composing what lies below `conf/`, as the three entry points do."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from harness.config import parse_evaluation
from retriever.learning.config import TrainConfig
from retriever.settings import parse_config
from service.config import ServeConfig
from tests.repo.imports import ROOT

CONF = ROOT / "conf"
ROOTS = ("train", "serve", "evaluate")

#: Values that a user must give: what the tests give in their place.
GIVEN = {
    "train": ["output_dir=somewhere"],
    "serve": ["artifact=somewhere/artifact"],
    "evaluate": ["output_dir=somewhere"],
}


def parsed(root: str, *overrides: str) -> Any:
    """`python <root>.py <overrides>` up to the typed configuration; later overrides win."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        composed = compose(root, overrides=[*GIVEN[root], *overrides])
    if root == "evaluate":
        return parse_evaluation(composed).config
    return parse_config({"train": TrainConfig, "serve": ServeConfig}[root], composed)


def groups(root: str) -> list[str]:
    """The configuration groups that a root file chooses from, `hydra/...` and `_self_` left out."""
    defaults = OmegaConf.load(CONF / f"{root}.yaml").defaults
    names = []
    for entry in defaults:
        if isinstance(entry, str):
            continue
        (name,) = entry
        names.append(
            str(name).removeprefix("optional ").removeprefix("override ").partition("@")[0]
        )
    return [name.lstrip("/") for name in names if not name.lstrip("/").startswith("hydra/")]


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))
