"""The steps that erase deleted words from a PostgreSQL server's files.

A deleted row stays in its page until a vacuum, and its bytes stay there after it; the log has
everything once more, and the server recycles old log files under new names with their content. So:

1. `statistics`: no statistics are kept of columns that hold words (ANALYZE would copy values into
   the catalog), and those that are there are dropped.
2. `readers`: wait until no transaction is left that may still see the deleted rows.
3. a table each: write it anew (VACUUM FULL), with its indexes and its TOAST table.
4. `catalog`: likewise the statistics.
5. `log`: switch to a new log file, so that words are only in older ones; use up every recycled
   file, checkpoint, and use up those that this recycled: every old byte is gone or overwritten.

What this cannot reach: archives of the log, replicas, backups, snapshots of the disk, the server's
message log if statements are logged with parameters, free blocks of the file system, and files
that a crash in the middle of a rewrite left without a table. No setting of the server is changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from memory.storage.database.postgres import LOCK_CLASS, WORD_COLUMNS, PostgresDatabase

#: Tables that lose rows when something is forgotten, those with words first.
REWRITTEN = (
    "texts",
    "run_texts",
    "lexical_words",
    "scheduled",
    "exports",
    "vectors",
    "case_vectors",
    "cases",
    "case_tags",
    "lineage",
    "shown",
    "runs",
    "idempotency",
    "namespaces",
    "imports",
)
STEPS = ("statistics", "readers", *REWRITTEN, "catalog", "log")

#: How long one attempt waits for a table: others who want it queue behind us meanwhile.
_LOCK_MS = 500
_PAUSE_S = 0.05
_DENIED = "42501"  # insufficient_privilege
_NOT_NOW = ("55P03", "40P01")  # lock_not_available, deadlock_detected
_SEGMENT = re.compile(r"[0-9A-F]{24}(?:\.partial)?")


class Blocked(Exception):
    """A step cannot be done now; the message says why, and what helps."""


@contextmanager
def session(database: PostgresDatabase) -> Iterator[Connection]:
    """A connection of its own outside of transactions, as VACUUM wants it."""
    options = {"isolation_level": "AUTOCOMMIT", "precedent_raw": True}
    engine = database.engine.execution_options(**options)
    with database.translated(), engine.connect() as connection:
        connection.detach()  # its settings and locks must not reach the pool
        connection.execute(text(f"SET lock_timeout = {_LOCK_MS}"))
        connection.execute(text("SET statement_timeout = 0"))
        yield connection


def claimed(connection: Connection) -> bool:
    """Take the right to erase this bank, until the session ends; False: somebody else has it."""
    asked = text("SELECT pg_try_advisory_lock(:kind, hashtext(current_schema()))")
    return bool(connection.execute(asked, {"kind": LOCK_CLASS + 1}).scalar_one())


def home(connection: Connection) -> str:
    """What tells this schema of this server from every other."""
    asked = (
        "SELECT system_identifier || ' ' || (SELECT oid FROM pg_namespace WHERE nspname = "
        "current_schema()) FROM pg_control_system()"
    )
    return str(connection.execute(text(asked)).scalar_one())


def perform(
    connection: Connection, step: str, facts: MutableMapping[str, str], deadline: float
) -> None:
    """Do one step; doing it again is harmless.

    Args:
        connection: a `session`.
        step: one of `STEPS`.
        facts: what later steps need of earlier ones; kept between attempts.
        deadline: on the monotonic clock: until when others are waited for. Work is never cut short.

    Raises:
        Blocked: not now, or not with this role's rights.
    """
    if step == "statistics":
        _without_statistics(connection, facts, deadline)
    elif step == "readers":
        _await_readers(connection, deadline)
    elif step == "catalog":
        if facts.get("statistics") == "dropped":
            _rewrite(connection, "pg_catalog.pg_statistic", deadline)
    elif step == "log":
        _use_up_log(connection, facts, deadline)
    else:
        found = connection.execute(text("SELECT to_regclass(:name)"), {"name": step}).scalar()
        if found is not None:
            _rewrite(connection, step, deadline)


_WORD_COLUMNS = text(
    """
SELECT c.relname AS tbl, a.attname AS col, format_type(a.atttypid, a.atttypmod) AS form,
       coalesce(a.attstattarget, -1) AS target,
       EXISTS (SELECT 1 FROM pg_stats s WHERE s.schemaname = current_schema()
               AND s.tablename = c.relname AND s.attname = a.attname) AS kept
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
  AND c.relname || '.' || a.attname = ANY(:names)
"""
)


def _without_statistics(
    connection: Connection, facts: MutableMapping[str, str], deadline: float
) -> None:
    rows = connection.execute(_WORD_COLUMNS, {"names": WORD_COLUMNS}).all()
    for row in rows:
        column = f'ALTER TABLE "{row.tbl}" ALTER COLUMN "{row.col}"'
        if row.target != 0:
            _with_lock(connection, f"{column} SET STATISTICS 0", row.tbl, deadline)
        if row.kept:
            # Giving a column the type that it has changes nothing but drops its statistics.
            facts["statistics"] = "dropped"
            _with_lock(connection, f"{column} TYPE {row.form}", row.tbl, deadline)


def _rewrite(connection: Connection, table: str, deadline: float) -> None:
    _with_lock(connection, f"VACUUM (FULL) {table}", table, deadline)


def _with_lock(connection: Connection, statement: str, table: str, deadline: float) -> None:
    """Run a statement that needs a table for itself, as soon as nobody uses it."""
    while True:
        try:
            connection.exec_driver_sql(statement)
        except DBAPIError as error:
            code = _code(error)
            if code == _DENIED:
                raise Blocked(
                    f"the role may not rewrite {table}: run erase as the owner of the bank's "
                    "schema and database"
                ) from error
            if code not in _NOT_NOW:
                raise
            if time.monotonic() >= deadline:
                raise Blocked(
                    f"table {table} is in use all the time: call erase again when less goes on"
                ) from error
            time.sleep(_PAUSE_S)
        else:
            return


_OLDER = """
SELECT count(*) FILTER (WHERE hidden) AS hidden,
       string_agg(who, ', ') FILTER (WHERE NOT hidden) AS who
FROM (
    SELECT 'process ' || pid AS who, backend_type IS NULL AS hidden
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND coalesce(datname, current_database()) = current_database()
      AND ((backend_type IS NULL AND datname IS NOT NULL)
           OR age(backend_xmin) > age(CAST(CAST(:xid AS xid8) AS xid))
           OR age(backend_xid) > age(CAST(CAST(:xid AS xid8) AS xid)))
    UNION ALL
    SELECT 'prepared transaction ' || gid, false FROM pg_prepared_xacts
    WHERE age(transaction) > age(CAST(CAST(:xid AS xid8) AS xid))
    UNION ALL
    SELECT 'replication slot ' || slot_name, false FROM pg_replication_slots
    WHERE age(xmin) > age(CAST(CAST(:xid AS xid8) AS xid))
) AS found
"""


def _await_readers(connection: Connection, deadline: float) -> None:
    """Wait for every transaction that began before now: it may keep deleted rows alive."""
    xid = str(connection.execute(text("SELECT CAST(pg_current_xact_id() AS text)")).scalar_one())
    while True:
        hidden, who = connection.execute(text(_OLDER), {"xid": xid}).one()
        oldest = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= CAST(:xid AS xid8)"
        if not hidden and not who:
            # One of another database may hold us back too: new snapshots count its number.
            if connection.execute(text(oldest), {"xid": xid}).scalar_one():
                return
            who = "a transaction of another database"
        if time.monotonic() >= deadline:
            if hidden:
                raise Blocked(
                    "the role cannot see what other sessions still read: GRANT pg_read_all_stats "
                    "to it, or end them"
                )
            raise Blocked(f"still reading an older state: {who}; end it, or call erase again later")
        time.sleep(_PAUSE_S)


def _use_up_log(connection: Connection, facts: MutableMapping[str, str], deadline: float) -> None:
    """Get rid of every log file that was written before now, its name recycled or not."""
    _probe_rights(connection)
    if "first_clean" not in facts:
        # From the next file on, the log holds nothing of before.
        _switch(connection)
        facts["first_clean"] = _current(connection)
    clean = facts["first_clean"]
    _switch_past(connection, max(_files(connection)))
    while True:
        _run(connection, "CHECKPOINT", "GRANT pg_checkpoint")
        dirty = [name for name in _files(connection) if name < clean]
        if not dirty:
            break
        if time.monotonic() >= deadline:
            raise Blocked(_kept_back(connection, len(dirty)))
        time.sleep(_PAUSE_S)
    _switch_past(connection, max(_files(connection)))


def _probe_rights(connection: Connection) -> None:
    """Better to know before the first switch than between two."""
    for function, remedy in (
        ("pg_switch_wal()", "GRANT EXECUTE ON FUNCTION pg_switch_wal()"),
        ("pg_ls_waldir()", "GRANT pg_monitor"),
    ):
        asked = text("SELECT has_function_privilege(CAST(:name AS text), 'EXECUTE')")
        if not connection.execute(asked, {"name": f"pg_catalog.{function}"}).scalar_one():
            raise Blocked(f"the role may not call {function}: {remedy} to it")


def _files(connection: Connection) -> list[str]:
    """The log files that are there, by their number: without the timeline before it."""
    names = connection.execute(text("SELECT name FROM pg_ls_waldir()")).scalars()
    return [name[8:24] for name in names if _SEGMENT.fullmatch(name)]


def _current(connection: Connection) -> str:
    # A record first: right at a boundary, the file before it would be named.
    connection.execute(text("SELECT pg_logical_emit_message(false, 'precedent', '')"))
    name = connection.execute(text("SELECT pg_walfile_name(pg_current_wal_insert_lsn())"))
    return str(name.scalar_one())[8:24]


def _switch(connection: Connection) -> None:
    """Fill the rest of the current log file with zeros and go on in the next."""
    _current(connection)  # an empty file would not be left
    _run(connection, "SELECT pg_switch_wal()", "GRANT EXECUTE ON FUNCTION pg_switch_wal()")


def _switch_past(connection: Connection, last: str) -> None:
    while _current(connection) <= last:
        _switch(connection)


def _kept_back(connection: Connection, count: int) -> str:
    slots = connection.execute(
        text(
            "SELECT string_agg(slot_name, ', ') FROM pg_replication_slots "
            "WHERE restart_lsn IS NOT NULL"
        )
    ).scalar()
    kept = connection.execute(text("SELECT current_setting('wal_keep_size')")).scalar()
    return (
        f"the server keeps {count} old log files (replication slots: {slots or 'none'}; "
        f"wal_keep_size: {kept}; perhaps an archive that lags): remove the reason, call erase again"
    )


def _run(connection: Connection, statement: str, remedy: str) -> None:
    try:
        connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if _code(error) != _DENIED:
            raise
        raise Blocked(f"the role may not {statement}: {remedy} to it") from error


def _code(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or "")
