"""Looks for byte strings in files, as a program of its own: `python bytescan.py < request.json`.

It must not run in the process that has the bank open: when a process closes any handle of a file,
POSIX drops all locks that it has on it, SQLite's among them, and another process may then write
where it should wait (sqlite.org/howtocorrupt.html, section 2.2). Only the standard library is
imported, so that it starts at once.

Request: `{"paths": [...], "needles": [[number, hex], ...], "most": bytes or null}`. Answer: one
list a path, in order:
`[size, [numbers found]]`, or `[-1, reason]` where it could not be read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

#: Size and numbers found, or -1 and why it could not be read.
Scanned: TypeAlias = tuple[int, list[int] | str]
_READ = 8 * 2**20
_MAGIC = b"SQLite format 3\x00"


def scan(
    paths: Sequence[Path], needles: Sequence[tuple[int, bytes]], *, most: int | None = None
) -> list[Scanned]:
    """What each file holds, read by another process; one answer a path, in order.

    Args:
        paths: the files.
        needles: what to look for, by number.
        most: read only so many bytes of each.
    """
    request = {
        "most": most,
        "paths": [str(path) for path in paths],
        "needles": [[number, needle.hex()] for number, needle in needles],
    }
    done = subprocess.run(
        [sys.executable, "-I", __file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    return [(size, found) for size, found in json.loads(done.stdout)]


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as SQLite's do."""
    ((_, found),) = scan([path], [(0, _MAGIC)], most=len(_MAGIC))
    return found == [0]


def occurs(
    path: Path, needles: Sequence[tuple[int, bytes]], most: int | None = None
) -> tuple[int, set[int]]:
    """How many bytes a file has, and the numbers of the needles that are in it."""
    keep = max((len(needle) for _, needle in needles), default=1) - 1
    found: set[int] = set()
    size = 0
    tail = b""
    with path.open("rb") as file:
        while block := file.read(_READ if most is None else max(0, most - size)):
            size += len(block)
            window = tail + block
            found |= {i for i, needle in needles if i not in found and needle in window}
            tail = window[-keep:] if keep else b""
    return size, found


def _main() -> None:
    request = json.load(sys.stdin)
    needles = [(int(number), bytes.fromhex(needle)) for number, needle in request["needles"]]
    answers: list[Scanned] = []
    for path in request["paths"]:
        try:
            size, found = occurs(Path(path), needles, request.get("most"))
        except OSError as error:
            answers.append((-1, str(error.strerror)))
        else:
            answers.append((size, sorted(found)))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    _main()
