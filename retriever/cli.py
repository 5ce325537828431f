"""What the entry points share: one clear line for a known error, and sane logging."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

log = logging.getLogger(__name__)


@contextmanager
def reported(*known: type[Exception]) -> Iterator[None]:
    """Around a job's body: an error of a `known` type is printed as one line, exit status 2.

    Name `OSError` too where files are written: a folder that cannot be made is the user's to mend.
    In a multirun the error is logged and raised on, so that Hydra marks this job as failed and goes
    on with the next one (an exit would end the whole sweep).
    """
    try:
        yield
    except known as error:
        if _in_multirun():
            log.error("this job of the sweep failed: %s", _one_line(error))
            raise
        sys.stderr.write(f"error: {_one_line(error)}\n")
        raise SystemExit(2) from error


class OutputFolder(Callback):
    """Makes Hydra's output folder before Hydra does, whose own failure there is a traceback."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single job."""
        _make_folder(config.hydra.run.dir, config.hydra.output_subdir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a sweep."""
        _make_folder(config.hydra.sweep.dir, None)


def _make_folder(folder: str, inside: str | None) -> None:
    with reported(OSError):
        Path(folder, inside or "").mkdir(parents=True, exist_ok=True)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"{error.filename}: {error.strerror}; check the path, its permissions and the space "
            "left, or name another one"
        )
    return str(error)


def _in_multirun() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
