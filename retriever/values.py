"""Checks of single values that a caller gave: each refusal names the value and the remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from retriever.errors import InvalidInput


def whole(name: str, value: object, least: int, *, none: str | None = None) -> None:
    """Refuse what is no whole number of at least `least`.

    Args:
        name: what the caller calls it.
        value: what was given.
        least: the least.
        none: what None means; None itself where it is no value.
    """
    if value is None and none is not None:
        return
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least:
        return
    or_none = "" if none is None else f", or None for {none}"
    raise InvalidInput(f"{name} = {shown(value)}: a whole number, at least {least}{or_none}")


def number(
    name: str, value: object, least: float = -math.inf, most: float = math.inf, *, why: str = ""
) -> None:
    """Refuse what is no finite number from `least` to `most`; `why` says it in other words."""
    if is_number(value) and least <= value <= most:  # type: ignore[operator]
        return
    if not why:
        bounded = math.isfinite(least), math.isfinite(most)
        why = "a finite number" + {
            (True, True): f" from {least:g} to {most:g}",
            (True, False): f", at least {least:g}",
        }.get(bounded, "")
    raise InvalidInput(f"{name} = {shown(value)}: {why}")


def is_number(value: object) -> bool:
    """Whether it is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def instance(name: str, value: object, kind: type[Any], example: str) -> None:
    """Refuse what is neither None nor of a class; `example` is how one of it is made."""
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(f"{name} = {shown(value)}: give {example}, or None")


def one_of(name: str, value: object, known: tuple[str, ...], *, or_none: bool = False) -> None:
    """Refuse what is none of the names."""
    if (or_none and value is None) or (isinstance(value, str) and value in known):
        return
    raise InvalidInput(
        f"{name} = {shown(value)}: one of {', '.join(known)}{', or None' if or_none else ''}"
    )


def shown(value: object) -> str:
    """A value as an error says it: not too long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."
