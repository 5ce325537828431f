"""Known errors end an entry point with one line and status 2; a sweep goes on."""

from __future__ import annotations

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from retriever.cli import reported
from retriever.errors import ArtifactNotFound, ConfigError, RetrieverError


def fail_with(error, *known):
    with reported(*known):
        raise error


def hydra_runs(monkeypatch, mode):
    monkeypatch.setattr(HydraConfig, "initialized", staticmethod(lambda: True))
    settings = OmegaConf.create({"mode": mode})
    monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: settings))


@pytest.mark.parametrize("error", [ConfigError("seed = -1: no"), ArtifactNotFound("no artifact")])
def test_a_known_error_is_one_line_and_status_two(capsys, error):
    with pytest.raises(SystemExit) as ended:
        fail_with(error, RetrieverError)
    assert ended.value.code == 2
    assert ended.value.__cause__ is error
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_a_path_that_cannot_be_written_is_named_with_the_remedy(capsys):
    with pytest.raises(SystemExit) as ended:
        fail_with(PermissionError(13, "Permission denied", "/locked/x"), RetrieverError, OSError)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: /locked/x: Permission denied; check the path")
    assert len(said.splitlines()) == 1


def test_a_system_error_without_a_path_keeps_its_own_words(capsys):
    with pytest.raises(SystemExit):
        fail_with(OSError(28, "No space left on device"), OSError)
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


def test_a_single_hydra_job_exits_as_well(monkeypatch, capsys):
    hydra_runs(monkeypatch, RunMode.RUN)
    with pytest.raises(SystemExit):
        fail_with(ConfigError("no"), RetrieverError)
    assert capsys.readouterr().err == "error: no\n"


def test_a_job_of_a_sweep_logs_and_raises_on_so_that_the_next_one_runs(monkeypatch, capsys, caplog):
    hydra_runs(monkeypatch, RunMode.MULTIRUN)
    with pytest.raises(ConfigError, match="seed = -1"):
        fail_with(ConfigError("seed = -1"), RetrieverError)
    assert capsys.readouterr().err == ""
    assert "this job of the sweep failed: seed = -1" in caplog.text


def test_an_unknown_error_keeps_its_traceback(capsys):
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), RetrieverError)
    assert capsys.readouterr().err == ""


def test_nothing_is_said_when_nothing_fails(capsys):
    with reported(RetrieverError):
        pass
    assert capsys.readouterr() == ("", "")
