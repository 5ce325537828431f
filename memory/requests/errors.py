"""What can go wrong while a request is resolved; part of the tree of `memory.errors`.

BankError
└── ResolverFailed    a resolver gave no usable answer; nothing was planned, nothing forgotten
"""

from memory.errors import BankError


class ResolverFailed(BankError):
    """The endpoint failed, or its answer is not what was asked for; ask again or use the rules."""


class InventedTarget(UserWarning):
    """A model named records or strings it was not shown; they were dropped, the rest applies."""
