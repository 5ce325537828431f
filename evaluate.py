"""Measure: `python evaluate.py benchmark=planted`; options in `conf/evaluate.yaml`."""

from typing import Any

import hydra
from omegaconf import DictConfig

from harness.config import parse_evaluation
from retriever.cli import reported
from retriever.errors import RetrieverError


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(composed: DictConfig) -> dict[str, Any]:
    """Run the benchmark that the configuration names."""
    with reported(RetrieverError, OSError):
        return parse_evaluation(composed).run()


if __name__ == "__main__":
    main()
