"""Entry points wire; what they wire lives in packages."""

from __future__ import annotations

import ast

import pytest

from tests.repo.imports import ROOT


@pytest.mark.parametrize("script", ["train.py", "serve.py", "evaluate.py"])
def test_an_entry_point_is_short(script):
    assert len((ROOT / script).read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.parametrize("script", ["train.py", "serve.py", "evaluate.py"])
def test_an_entry_point_decides_nothing(script):
    tree = ast.parse((ROOT / script).read_text(encoding="utf-8"))
    main = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "main"]
    assert len(main) == 1
    branches = [n for n in ast.walk(main[0]) if isinstance(n, ast.If | ast.For | ast.While)]
    assert branches == []
