"""Which benchmark `evaluate.py` runs: a plain table from name to configuration class and function.

A new benchmark adds its own folder, its files below `conf/`, and one line here. What a
configuration class holds is the benchmark's own affair; `output_dir` and the groups of
`conf/evaluate.yaml` are common to all.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.planted.config import PlantedEvaluation
from harness.planted.run import run as run_planted
from retriever.errors import ConfigError
from retriever.settings import parse_config

#: name: (configuration class, function that runs the benchmark and returns its figures)
BENCHMARKS: dict[str, tuple[type[Any], Callable[[Any], dict[str, Any]]]] = {
    "planted": (PlantedEvaluation, run_planted),
}


@dataclass(frozen=True)
class Evaluation:
    """A benchmark and the configuration that it was given."""

    name: str
    config: Any

    def run(self) -> dict[str, Any]:
        """Run it: a readable table on the way, the figures as the result."""
        return BENCHMARKS[self.name][1](self.config)


def parse_evaluation(composed: DictConfig) -> Evaluation:
    """The composed `conf/evaluate.yaml` as a typed configuration of the benchmark that it names.

    Raises:
        ConfigError: there is no such benchmark, or its configuration is wrong.
    """
    name = OmegaConf.select(composed, "benchmark.name")
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(str(name), BENCHMARKS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(BENCHMARKS)}"
        raise ConfigError(f"benchmark.name = {name!r} is not a benchmark; {hint}")
    return Evaluation(name, parse_config(BENCHMARKS[name][0], composed))
