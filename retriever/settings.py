"""From Hydra's `DictConfig` to plain dataclasses, once, at the edge.

A misspelt key, a wrong type or an impossible value becomes one `ConfigError` that names the key.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from retriever.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

T = TypeVar("T")


def parse_config(schema: type[T], composed: DictConfig | dict[str, Any]) -> T:
    """The composed configuration as an instance of the dataclass `schema`.

    The dataclasses check their own values in `__post_init__`.

    Raises:
        ConfigError: a key that does not exist, a value of the wrong type, a value left open
            (`???`), an interpolation that does not resolve, or a check of a dataclass that failed.
    """
    # Here, not above: the dataclasses import `require`, and training works without Hydra too.
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        given = composed if isinstance(composed, DictConfig) else OmegaConf.create(composed)
        values = OmegaConf.to_container(given, resolve=True)
        _refuse_unknown_keys(schema, values, path="")
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        # A `???` in what was given would leave the schema's default in place: it counts too.
        missing = sorted({*OmegaConf.missing_keys(given), *OmegaConf.missing_keys(merged)})
        if missing:
            raise ConfigError(
                f"{missing[0]} has no value; give it on the command line: {missing[0]}=..."
            )
        parsed = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_sentence(error)) from error
    assert isinstance(parsed, schema)
    return parsed


def require(condition: bool, key: str, value: object, remedy: str) -> None:
    """Raise a `ConfigError` that names key, value and remedy unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key} = {value!r}: {remedy}")


def _refuse_unknown_keys(schema: type[Any], values: Any, path: str) -> None:
    if not isinstance(values, dict):
        return
    hints = get_type_hints(schema)
    known = [field.name for field in dataclasses.fields(schema)]
    for key, value in values.items():
        dotted = f"{path}{key}"
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"unknown configuration key {dotted} (value {value!r}); {hint}")
        nested = _dataclass_in(hints[str(key)])
        if nested is None:
            continue
        if not isinstance(value, dict | list | None) and value != "???":
            inside = ", ".join(field.name for field in dataclasses.fields(nested))
            raise ConfigError(f"{dotted} = {value!r}: a group of settings is needed ({inside})")
        _refuse_unknown_keys(nested, value, path=f"{dotted}.")


def _dataclass_in(annotation: Any) -> type[Any] | None:
    for candidate in (annotation, *get_args(annotation)):
        if dataclasses.is_dataclass(candidate) and isinstance(candidate, type):
            return candidate
    return None


def _one_sentence(error: OmegaConfBaseException) -> str:
    key = getattr(error, "full_key", None)
    message = str(error.msg if getattr(error, "msg", None) else error).strip().splitlines()[0]
    return f"{key}: {message}" if key and key not in message else message
