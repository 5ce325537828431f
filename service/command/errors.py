"""What the command says no to by itself; everything else is the bank's."""

from __future__ import annotations


class CommandError(Exception):
    """A wish that cannot be carried out as it was written: one line, with the remedy."""
