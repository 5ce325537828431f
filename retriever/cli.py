"""What the entry points share: one clear line for a known error, and sane logging."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

log = logging.getLogger(__name__)


@contextmanager
def reported(*known: type[Exception]) -> Iterator[None]:
    """Around a job's body: an error of a `known` type is printed as one line, exit status 2.

    In a multirun the error is logged and raised on, so that Hydra marks this job as failed and goes
    on with the next one (an exit would end the whole sweep).
    """
    try:
        yield
    except known as error:
        if _in_multirun():
            log.error("this job of the sweep failed: %s", error)
            raise
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error


def _in_multirun() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
