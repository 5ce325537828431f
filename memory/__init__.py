"""Case memory for agents: a durable bank of what was tried and how it ended.

with CaseBank.open("bank.db") as bank:
    bank.add([NewCase("Which county has Bloomsburg as its seat?", plan="Look it up.", outcome=1.0)])
    bank.list()
"""

from memory.bank import CaseBank
from memory.block import Block
from memory.case import KINDS, Case, NewCase
from memory.config import BankConfig
from memory.errors import (
    AlreadyStored,
    BankBusy,
    BankClosed,
    BankError,
    BankUnavailable,
    DataError,
    EmbedderMismatch,
    EmbeddingFailed,
    ForeignBank,
    InvalidCase,
    InvalidInput,
    NotFound,
)
from memory.importing import ImportReport, SkippedLine
from memory.times import microseconds, rfc3339
from memory.types import CaseLike, Embedder

__all__ = [
    "KINDS",
    "AlreadyStored",
    "BankBusy",
    "BankClosed",
    "BankConfig",
    "BankError",
    "BankUnavailable",
    "Block",
    "Case",
    "CaseBank",
    "CaseLike",
    "DataError",
    "Embedder",
    "EmbedderMismatch",
    "EmbeddingFailed",
    "ForeignBank",
    "ImportReport",
    "InvalidCase",
    "InvalidInput",
    "NewCase",
    "NotFound",
    "SkippedLine",
    "microseconds",
    "rfc3339",
]
