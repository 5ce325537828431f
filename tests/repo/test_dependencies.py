"""Every import is declared, every pin is real, and a serving install stays light."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.imports import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def closure(requirements: list[str]) -> set[str]:
    """Every distribution that an install of `requirements` brings, if it is installed here."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    queue = [(Requirement(text), "") for text in requirements]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.add(name)
        for wanted in {"", *requirement.extras}:
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            queue += [(Requirement(text), wanted) for text in metadata.requires(name) or []]
    return found


def test_every_import_is_declared_and_every_declaration_is_used():
    done = subprocess.run(
        [sys.executable, "-m", "deptry", "--no-ansi", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("heavy", ["torch", "transformers", "grpcio", "scikit-learn", "datasets"])
def test_a_cpu_serving_install_does_not_bring(heavy):
    light = closure([*PROJECT["dependencies"], *EXTRAS["cpu"], *EXTRAS["serve"]])
    assert {"numpy", "onnxruntime", "fastapi", "starlette"} <= light, "the walk found too little"
    assert heavy not in light


def test_the_cpu_and_gpu_extras_exclude_each_other_in_one_place_only():
    names = {extra: {Requirement(text).name for text in EXTRAS[extra]} for extra in ("cpu", "gpu")}
    # numba compiles the scan, which a GPU machine falls back to.
    assert names["cpu"] & names["gpu"] == {"numba"}
    elsewhere = {
        Requirement(text).name
        for extra, texts in EXTRAS.items()
        if extra not in names
        for text in texts
    }
    assert elsewhere & {"faiss-cpu", "faiss-gpu", "onnxruntime", "onnxruntime-gpu"} == set()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", pin) for pin in pins), pins
    return {canonicalize_name(name): version for name, version in (p.split("==") for p in pins)}


def test_every_direct_dependency_of_a_cpu_set_up_is_pinned():
    direct = {
        canonicalize_name(Requirement(text).name)
        for texts in (PROJECT["dependencies"], *(t for e, t in EXTRAS.items() if e != "gpu"))
        for text in texts
    }
    assert direct - set(constraints()) == set()


def test_the_pins_satisfy_the_declared_bounds():
    pins = constraints()
    broken = [
        text
        for texts in (PROJECT["dependencies"], *EXTRAS.values())
        for text in texts
        if (requirement := Requirement(text)).name in pins
        and not requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    ]
    assert broken == []


def test_a_wheel_holds_every_package_every_configuration_file_and_the_three_scripts():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    include = table["packages"]["find"]["include"]
    data = table["package-data"]["*"]

    def packaged(path: Path) -> bool:
        package = ".".join(path.parent.parts)
        holds = path.suffix == ".py" or any(fnmatch(path.name, pattern) for pattern in data)
        return holds and any(fnmatch(package, pattern) for pattern in include)

    wanted = [
        path.relative_to(ROOT)
        for folder in ("conf", "harness", "memory", "retriever", "service")
        for suffix in ("*.py", "*.yaml", "py.typed")
        for path in (ROOT / folder).rglob(suffix)
    ]
    assert any(path.parts[0] == "conf" for path in wanted)
    assert [str(path) for path in wanted if not packaged(path)] == []
    assert not packaged(Path("tests/repo/imports.py"))
    assert sorted(table["py-modules"]) == sorted(p.stem for p in ROOT.glob("*.py"))
