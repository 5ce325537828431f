"""What README and docs name: commands, paths, code. Read as text, so that it can be checked."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.repo.imports import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and its text."""

    document: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    return [
        Block(path.name, language, text)
        for path in DOCUMENTS
        for language, text in FENCE.findall(path.read_text(encoding="utf-8"))
        if language in languages
    ]


def commands() -> list[tuple[str, list[str]]]:
    """(document, words) of every shell command in a ```bash block, continuation lines joined."""
    found = []
    for block in blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
            words = shlex.split(line, comments=True)
            if words:
                found.append((block.document, words))
    return found


def inline_code() -> list[tuple[str, str]]:
    """(document, text) of everything between single backticks, fenced blocks left out."""
    found = []
    for path in DOCUMENTS:
        prose = FENCE.sub("", path.read_text(encoding="utf-8"))
        found += [(path.name, text) for text in re.findall(r"`([^`\n]+)`", prose)]
    return found


def links() -> list[tuple[Path, str]]:
    """(document, target) of every link that stays inside the project."""
    return [
        (path, target.partition("#")[0])
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if not target.startswith(("http://", "https://", "#", "mailto:"))
    ]
