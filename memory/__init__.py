"""Case memory for agents: a durable bank of what was tried and how it ended.

with CaseBank.open("bank.db") as bank:
    bank.add([NewCase("Which county has Bloomsburg as its seat?", plan="Look it up.", outcome=1.0)])
    bank.list()
"""

from memory.arrays.block import Block
from memory.backups.restoring import RestoreReport
from memory.bank import CaseBank
from memory.case import KINDS, Case, NewCase
from memory.config import BankConfig
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
from memory.exchange.exporting import ExportReport
from memory.exchange.import_report import ImportReport, SkippedLine
from memory.filters import CaseFilter
from memory.forgetting.compaction import Budget
from memory.forgetting.receipts import Receipt
from memory.forgetting.selectors import (
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
from memory.forgetting.verifying import Finding, Verification
from memory.runs.outcome_log import OutcomeLogReport
from memory.runs.run_rows import Run, Shown
from memory.sinks import Gone, Sink, Witness
from memory.statistics import BankStats, NamespaceStats
from memory.storage.erasing import ErasureState
from memory.times import microseconds, rfc3339
from memory.types import CaseLike, Embedder

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
