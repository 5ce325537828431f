"""FAISS, imported at its first use."""

from __future__ import annotations

from typing import Any

from retriever.errors import IndexUnavailable


def faiss_module() -> Any:
    """The module `faiss`; untyped, for its stubs lag behind it.

    Raises:
        IndexUnavailable: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise IndexUnavailable(
            "this index needs FAISS; install precedent-memory[cpu] or precedent-memory[gpu]"
        ) from error
    return faiss
