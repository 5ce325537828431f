"""What a bank needs of a database beyond SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine


class Database(Protocol):
    """One database: SQLite in a file, or a schema of a PostgreSQL server."""

    @property
    def engine(self) -> Engine:
        """Connections to it; `precedent_writes` among the execution options begins a writer."""
        ...

    @property
    def shown(self) -> str:
        """Where it is, for messages; without any password."""
        ...

    @property
    def path(self) -> Path | None:
        """The file, where it is one."""
        ...

    def translated(self) -> AbstractContextManager[None]:
        """Turns the driver's errors into ours, with the remedy."""
        ...

    def first_row(self, statement: str, values: Mapping[str, Any]) -> Sequence[Any] | None:
        """The first row that one statement finds in the newest state, None where it finds none.

        For what is asked at every search: without a transaction around it, and on SQLite without
        SQLAlchemy. `:name` stands for a value.
        """
        ...

    def table_names(self, connection: Connection) -> set[str]:
        """The tables that are there."""
        ...

    def column_names(self, connection: Connection, table: str) -> set[str]:
        """The columns of a table; none where there is no such table."""
        ...

    def settle(self) -> None:
        """Make a database that turned out to be ours ready for use."""
        ...

    def guard(self, connection: Connection) -> None:
        """Keep words out of what the engine gathers about tables that were just made."""
        ...

    def erase(self, timeout_s: float) -> bool:
        """Overwrite what was deleted wherever the engine still holds it; False: not now."""
        ...
