"""Files that appear whole or not at all: written as a draft beside their place, then renamed."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A free name beside a file for what is to become it; gone afterwards unless renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def drafts_left(path: Path) -> list[Path]:
    """Drafts of a file that a crash left behind, or that are being written."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.part")
    return [beside for beside in path.parent.iterdir() if name.fullmatch(beside.name)]


def sync_folder(folder: Path) -> None:
    """Make a rename or a deletion in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
