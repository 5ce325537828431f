"""An artifact is whole and ours, or it is refused with the reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import retriever
from retriever import artifact
from retriever.errors import ArtifactCorrupt, ArtifactError, ArtifactForeign, ArtifactNotFound
from retriever.types import Calibration

LISTED = [
    "card.md",
    "encoder.onnx",
    "encoder/config.json",
    "encoder/model.safetensors",
    "head.safetensors",
    "pair.onnx",
    "tokenizer.json",
    "training_cases.txt",
]


def sealed(folder, change):
    """Change the manifest's body and give it the digest that fits: a forgery, not an accident."""
    path = folder / "manifest.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    change(body)
    rest = {key: value for key, value in body.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    body["digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(body), encoding="utf-8")


def test_a_whole_artifact_reads_back_as_it_was_written(tiny_artifact):
    manifest = artifact.read_manifest(tiny_artifact)
    artifact.verify(tiny_artifact, manifest)
    assert sorted(manifest.files) == LISTED
    assert manifest.calibration == Calibration(1.5, -0.25)
    assert manifest.files["card.md"] == (
        hashlib.sha256((tiny_artifact / "card.md").read_bytes()).hexdigest(),
        (tiny_artifact / "card.md").stat().st_size,
    )


def test_a_missing_artifact_names_path_and_command(tmp_path):
    path = tmp_path / "nowhere"
    with pytest.raises(ArtifactNotFound, match=rf"no artifact at {path}.*python train\.py"):
        retriever.load(path)
    command = rf"no artifact at {path}.*python -m retriever\.learning\.export_encoder .* {path}"
    with pytest.raises(ArtifactNotFound, match=command):
        retriever.load_encoder(path)
    with pytest.raises(FileNotFoundError):  # also what plain Python code expects
        retriever.load(str(path))


def test_an_empty_foreign_folder_or_a_file_is_not_an_artifact(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "file").write_bytes(b"weights")
    for name in ("folder", "file"):
        with pytest.raises(ArtifactForeign, match=r"no manifest\.json; make one elsewhere with"):
            retriever.load(tmp_path / name)


@pytest.mark.parametrize("body", [{}, [], 3, "text", None, {"format": "other", "digest": ""}])
def test_a_manifest_of_something_else_is_foreign(tmp_path, body):
    (tmp_path / "manifest.json").write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(ArtifactForeign, match="not the manifest of a precedent-retriever"):
        retriever.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}", b'{"format": NaN}', b"\x80\x04."])
def test_a_manifest_that_is_not_json_is_corrupt(artifact_copy, content):
    (artifact_copy / "manifest.json").write_bytes(content)
    with pytest.raises(ArtifactCorrupt, match=r"manifest\.json is not readable JSON"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_manifest_cut_off_anywhere_is_corrupt(artifact_copy, kept):
    path = artifact_copy / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ArtifactCorrupt, match="not readable JSON"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"a": 1.5', '"a": 1.6'),
        ('"max_length": 64', '"max_length": 63'),
        ('"pooling": "first"', '"pooling": "mean"'),
        ('"kind": "retriever"', '"kind": "encoder"'),
        ('"text_format": "memento-1"', '"text_format": "memento-2"'),
        ('"digest": "', '"digest": "ü'),
        ('"metrics": {}', '"metrics": {"auc": 0.99}'),
    ],
)
def test_a_changed_value_in_the_manifest_is_noticed(artifact_copy, old, new):
    path = artifact_copy / "manifest.json"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ArtifactCorrupt, match=r"manifest\.json was changed"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize("name", LISTED)
def test_one_flipped_byte_in_any_file_is_noticed(artifact_copy, name):
    path = artifact_copy / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactCorrupt, match=rf"{name} was changed"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize("name", LISTED)
def test_a_file_cut_lengthened_or_removed_is_noticed(artifact_copy, name):
    path = artifact_copy / name
    content = path.read_bytes()
    for other in (content[:-1], b"", content + b"\n"):
        path.write_bytes(other)
        with pytest.raises(ArtifactCorrupt, match=rf"{name} has {len(other)} bytes, the manifest"):
            retriever.load(artifact_copy)
    path.unlink()
    with pytest.raises(ArtifactCorrupt, match=rf"{name} is missing"):
        retriever.load(artifact_copy)
    path.mkdir()
    with pytest.raises(ArtifactCorrupt, match=rf"{name} is missing"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_another_format_version_is_refused_by_number(artifact_copy, version):
    sealed(artifact_copy, lambda body: body.update(format_version=version))
    message = rf"format version {version!r}; this version reads 1"
    with pytest.raises(ArtifactForeign, match=message):
        retriever.load(artifact_copy)


def test_an_encoder_is_no_retriever_and_the_other_way_round(tiny_artifact, tiny_cosine_encoder):
    with pytest.raises(ArtifactForeign, match="holds an encoder, a retriever is needed"):
        retriever.load(tiny_cosine_encoder)
    command = "holds a retriever, an encoder is needed.*export_encoder"
    with pytest.raises(ArtifactForeign, match=command):
        retriever.load_encoder(tiny_artifact)


def test_another_text_format_is_refused_with_the_remedy(artifact_copy):
    sealed(artifact_copy, lambda body: body.update(text_format="memento-0"))
    with pytest.raises(ArtifactForeign, match=r"'memento-0'.*renders 'memento-1'.*train again"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "encoder/../../secret", ".."])
def test_a_file_outside_the_folder_is_refused(artifact_copy, name):
    (artifact_copy.parent / "secret").write_bytes(b"")
    empty = (hashlib.sha256(b"").hexdigest(), 0)
    sealed(artifact_copy, lambda body: body["files"].update({name: empty}))
    with pytest.raises(ArtifactForeign, match="outside its own folder"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize("name", ["tokenizer.json", "head.safetensors", "encoder.onnx"])
def test_a_needed_file_that_nobody_vouches_for_is_refused(artifact_copy, name):
    sealed(artifact_copy, lambda body: body["files"].pop(name))
    with pytest.raises(ArtifactCorrupt, match=rf"{name} is not listed in the manifest"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize(
    "calibration",
    [{"a": float("inf"), "b": 0.0}, {"a": 0.0, "b": 0.0}, {"a": -1.0, "b": 0.0}],
)
def test_an_impossible_calibration_is_refused(artifact_copy, calibration):
    sealed(artifact_copy, lambda body: body.update(calibration=calibration))
    path = artifact_copy / "manifest.json"
    # JSON has no infinity, but a number that overflows to one.
    path.write_text(path.read_text(encoding="utf-8").replace("Infinity", "1e999"), encoding="utf-8")
    with pytest.raises(ArtifactCorrupt, match="impossible calibration"):
        retriever.load(artifact_copy)


def test_a_calibration_that_is_not_a_number_is_refused(artifact_copy):
    sealed(artifact_copy, lambda body: body.update(calibration={"a": float("nan"), "b": 0.0}))
    with pytest.raises(ArtifactCorrupt, match="NaN is not a JSON number"):
        retriever.load(artifact_copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("encoder"),
        lambda body: body["encoder"].pop("pooling"),
        lambda body: body["encoder"].update(unknown=1),
        lambda body: body.update(files=[]),
        lambda body: body["files"].update({"card.md": "digest"}),
        lambda body: body.update(calibration=None),
        lambda body: body["calibration"].update(a="steep"),
    ],
)
def test_a_manifest_with_a_field_missing_or_misshapen_is_corrupt(artifact_copy, change):
    sealed(artifact_copy, change)
    with pytest.raises(ArtifactCorrupt, match="lacks or misshapes a field"):
        retriever.load(artifact_copy)


def test_a_manifest_cannot_be_written_with_a_value_that_json_does_not_have(artifact_copy):
    manifest = artifact.read_manifest(artifact_copy)
    broken = dataclasses.replace(manifest, metrics={"auc": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        artifact.write_manifest(artifact_copy, broken)


def test_a_manifest_of_the_encoders_own_is_hashed_like_any_file(artifact_copy):
    (artifact_copy / "encoder" / "manifest.json").write_text("{}", encoding="utf-8")
    manifest = artifact.write_manifest(artifact_copy, artifact.read_manifest(artifact_copy))
    assert "encoder/manifest.json" in manifest.files
    assert "manifest.json" not in manifest.files


def test_every_error_about_an_artifact_is_one_kind_of_error():
    for kind in (ArtifactNotFound, ArtifactForeign, ArtifactCorrupt):
        assert issubclass(kind, ArtifactError)


def test_an_artifact_tells_which_cases_it_was_trained_on_without_holding_them(tiny_artifact):
    manifest = artifact.read_manifest(tiny_artifact)
    assert artifact.held_in_training(tiny_artifact, manifest, "[CASE]\nan old question")
    for other in ("an old question", "[CASE]\nan old question ", "", "\ud800", "[CASE]\nAn old q"):
        assert not artifact.held_in_training(tiny_artifact, manifest, other)
    for path in tiny_artifact.rglob("*"):
        assert path.is_dir() or b"an old question" not in path.read_bytes()


def test_the_same_case_has_another_digest_in_another_artifact():
    digests = {artifact.case_digest(key * 16, "[CASE]\nq") for key in ("00", "ab")}
    assert len(digests) == 2


def test_an_encoder_was_trained_on_nothing_of_ours(tiny_cosine_encoder):
    manifest = artifact.read_manifest(tiny_cosine_encoder, kind="encoder")
    assert not artifact.held_in_training(tiny_cosine_encoder, manifest, "[CASE]\nan old question")


def test_there_is_no_pickle_in_an_artifact(tiny_artifact, tiny_cosine_encoder):
    for folder in (tiny_artifact, tiny_cosine_encoder):
        files = [path for path in folder.rglob("*") if path.is_file()]
        suffixes = {path.suffix for path in files}
        assert suffixes <= {".json", ".md", ".txt", ".onnx", ".safetensors"}
        # torch.save writes a zip, pickle protocol 2 and later starts with 0x80.
        assert not [path for path in files if path.read_bytes()[:2] in (b"PK", b"\x80\x02")]


def test_an_artifact_works_from_wherever_it_is_moved(artifact_copy, scorer, tmp_path):
    moved = shutil.move(artifact_copy, tmp_path / "Räume und Leerzeichen")
    pairs = [("who is it", "what is it")]
    assert retriever.load(moved, device="cpu").score(pairs) == scorer.score(pairs)


def test_every_file_of_an_export_can_be_read_by_others(tiny_artifact, tiny_cosine_encoder):
    umask = os.umask(0o022)
    os.umask(umask)
    for folder in (tiny_artifact, tiny_cosine_encoder):
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*.*")}
        assert modes["model.safetensors"] == 0o666 & ~umask  # the library's own mode is 0600
        assert set(modes.values()) == {0o666 & ~umask}


@pytest.mark.parametrize("name", ["manifest.json", "head.safetensors", "encoder.onnx"])
def test_a_file_that_may_not_be_read_is_named_with_the_remedy(artifact_copy, monkeypatch, name):
    opened = Path.open

    def refused(self, *arguments, **options):
        if self.name == name:  # the tests may run as root, who may read everything
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ArtifactError, match=rf"{name} cannot be read .*chmod -R a\+rX"):
        retriever.load(artifact_copy, device="cpu")


def test_an_artifact_that_a_crash_moved_aside_is_put_back_when_it_is_read(artifact_copy):
    aside = artifact_copy.with_name(f".{artifact_copy.name}.old.0123abcd")
    aside.mkdir()
    artifact_copy.rename(aside / artifact_copy.name)
    assert artifact.read_manifest(artifact_copy).kind == "retriever"


def test_a_query_has_one_digest_however_it_is_spaced_and_another_than_a_case(artifact_copy):
    key = "0f" * 16
    assert artifact.query_digest(key, "Who  IS it") == artifact.query_digest(key, "who is it ")
    assert artifact.query_digest(key, "who is it") != artifact.case_digest(key, "who is it")


def test_names_tell_precisions_and_int8_encoders_apart():
    digest = "0123456789abcdef" * 2
    prints = [digest, f"{digest}-fp16", f"{digest}-bf16"]
    prints += [f"{digest}-int8-{other * 16}" for other in "ab"]
    short = [artifact.short_name(one) for one in prints]
    assert short[0] == digest[:12]
    assert len(set(short)) == len(prints)
    assert all(name.startswith(digest[:12]) for name in short)
