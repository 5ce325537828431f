"""Serve a trained retriever over a bank of cases: `python serve.py artifact=FOLDER`."""

import hydra
from omegaconf import DictConfig

from memory import BankError
from retriever import RetrieverError
from retriever.cli import reported
from retriever.settings import parse_config
from service.config import ServeConfig
from service.errors import ServiceError
from service.server import serve


@hydra.main(version_base="1.3", config_path="conf", config_name="serve")
def main(composed: DictConfig) -> None:
    """Compose, check, serve until a signal comes."""
    with reported(RetrieverError, BankError, ServiceError, OSError):
        serve(parse_config(ServeConfig, composed))


if __name__ == "__main__":
    main()
