"""The Dockerfile, read as text: no engine is needed to see that it is sound."""

from __future__ import annotations

import json
import re

import pytest

from tests.repo.imports import ROOT

IMAGES = ("cpu", "gpu")


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction, continuation lines joined and comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (keyword.upper(), rest.strip())
        for line in joined.splitlines()
        if line.strip()
        for keyword, _, rest in [line.strip().partition(" ")]
    ]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for keyword, rest in instructions():
        if keyword == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            found[name] = [("FROM", base)]
        else:
            found[list(found)[-1]].append((keyword, rest))
    return found


def values(stage: str, keyword: str) -> list[str]:
    return [rest for found, rest in stages()[stage] if found == keyword]


def test_every_instruction_is_one_that_docker_knows():
    known = {
        *("FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME"),
        *("EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "ARG", "CMD", "LABEL"),
    }
    assert {keyword for keyword, _ in instructions()} <= known


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_runs_as_an_ordinary_user(stage):
    user = values(stage, "USER")
    assert len(user) == 1
    assert user[0] not in {"root", "0"}


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_says_how_it_is_and_where_it_listens(stage):
    health = values(stage, "HEALTHCHECK")
    assert len(health) == 1
    command = json.loads(health[0].partition("CMD ")[2])
    assert "/health" in command[-1]
    compile(command[-1], "HEALTHCHECK", "exec")
    (port,) = values(stage, "EXPOSE")
    (entry,) = values(stage, "ENTRYPOINT")
    assert f"service.port={port}" in json.loads(entry)
    assert f":{port}/health" in command[-1]


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_starts_the_service_in_exec_form_on_declared_volumes(stage):
    (entry,) = values(stage, "ENTRYPOINT")
    words = json.loads(entry)
    assert words[:2] == ["python", "serve.py"]
    (volumes,) = values(stage, "VOLUME")
    assert json.loads(volumes) == ["/data", "/artifacts"]


def test_the_gpu_image_stands_on_a_cuda_runtime_and_the_cpu_image_on_plain_python():
    (gpu,) = values("gpu", "FROM")
    assert values(gpu, "FROM")[0].startswith("nvidia/cuda:")
    assert "-runtime-" in values(gpu, "FROM")[0]
    assert values("cpu", "FROM")[0].startswith("python:")


def test_what_is_copied_exists_and_is_let_through_by_dockerignore():
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    for keyword, rest in instructions():
        if keyword != "COPY" or rest.startswith("--from="):
            continue
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in let_in, source


def test_stages_that_are_copied_from_are_defined_before():
    seen: list[str] = []
    for name, body in stages().items():
        for keyword, rest in body:
            if keyword == "COPY" and rest.startswith("--from="):
                assert rest.split()[0].removeprefix("--from=") in seen
        seen.append(name)


def test_the_header_mounts_the_folder_that_the_entry_point_looks_in():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    mounted = re.search(r"\$PWD/(\S+):/artifacts:ro", text)
    (entry,) = values("cpu", "ENTRYPOINT")
    assert "artifact=/artifacts/artifact" in json.loads(entry)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"artifact={mounted[1]}/artifact" in readme


def test_every_install_is_pinned_and_nothing_secret_is_baked_in():
    installs = [
        rest for keyword, rest in instructions() if keyword == "RUN" and "pip install" in rest
    ]
    assert len(installs) == 2
    assert all("-c constraints.txt" in rest for rest in installs)
    text = " ".join(rest for _, rest in instructions()).lower()
    assert not re.search(r"token|secret|password|api_key", text)


def environment(stage: str) -> dict[str, str]:
    return dict(word.split("=", 1) for rest in values(stage, "ENV") for word in rest.split())


@pytest.mark.parametrize("stage", IMAGES)
def test_what_is_compiled_at_first_use_is_kept_on_the_volume_that_the_user_may_write(stage):
    volumes = json.loads(values(stage, "VOLUME")[0])
    caches = [v for name, v in environment(stage).items() if name.endswith("_CACHE_DIR")]
    assert len(caches) == (2 if stage == "gpu" else 1)
    assert all(cache.startswith(f"{volumes[0]}/") for cache in caches)
    (made,) = [rest for rest in values(stage, "RUN") if "useradd" in rest]
    assert "--uid 10001" in made
    assert re.search(rf"install -d -o precedent .*{volumes[0]}\b", made)


def test_the_gpu_image_can_build_the_launchers_of_triton():
    (base,) = values("gpu", "FROM")
    (packages,) = [rest for rest in values(base, "RUN") if "apt-get install" in rest]
    assert {"gcc", "libc6-dev", "python3-dev", "--no-install-recommends"} <= set(packages.split())


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_sends_nothing_to_the_makers_of_its_runtime(stage):
    assert environment(stage)["ORT_DISABLE_TELEMETRY"] == "1"
