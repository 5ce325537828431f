"""Case memory for agents: a durable bank of what was tried and how it ended.

with CaseBank.open("bank.db") as bank:
    bank.add([NewCase("Which county has Bloomsburg as its seat?", plan="Look it up.", outcome=1.0)])
    bank.list()
"""

from memory.bank import CaseBank
from memory.block import Block
from memory.case import KINDS, Case, NewCase
from memory.compaction import Budget
from memory.config import BankConfig
from memory.erasing import ErasureState
from memory.errors import (
    AlreadyScored,
    AlreadyStored,
    BankBusy,
    BankClosed,
    BankError,
    BankUnavailable,
    DataError,
    DuplicateCase,
    EmbedderMismatch,
    EmbeddingFailed,
    ForeignBank,
    IdempotencyConflict,
    InvalidCase,
    InvalidInput,
    NotFound,
    VersionConflict,
)
from memory.exporting import ExportReport
from memory.filters import CaseFilter
from memory.import_report import ImportReport, SkippedLine
from memory.outcome_log import OutcomeLogReport
from memory.receipts import Receipt
from memory.restoring import RestoreReport
from memory.run_rows import Run, Shown
from memory.selectors import (
    ByDerivedFact,
    ByIds,
    BySource,
    BySpan,
    ByStrings,
    ByTag,
    ByText,
    Replacement,
    Selector,
)
from memory.sinks import Gone, Sink, Witness
from memory.statistics import BankStats, NamespaceStats
from memory.times import microseconds, rfc3339
from memory.types import CaseLike, Embedder
from memory.verifying import Finding, Verification

__all__ = [
    "KINDS",
    "AlreadyScored",
    "AlreadyStored",
    "BankBusy",
    "BankClosed",
    "BankConfig",
    "BankError",
    "BankStats",
    "BankUnavailable",
    "Block",
    "Budget",
    "ByDerivedFact",
    "ByIds",
    "BySource",
    "BySpan",
    "ByStrings",
    "ByTag",
    "ByText",
    "Case",
    "CaseBank",
    "CaseFilter",
    "CaseLike",
    "DataError",
    "DuplicateCase",
    "Embedder",
    "EmbedderMismatch",
    "EmbeddingFailed",
    "ErasureState",
    "ExportReport",
    "Finding",
    "ForeignBank",
    "Gone",
    "IdempotencyConflict",
    "ImportReport",
    "InvalidCase",
    "InvalidInput",
    "NamespaceStats",
    "NewCase",
    "NotFound",
    "OutcomeLogReport",
    "Receipt",
    "Replacement",
    "RestoreReport",
    "Run",
    "Selector",
    "Shown",
    "Sink",
    "SkippedLine",
    "Verification",
    "VersionConflict",
    "Witness",
    "microseconds",
    "rfc3339",
]
