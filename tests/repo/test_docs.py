"""What the documents name exists, and their commands would be understood."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from tests.repo.configs import ROOTS, parsed
from tests.repo.documents import DOCUMENTS, blocks, commands, inline_code, links
from tests.repo.imports import ROOT

#: Written by runs, so not in the repository.
MADE_BY_RUNS = ("outputs/", "multirun/", ".venv/", "card.md")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, re.MULTILINE))


def scripts_called() -> list[tuple[str, str, list[str]]]:
    """(document, script or -m module, arguments) of every python command."""
    found = []
    for document, words in commands():
        if words[0] in {"python", ".venv/bin/python"} and len(words) > 1:
            at = 2 if words[1] == "-m" else 1
            found.append((document, " ".join(words[1 : at + 1]), words[at + 1 :]))
    return found


def test_the_readme_opens_with_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme[:1500]
    assert "make test" in readme[:6000]


def test_every_link_inside_the_project_leads_somewhere():
    assert [(str(d), t) for d, t in links() if not (d.parent / t).exists()] == []


def test_every_make_target_that_is_named_exists():
    named = {words[1] for _, words in commands() if words[0] == "make" and len(words) > 1}
    named |= {text.split()[1] for _, text in inline_code() if re.match(r"make [a-z]", text)}
    assert {"demo", "test"} <= named
    assert named - make_targets() == set()


def test_every_script_and_module_that_is_run_exists():
    called = scripts_called()
    assert called, "the documents run no python command"
    for document, target, _ in called:
        if target.startswith("-m "):
            name = target[3:]
            assert importlib.util.find_spec(name) is not None, f"{document}: python {target}"
        elif target != "-c":
            assert (ROOT / target).is_file(), f"{document}: python {target}"


def overrides_named() -> list[tuple[str, str, list[str]]]:
    return [
        (document, target.removesuffix(".py"), [a for a in arguments if not a.startswith("-")])
        for document, target, arguments in scripts_called()
        if target.removesuffix(".py") in ROOTS
    ]


@pytest.mark.parametrize(("document", "root", "arguments"), overrides_named())
def test_every_documented_command_composes_into_a_valid_configuration(document, root, arguments):
    # A sweep's values, `seed=1,2`, are one job each: the first stands for all.
    first_job = [re.sub(r"^([^=]+=[^,\['\"{(]*),.*$", r"\1", argument) for argument in arguments]
    parsed(root, *[argument for argument in first_job if not argument.startswith("hydra")])


def inline_commands() -> list[tuple[str, list[str]]]:
    """(root, arguments) of the commands in prose, options with their values left out."""
    found = []
    for _, text in inline_code():
        words = text.split()
        if len(words) > 1 and words[0] == "python" and words[1].removesuffix(".py") in ROOTS:
            arguments = re.sub(r"--(cfg|config-dir) \S+", "", " ".join(words[2:])).split()
            found.append((words[1].removesuffix(".py"), arguments))
    return found


@pytest.mark.parametrize(("root", "arguments"), inline_commands())
def test_every_command_in_prose_composes_too(root, arguments, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    config = parsed(root, f"hydra.searchpath=[file://{tmp_path}]", *arguments)
    assert config.seed == 7 or "experiment=mine" not in arguments


def looks_like_a_path(text: str) -> bool:
    if re.search(r"[\s<>{}…$=()\[\]]|://", text) or text.startswith(("-", "/", "~", *MADE_BY_RUNS)):
        return False
    head = text.split("/")[0]
    if "/" in text:
        return (ROOT / head).exists() or text.endswith((".py", ".md", ".yaml", ".sh"))
    return text.endswith((".py", ".md", ".toml"))


def test_every_path_that_is_named_in_prose_exists():
    named = [(d, text) for d, text in inline_code() if looks_like_a_path(text)]
    assert named, "the documents name no path"
    missing = [
        (document, text)
        for document, text in named
        if not (any(ROOT.glob(text)) if "*" in text else (ROOT / text).exists())
    ]
    assert missing == []


def test_every_path_in_a_command_exists_or_is_made_by_a_run():
    missing = [
        (document, word)
        for document, words in commands()
        for word in words
        if looks_like_a_path(word) and not (ROOT / word).exists()
    ]
    assert missing == []


def test_every_extra_that_is_named_is_declared():
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = {
        extra.strip()
        for group in re.findall(r"(?:precedent-memory|\.)\[([a-z,]+)\]", text)
        for extra in group.split(",")
    }
    assert "gpu" in named
    assert named - set(EXTRAS) == set()


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.document)
def test_python_in_the_documents_parses_and_its_imports_are_real(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [a.name for a in node.names if not hasattr(module, a.name)] == []
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert importlib.util.find_spec(alias.name) is not None


def test_no_document_names_an_absolute_path_of_one_machine():
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.:])/(home|Users|work)/", text), Path(path).name
