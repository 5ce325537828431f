"""The command that exports an encoder as it is."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import retriever
from retriever.errors import EncoderUnavailable
from retriever.learning import export_encoder as command
from retriever.learning.config import EncoderConfig

ROOT = Path(__file__).resolve().parents[2]


def test_the_exported_encoder_is_the_one_that_cosine_search_opens(
    tiny_encoder, tiny_cosine_encoder, tmp_path
):
    out = tmp_path / "cosine"
    config = EncoderConfig(str(tiny_encoder), max_length=64)
    manifest = command.export_encoder(config, out, onnx=False)
    assert (manifest.kind, manifest.projection_size) == ("encoder", 0)
    assert manifest.encoder.source == str(tiny_encoder)
    found = retriever.load_encoder(out, engine="torch", device="cpu").embed(["who", "what is it"])
    expected = retriever.load_encoder(tiny_cosine_encoder, device="cpu").embed(
        ["who", "what is it"]
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_command_writes_the_artifact_and_says_what_it_holds(
    tiny_encoder, tmp_path, capsys, monkeypatch
):
    # The graphs are tested elsewhere, and take their time.
    quick = functools.partial(command.export_encoder, onnx=False)
    monkeypatch.setattr(command, "export_encoder", quick)
    out = tmp_path / "cosine"
    command.main([str(tiny_encoder), str(out), "--max-length", "32", "--pooling", "mean"])
    assert capsys.readouterr().out == (
        f"{out}: {tiny_encoder}, mean pooling, 32 dimensions, at most 32 tokens\n"
    )
    encoder = retriever.load_encoder(out, engine="torch", device="cpu")
    assert (encoder.max_length, encoder.manifest.encoder.pooling) == (32, "mean")
    assert encoder.embed(["who"]).shape == (1, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/no/such/folder", "OUT"], "error: encoder folder /no/such/folder does not exist\n"),
        (["pkg:not_installed_here/model", "OUT"], "error: encoder 'pkg:not_installed_here/model'"),
        (["ENCODER", "OUT", "--max-length", "2"], "error: encoder.max_length = 2: at least 4"),
        (["ENCODER", "OUT", "--max-length", "65"], "error: encoder.max_length = 65"),
        (["ENCODER"], "the following arguments are required: out"),
        (["ENCODER", "OUT", "--pooling", "max"], "invalid choice: 'max'"),
    ],
)
def test_a_wrong_argument_ends_with_status_two(tiny_encoder, tmp_path, capsys, arguments, message):
    places = {"OUT": str(tmp_path / "out"), "ENCODER": str(tiny_encoder)}
    with pytest.raises(SystemExit) as ended:
        command.main([places.get(one, one) for one in arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_one_line(tiny_encoder, tmp_path, capsys):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    with pytest.raises(SystemExit) as ended:
        command.main([str(tiny_encoder), str(out), "--max-length", "32"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'file'}")
    assert len(said.splitlines()) == 1


def test_the_function_raises_where_the_command_reports():
    with pytest.raises(EncoderUnavailable):
        command.export_encoder(EncoderConfig("/no/such/folder"), Path("never"))


def test_it_runs_as_a_module_as_the_error_messages_say(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", command.__name__, "/no/such/folder", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: encoder folder /no/such/folder does not exist\n"
