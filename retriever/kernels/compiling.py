"""Numba's compiler for the scan's loops, and its cache on disk, which may fail without harm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba

log = logging.getLogger(__name__)


class _Kept:
    """Numba's cache of one function on disk, whose failures cost time, not the scan."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, *given: Any) -> Any:
        """The compiled code, or None where it has to be made."""
        try:
            return self._cache.load_overload(*given)
        except Exception as error:  # a damaged file unpickles to anything
            self._warn("read", error)
            return None

    def save_overload(self, *given: Any) -> None:
        """Keep compiled code, if that can be done."""
        try:
            self._cache.save_overload(*given)
        except Exception as error:  # a full disk, or a damaged file beside it
            self._warn("written", error)

    def _warn(self, what: str, error: Exception) -> None:
        log.warning(
            "compiled code in %s could not be %s (%s: %s), so it is compiled in every process; "
            "make room there, or delete the folder's .nbi and .nbc files",
            *(self._cache.cache_path, what, type(error).__name__, error),
        )


def compiled_by(version: int) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function at its first call, without the GIL, and keeps the code.

    Args:
        version: of all that the code is made of beside the function's own file, in which alone
            numba looks for changes.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ = f"{function.__qualname__}_{version:08x}"
        return _compiled(function)

    return decorate


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        made: Any = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in: a read-only installation, and no home
        return numba.njit(nogil=True)(function)
    made._cache = _Kept(made._cache)
    return made
