"""From a trained model to an artifact on disk: weights, ONNX graphs, manifest, and a parity gate.

The gate runs torch, ONNX Runtime and the split form in numpy on the same token ids, over batches
of 1, an odd number and many, and lengths from the shortest to the maximum with padded tails; an
export whose logits differ by more than the tolerance is refused and leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from retriever import artifact
from retriever.artifact import EncoderFacts, Manifest
from retriever.device import Device
from retriever.engines.onnx import OnnxEngine, open_session
from retriever.engines.runtime import refuse_telemetry
from retriever.errors import ParityError
from retriever.files import folder_written_atomically
from retriever.learning.encoder import encoder_fingerprint
from retriever.learning.model import (
    CASE_PROJECTION,
    EMBEDDING,
    QUERY_PROJECTION,
    CaseClassifier,
    SplitHead,
    head_tensors,
)
from retriever.tokens import TextTokenizer
from retriever.types import Calibration, Floats

OPSET = 20
_LIBRARIES = ("precedent-memory", "torch", "transformers", "onnx", "onnxscript", "onnxruntime")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportFacts:
    """What an artifact says about where it came from."""

    source: str
    revision: str | None = None
    calibration: Calibration = field(default_factory=Calibration)
    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    #: Model texts of the training cases; only keyed digests of them are stored.
    case_texts: Sequence[str] = ()
    #: The queries the model has met, likewise; None where they are not known.
    query_texts: Sequence[str] | None = None


def export_artifact(
    path: Path,
    model: CaseClassifier,
    tokenizer: TextTokenizer,
    facts: ExportFacts,
    *,
    onnx: bool = True,
    tolerance: float = 1e-4,
) -> Manifest:
    """Write the artifact of `model` to `path` (whole, or not at all) and return its manifest.

    A model without a head becomes an untrained encoder's artifact. An older artifact at `path` is
    replaced once the new one has passed the gate.

    Raises:
        ParityError: ONNX or the split form differ from torch by more than `tolerance` on a logit.
    """
    kind = artifact.UNTRAINED if model.head is None else artifact.RETRIEVER
    artifact.check_replaceable(path, kind=kind)
    model = _on_cpu_for_inference(model)
    settings: Any = model.encoder.config
    fingerprint = encoder_fingerprint(model.encoder, tokenizer, model.pooling)
    head = model.head
    training = dict(facts.training)
    with folder_written_atomically(path) as folder:
        settings.save_pretrained(folder / artifact.ENCODER)
        _save_tensors(model.encoder.state_dict(), folder / artifact.ENCODER / "model.safetensors")
        (folder / artifact.TOKENIZER).write_text(tokenizer.definition, encoding="utf-8")
        if head is not None:
            _save_tensors(head_tensors(head), folder / artifact.HEAD)
            training["case_key"] = _write_digests(folder, facts)
        if onnx:
            _export_onnx(folder, model)
            worst = check_parity(folder, model, tokenizer, tolerance)
            training["onnx_parity"] = worst
        manifest = Manifest(
            kind=kind,
            encoder=EncoderFacts(
                source=facts.source,
                revision=facts.revision,
                fingerprint=fingerprint,
                pooling=model.pooling,
                max_length=tokenizer.max_length,
                hidden_size=int(settings.hidden_size),
                pad_id=tokenizer.pad_id,
            ),
            projection_size=0 if head is None else head.case.out_features,
            fingerprint=_fingerprint(fingerprint, head),
            calibration=facts.calibration,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            training=training,
            metrics=dict(facts.metrics),
            versions=_versions(),
        )
        (folder / artifact.CARD).write_text(_card(manifest, path.name), encoding="utf-8")
        return artifact.write_manifest(folder, manifest)


def check_parity(
    folder: Path, model: CaseClassifier, tokenizer: TextTokenizer, tolerance: float
) -> float:
    """The largest |difference| from torch over logits and embedding values of all probe shapes.

    Raises:
        ParityError: it is above `tolerance`, or not a number, or a graph cannot run a shape.
    """
    engine = OnnxEngine(folder, Device("cpu"))
    pair = None if model.head is None else open_session(folder / artifact.PAIR_ONNX, Device("cpu"))
    worst = 0.0
    for ids, mask in _probes(tokenizer):
        expected = _by_torch(model, ids, mask)
        try:
            found = _by_onnx(model.head, engine, pair, ids, mask)
        except Exception as error:  # ONNX Runtime's own classes, for a size burnt into a graph
            raise ParityError(
                f"the exported graphs cannot run a batch of {ids.shape}: {error}; "
                "nothing was exported"
            ) from error
        for name, (kind, got) in found.items():
            difference = float(np.abs(got - expected[kind]).max())
            if not difference <= tolerance:  # NaN must fail too
                raise ParityError(
                    f"the {kind} of {name} differs from torch by {difference:.3g} on a batch of "
                    f"{ids.shape}, more than export.tolerance = {tolerance:g}; nothing was exported"
                )
            worst = max(worst, difference)
    log.info("ONNX parity: largest difference %.2g over all probe shapes", worst)
    return worst


def _by_torch(
    model: CaseClassifier, ids: NDArray[np.int64], mask: NDArray[np.int64]
) -> dict[str, Floats]:
    """Case ids and mask (B, L) -> embedding (B, H), and with a head the logits (B,)."""
    case = (torch.from_numpy(ids), torch.from_numpy(mask))
    with torch.inference_mode():
        found = {"embedding": model.encode(*case).numpy()}
        if model.head is not None:
            query = (torch.from_numpy(one) for one in _as_queries(ids, mask))
            found["logit"] = model(*case, *query).numpy()
    return found


def _by_onnx(
    head: SplitHead | None,
    engine: OnnxEngine,
    pair: Any,
    ids: NDArray[np.int64],
    mask: NDArray[np.int64],
) -> dict[str, tuple[str, Floats]]:
    """The same of every exported form: its name -> (what it gives, the values)."""
    if head is None:
        (embedding,) = engine.run(ids, mask, (EMBEDDING,))
        return {artifact.ENCODER_ONNX: ("embedding", embedding)}
    query_ids, query_mask = _as_queries(ids, mask)
    embedding, shown = engine.run(ids, mask, (EMBEDDING, CASE_PROJECTION))
    (asked,) = engine.run(query_ids, query_mask, (QUERY_PROJECTION,))
    tensors = {name: tensor.numpy() for name, tensor in head_tensors(head).items()}
    split = np.maximum(shown + asked, 0.0) @ tensors["output_weight"] + tensors["output_bias"]
    inputs = {
        "case_ids": ids,
        "case_mask": mask,
        "query_ids": query_ids,
        "query_mask": query_mask,
    }
    (monolith,) = pair.run(["logit"], inputs)
    return {
        artifact.ENCODER_ONNX: ("embedding", embedding),
        "the split form": ("logit", split),
        artifact.PAIR_ONNX: ("logit", monolith),
    }


def _as_queries(
    ids: NDArray[np.int64], mask: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The query of row i is the case text of row B-1-i: other contents, same shapes."""
    return ids[::-1].copy(), mask[::-1].copy()


def _probes(tokenizer: TextTokenizer) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Token ids and masks (B, L): batches 1, 3 and 32; lengths from 1 to the maximum."""
    rng = np.random.default_rng(0)
    longest = tokenizer.max_length
    shapes = [(1, 1), (1, longest), (3, min(7, longest)), (3, longest), (32, min(33, longest))]
    probes = []
    for batch, length in shapes:
        ids = rng.integers(0, tokenizer.vocabulary_size, size=(batch, length))
        real = rng.integers(1, length + 1, size=batch)
        real[0] = length
        mask = (np.arange(length)[None, :] < real[:, None]).astype(np.int64)
        ids = np.where(mask == 1, ids, tokenizer.pad_id)
        probes.append((ids.astype(np.int64), mask))
    return probes


class _Views(nn.Module):
    """`CaseClassifier.views` as a tuple, which is what a graph can return."""

    def __init__(self, model: CaseClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model.views(input_ids, attention_mask).values())


def _export_onnx(folder: Path, model: CaseClassifier) -> None:
    batch = torch.export.Dim("batch", min=1)
    length = torch.export.Dim("length", min=1)
    names = [EMBEDDING]
    if model.head is not None:
        names += [CASE_PROJECTION, QUERY_PROJECTION]
    _to_onnx(
        folder / artifact.ENCODER_ONNX,
        _Views(model),
        {"input_ids": _example(3), "attention_mask": _example(3)},
        names,
        {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")},
    )
    if model.head is None:
        return
    query_length = torch.export.Dim("query_length", min=1)
    _to_onnx(
        folder / artifact.PAIR_ONNX,
        model,
        {
            "case_ids": _example(3),
            "case_mask": _example(3),
            "query_ids": _example(4),
            "query_mask": _example(4),
        },
        ["logit"],
        {
            "case_ids": {0: batch, 1: length},
            "case_mask": {0: batch, 1: length},
            "query_ids": {0: batch, 1: query_length},
            "query_mask": {0: batch, 1: query_length},
        },
    )


def _example(length: int) -> Tensor:
    """Two rows: a size of 1 would be burnt into the graph, and so would one tensor given twice."""
    return torch.ones((2, length), dtype=torch.int64)


def _to_onnx(
    path: Path,
    module: nn.Module,
    example: dict[str, Tensor],
    outputs: list[str],
    shapes: dict[str, dict[int, Any]],
) -> None:
    refuse_telemetry()  # whatever the exporter may load
    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            kwargs=example,
            input_names=list(example),
            output_names=outputs,
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(path, external_data=False)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter reports its own internals line by line; the parity gate, not those, decides."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _on_cpu_for_inference(model: CaseClassifier) -> CaseClassifier:
    return model.float().cpu().eval()


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    safetensors.torch.save_file(
        {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()},
        path,
        metadata={"format": "pt"},
    )


def _fingerprint(encoder: str, head: SplitHead | None) -> str:
    digest = hashlib.sha256(encoder.encode())
    for name, tensor in sorted((head_tensors(head) if head else {}).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:32]


def _write_digests(folder: Path, facts: ExportFacts) -> str:
    """List cases and queries of the training by digests under a new key, which is returned."""
    key = secrets.token_hex(16)
    lists = {artifact.TRAINING_CASES: {artifact.case_digest(key, x) for x in facts.case_texts}}
    if facts.query_texts is not None:
        queries = {artifact.query_digest(key, text) for text in facts.query_texts}
        lists[artifact.TRAINING_QUERIES] = queries
    for name, digests in lists.items():
        text = "".join(f"{digest}\n" for digest in sorted(digests))
        (folder / name).write_text(text, encoding="ascii")
    return key


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _card(manifest: Manifest, name: str) -> str:
    lines = [f"# {name}", ""]
    encoder, calibration = manifest.encoder, manifest.calibration
    if manifest.kind == artifact.UNTRAINED:
        lines.append(
            f"The untrained encoder `{encoder.source}`, for cosine search over query texts."
        )
    else:
        lines.append(
            f"A query-case classifier over `{encoder.source}` "
            f"({manifest.projection_size} hidden units). Its score estimates the chance that a run "
            "succeeds given that the case was shown, under the policy of the log it learned from; "
            "it is not the case's own contribution."
        )
    lines += [
        "",
        f"* made: {manifest.created_at}",
        f"* pooling: {encoder.pooling}; at most {encoder.max_length} tokens; text format "
        f"{manifest.text_format}",
        f"* fingerprint: {manifest.fingerprint}",
        f"* calibration: sigmoid({calibration.a:.6g} * logit {calibration.b:+.6g})",
    ]
    for title, facts in (("Training", manifest.training), ("Metrics", manifest.metrics)):
        shown = {key: value for key, value in facts.items() if key != "case_key"}
        if shown:
            lines += ["", f"## {title}", ""]
            lines += [f"* {key}: {value}" for key, value in shown.items()]
    return "\n".join(lines) + "\n"
