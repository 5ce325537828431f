"""What each of our modules imports, read from its source: nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """One imported module, by its full dotted name, and where it is imported."""

    path: str  # of the importing file, relative to the root
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def imports_below(*folders: str) -> list[Import]:
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [found for path in files for found in imports_of(path)]


def imports_of(path: Path) -> Iterator[Import]:
    relative = path.relative_to(ROOT)
    package = list(relative.parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(str(relative), node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from service import client` imports service.client: the names count as modules too.
            for alias in node.names:
                yield Import(str(relative), node.lineno, f"{module}.{alias.name}")


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
