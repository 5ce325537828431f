"""What can go wrong in `memory`, as one tree.

BankError
├── InvalidInput            the caller's mistake: an argument (also a ValueError)
│   ├── InvalidCase         a field of a case: names field, value and remedy
│   └── DataError           a line of a file: names file, line, field, value and remedy
├── NotFound                a case or a namespace that is not there (also a LookupError)
├── AlreadyStored           an external id that the namespace already has
├── DuplicateCase           the same experience is there, and duplicates were to be rejected
├── VersionConflict         a change for a version of a case that is no longer the stored one
├── IdempotencyConflict     an idempotency key that was used for another request
├── AlreadyScored           a run whose outcome is known and is given once more, differently
├── EmbedderMismatch        the bank knows this embedder's key with another dimension
├── EmbeddingFailed         an embedder failed, or returned what cannot be stored
└── BankUnavailable         the database cannot be used now
    ├── BankBusy            another writer held it for longer than the time allowed
    ├── BankClosed          it was closed, or the process was forked after it was opened
    └── ForeignBank         not one of our banks, of a newer format, or damaged
"""

from __future__ import annotations

from pathlib import Path


class BankError(Exception):
    """Base of every error that `memory` raises on purpose."""


class InvalidInput(BankError, ValueError):
    """A caller's value is wrong; the message names it and the remedy."""


class InvalidCase(InvalidInput):
    """A field of a case is wrong."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(field, value, remedy)
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        # The path of a nested value is made of the caller's keys, which may be long.
        field = self.field if len(self.field) <= 120 else f"{self.field[:120]}…"
        return f"{field} = {shown(self.value)}: {self.remedy}"


class DataError(InvalidInput):
    """A file's content is wrong; `line` counts from 1 and is 0 where the whole file is meant."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        where = f"{self.path}, line {self.line}" if self.line else str(self.path)
        return f"{where}: {self.reason}"


class NotFound(BankError, LookupError):
    """A case or a namespace was named that the bank does not have."""


class AlreadyStored(BankError):
    """An external id was given that a case of the namespace already has."""


class DuplicateCase(BankError):
    """The namespace holds the same query, plan and kind, and duplicates were to be rejected."""


class VersionConflict(BankError):
    """A case was changed by somebody else since the version that a change was made for."""


class IdempotencyConflict(BankError):
    """An idempotency key came back with another request than its first."""


class AlreadyScored(BankError):
    """A run's outcome is known, and another one was given for it."""


class EmbedderMismatch(BankError):
    """An embedder's key is known to the bank with another dimension."""


class EmbeddingFailed(BankError):
    """An embedder failed at a case, or returned what cannot be stored; nothing was stored."""


class BankUnavailable(BankError):
    """The database cannot be opened, read or written now."""


class BankBusy(BankUnavailable):
    """Another writer held the database for longer than the busy timeout."""


class BankClosed(BankUnavailable):
    """The bank was closed, or belongs to the process that opened it."""


class ForeignBank(BankUnavailable):
    """A file that is not one of our banks, is of a newer format, or is damaged."""


def shown(value: object, limit: int = 80) -> str:
    """`repr` of a value, cut to `limit` characters: enough to find it, never a whole document."""
    try:
        # A slice first: the repr of a document of many megabytes would itself be one.
        text = repr(value[:limit] if isinstance(value, str | bytes) else value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}…"
