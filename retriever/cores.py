"""How many processors this process may keep busy: what the scheduler and its control group allow.

In a container `os.cpu_count()` is the host's. A quota is time, not processors: one of 1.5 lets two
threads run three quarters of the time, so it is rounded up. Two hyperthreads of one core count as
two here, for that is how quota and affinity count them; `granted_cores(physical=True)` counts their
core once, which is what dense arithmetic gains from.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_PROCESSORS = Path("/sys/devices/system/cpu")


def granted_cores(
    *,
    physical: bool = False,
    affinity: Iterable[int] | None = None,
    membership: Path = _MEMBERSHIP,
    groups: Path = _GROUPS,
    processors: Path = _PROCESSORS,
) -> int:
    """The smaller of the affinity mask and the CPU quota, at least 1.

    Args:
        physical: count two hyperthreads of a core once; where the system does not tell which
            belong together, every one counts.
        affinity: the processors' numbers; this process's own by default.
        membership: which control groups the process is in, as `/proc/self/cgroup` says.
        groups: where control groups are mounted (version 1, version 2, or both).
        processors: where the system describes its processors.
    """
    allowed = set(_affinity() if affinity is None else affinity)
    count = _distinct_cores(allowed, processors) if physical else len(allowed)
    quotas = [math.ceil(quota) for quota in _quotas(membership, groups)]
    return max(1, min([count, *quotas]))


def _affinity() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _distinct_cores(allowed: set[int], processors: Path) -> int:
    cores = set()
    for number in allowed:
        path = processors / f"cpu{number}" / "topology" / "thread_siblings_list"
        cores.add(_read(path) or f"processor {number}")
    return len(cores)


def _quotas(membership: Path, groups: Path) -> Iterator[float]:
    """The quotas, in processors, of the process's groups and of all groups around them."""
    for line in (_read(membership) or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            for folder in _upwards(groups, path):
                yield from _quota_2(folder)
            for folder in _upwards(groups / "unified", path):  # beside version 1
                yield from _quota_2(folder)
        elif "cpu" in controllers.split(","):
            for mount in {controllers, "cpu"}:
                for folder in _upwards(groups / mount, path):
                    yield from _quota_1(folder)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those around it up to the mount.

    In a container the path may be the host's, and the mount the container's own group: folders that
    do not exist are passed over, and the mount itself is always among those looked at.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _quota_1(folder: Path) -> Iterator[float]:
    quota = _number(_read(folder / "cpu.cfs_quota_us"))
    period = _number(_read(folder / "cpu.cfs_period_us"))
    if quota is not None and period and quota > 0:  # -1: none
        yield quota / period


def _quota_2(folder: Path) -> Iterator[float]:
    """`cpu.max` is `<quota> <period>`, or `max <period>` for none."""
    fields = (_read(folder / "cpu.max") or "").split()
    quota, period = (_number(field) for field in [*fields, "", ""][:2])
    if quota is not None and period and quota > 0:
        yield quota / period


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
