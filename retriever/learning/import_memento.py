"""Memento's own checkpoint (`best.pt`, `last.pt`) as an artifact with exactly its scores.

    python -m retriever.learning.import_memento best.pt artifacts/memento

The file is a state dict: `sentence_bert.*` is the encoder, `classifier.0` Linear(2H, D) over
[case ; query], `classifier.3` Linear(D, 2) (Memento-Teams/Memento, `memory/parametric_memory.py`).
It names neither encoder nor tokenizer; those are the caller's to name. Which cases it learned from
is not in it either, so the artifact cannot say.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retriever.artifact import Manifest
from retriever.cli import reported
from retriever.errors import InvalidInput, RetrieverError
from retriever.files import sha256_of_file
from retriever.learning.config import POOLINGS, EncoderConfig
from retriever.learning.encoder import load_encoder
from retriever.learning.export import ExportFacts, export_artifact
from retriever.learning.model import CaseClassifier, SplitHead, head_from_tensors

MEMENTO_ENCODER = "princeton-nlp/sup-simcse-roberta-base"

_ENCODER = "sentence_bert."
_POOLER = "sentence_bert.pooler."
_HEAD = ("classifier.0.weight", "classifier.0.bias", "classifier.3.weight", "classifier.3.bias")
_NESTED_UNDER = ("model_state_dict", "state_dict", "model")
_SHOWN = 6

log = logging.getLogger(__name__)


def import_checkpoint(
    checkpoint: Path,
    encoder: EncoderConfig,
    out: Path,
    *,
    onnx: bool = True,
    tolerance: float = 1e-4,
) -> Manifest:
    """Write the artifact of a Memento checkpoint to `out`; its score is their softmax of class 1.

    Args:
        checkpoint: the `.pt` file; nothing in it is executed.
        encoder: what the checkpoint was trained from: gives configuration and tokenizer, no
            weights. Pooling `auto` is the first token, which is what Memento reads.
        out: the artifact's folder; an older one is replaced once the new one is whole.
        onnx: also export the graphs.
        tolerance: of the parity gate, see `retriever.learning.export`.

    Raises:
        InvalidInput: the file is not such a checkpoint, or not one of this encoder.
        EncoderUnavailable, ConfigError, ParityError: from loading and exporting.
    """
    state = read_state(checkpoint)
    loaded = load_encoder(encoder, weights=False)
    _load_encoder_weights(checkpoint, state, loaded.model)
    head = _split_head(checkpoint, state, loaded.hidden_size)
    pooling = "first" if encoder.pooling == "auto" else loaded.pooling
    left_out = sorted(name for name in state if name.startswith(_POOLER))
    if left_out:
        log.info("left out, because the head does not read it: %s", ", ".join(left_out))
    facts = ExportFacts(
        source=loaded.source,
        revision=loaded.revision,
        training={
            "imported_from": checkpoint.name,
            "imported_sha256": sha256_of_file(checkpoint),
            "left_out": left_out,
            "log": "unknown: a Memento checkpoint does not name its training log",
        },
    )
    model = CaseClassifier(loaded.model, pooling, head)
    return export_artifact(out, model, loaded.tokenizer, facts, onnx=onnx, tolerance=tolerance)


def read_state(checkpoint: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint file, float32 on the CPU.

    Raises:
        InvalidInput: no file, other objects than tensors, or values that are not numbers.
    """
    if not checkpoint.is_file():
        raise InvalidInput(f"no checkpoint at {checkpoint}; give the path of Memento's best.pt")
    try:
        found = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InvalidInput(
            f"{checkpoint} is refused: it holds Python objects besides tensors, which could run "
            f"code when read ({_refused_object(error)}); where you trust it, load it yourself and "
            "save model.state_dict() alone"
        ) from error
    except Exception as error:  # what torch raises on other bytes depends on the bytes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidInput(
            f"{checkpoint} is not a file that torch.save wrote, or not all of it ({reason}); "
            "copy it again"
        ) from error
    state = _unwrapped(found)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise InvalidInput(
            f"{checkpoint} holds no state dict, neither plainly nor under "
            f"{', '.join(_NESTED_UNDER)}; save model.state_dict()"
        )
    return {name: _float32(f"{checkpoint}: {name}", tensor) for name, tensor in state.items()}


def _float32(what: str, tensor: Tensor) -> Tensor:
    """A dense tensor, float32 if it holds fractions; integers (position numbers) as they are."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
        kind = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise InvalidInput(f"{what} is a {kind} tensor; save a dense one (tensor.to_dense())")
    if not tensor.is_floating_point():
        return tensor
    values = tensor.float()
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidInput(f"{what} holds NaN or infinity; take another epoch's")
    if not bool(torch.isfinite(values).all()):
        raise InvalidInput(
            f"{what} holds {float(tensor.abs().max()):g}, beyond float32; take another epoch's"
        )
    return values


def _unwrapped(found: Any) -> dict[str, Any]:
    for key in _NESTED_UNDER:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}


def _load_encoder_weights(checkpoint: Path, state: Mapping[str, Tensor], model: nn.Module) -> None:
    weights = {
        name.removeprefix(_ENCODER): tensor
        for name, tensor in state.items()
        if name.startswith(_ENCODER) and not name.startswith(_POOLER)
    }
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    # Older transformers saved position numbers and the like; today's make them anew.
    made_anew = {name for name, _ in model.named_buffers()} - set(expected)
    weights = {name: tensor for name, tensor in weights.items() if name not in made_anew}
    unknown = [name for name in state if not name.startswith(_ENCODER) and name not in _HEAD] + [
        _ENCODER + name for name in weights if name not in expected
    ]
    missing = [_ENCODER + name for name in expected if name not in weights]
    missing += [name for name in _HEAD if name not in state]
    misshaped = [
        f"{_ENCODER}{name} {tuple(tensor.shape)} instead of {expected[name]}"
        for name, tensor in weights.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    problems = [
        f"{what}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for what, names in (("missing", missing), ("unknown", unknown), ("misshaped", misshaped))
        if names
    ]
    if problems:
        raise InvalidInput(
            f"{checkpoint} is not a Memento retriever over this encoder ({'; '.join(problems)}); "
            "name the encoder it was trained from"
        )
    floating = [name for name, own in model.state_dict().items() if own.is_floating_point()]
    for name in (*(_ENCODER + name for name in floating), *_HEAD):
        if not state[name].is_floating_point():
            raise InvalidInput(
                f"{checkpoint}: {name} is {str(state[name].dtype).removeprefix('torch.')}, weights "
                "are floating-point numbers; save the model before it is quantised"
            )
    model.load_state_dict(weights)


def _split_head(checkpoint: Path, state: Mapping[str, Tensor], hidden_size: int) -> SplitHead:
    first, first_bias, last, last_bias = (state[name] for name in _HEAD)
    hidden = first_bias.numel()
    if hidden == 0:
        raise InvalidInput(
            f"{checkpoint}: {_HEAD[1]} is empty, a head needs at least 1 hidden unit; "
            "take another checkpoint"
        )
    wanted = ((hidden, 2 * hidden_size), (hidden,), (2, hidden), (2,))
    for name, shape in zip(_HEAD, wanted, strict=True):
        if tuple(state[name].shape) != shape:
            raise InvalidInput(
                f"{checkpoint}: {name} has the shape {tuple(state[name].shape)}, a head over "
                f"[case ; query] of an encoder with {hidden_size} values needs {shape}"
            )
    return head_from_tensors(
        {
            "case_weight": first[:, :hidden_size].contiguous(),
            "query_weight": first[:, hidden_size:].contiguous(),
            "case_bias": first_bias,
            "output_weight": last[1] - last[0],
            "output_bias": (last_bias[1] - last_bias[0]).reshape(1),
        }
    )


def _refused_object(error: pickle.UnpicklingError) -> str:
    """The sentence of torch's long message that names the object."""
    sentences = [line.strip() for line in str(error).splitlines() if "Unpickler error" in line]
    return sentences[0].split(" was not an allowed")[0] if sentences else type(error).__name__


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m retriever.learning.import_memento",
        description="Make an artifact of a Memento retriever checkpoint.",
    )
    parser.add_argument("checkpoint", type=Path, help="best.pt or last.pt")
    parser.add_argument("out", type=Path, help="the folder to write; an older one is replaced")
    parser.add_argument(
        "--encoder",
        default=MEMENTO_ENCODER,
        help=f"what it was trained from: a hub id, folder or pkg:... ({MEMENTO_ENCODER})",
    )
    parser.add_argument("--revision", help="a branch, tag or commit of the hub")
    parser.add_argument("--max-length", type=int, default=256, help="in tokens (256)")
    parser.add_argument(
        "--pooling", choices=POOLINGS, default="auto", help="auto: the first token, as in Memento"
    )
    given = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s")
    with reported(RetrieverError, OSError):
        config = EncoderConfig(
            source=given.encoder,
            revision=given.revision,
            pooling=given.pooling,
            max_length=given.max_length,
        )
        manifest = import_checkpoint(given.checkpoint, config, given.out)
        left_out = manifest.training["left_out"]
        sys.stdout.write(
            f"{given.out}: {manifest.encoder.source}, {manifest.projection_size} hidden units, "
            f"at most {manifest.encoder.max_length} tokens"
            + (f"; left out: {', '.join(left_out)}" if left_out else "")
            + "\n"
        )


if __name__ == "__main__":
    main()
