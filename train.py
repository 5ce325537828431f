"""Train a retriever: python train.py data=log data.train=FILE (options: conf/train.yaml)."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from retriever.cli import reported
from retriever.errors import RetrieverError
from retriever.settings import parse_config


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(composed: DictConfig) -> None:
    """Compose, check, train."""
    with reported(RetrieverError, OSError):
        from retriever.learning.config import TrainConfig

        config = parse_config(TrainConfig, composed)
        # torch is loaded only now: a misspelt key should not wait for it.
        from retriever.learning.training import train

        train(config)


if __name__ == "__main__":
    main()
