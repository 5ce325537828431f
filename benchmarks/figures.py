"""What every benchmark ends with: one line of JSON that says what was measured, and where."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICES = "cuda, cuda:<index>, cpu"


@dataclass(frozen=True)
class Figure:
    """A measured value and, where there is one, the target it is held against."""

    value: float
    unit: str
    target: float | None = None
    at_most: bool = False  # the target is an upper bound instead of a lower one
    above: bool = False  # the target itself does not reach it

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target, False for NaN."""
        if self.target is None:
            return None
        if self.above:
            return self.value > self.target
        return self.value <= self.target if self.at_most else self.value >= self.target

    def to_json(self) -> dict[str, Any]:
        """Value, unit, target, met."""
        rounded = float(f"{self.value:.6g}")
        return {"value": rounded, "unit": self.unit, "target": self.target, "met": self.met}


def result_line(benchmark: str, figures: Mapping[str, Figure], **machine: Any) -> str:
    """The last line a benchmark prints; `machine` adds what matters there (torch, GPU)."""
    return json.dumps(
        {
            "benchmark": benchmark,
            "machine": {**this_machine(), **machine},
            "figures": {name: figure.to_json() for name, figure in figures.items()},
        }
    )


def device_name(text: str) -> str:
    """The device of a check for GPUs, as the command line names it: never one that is looked for.

    Raises:
        ArgumentTypeError: another spelling.
    """
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: one of {DEVICES}")
    return text


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """For reading what the command line names: a wrong path or file is one line and status 2.

    Args:
        kinds: errors that mean it, too, beside those of files, values and missing fields.

    Raises:
        SystemExit: in the place of those errors.
    """
    try:
        yield
    except (OSError, ValueError, *kinds) as error:
        print(f"error: {error}".splitlines()[0], file=sys.stderr)
        raise SystemExit(2) from None


def this_machine() -> dict[str, Any]:
    """Operating system, processor, cores that this process may use, Python."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
