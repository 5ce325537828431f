"""The tables of format 2. Frozen: what they hold and why is told in `memory.schema`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

TABLES = MetaData()

# SQLite gives out row ids, and never the same one twice, only for a column that is plainly INTEGER.
_ID = BigInteger().with_variant(Integer, "sqlite")
_KEY = LargeBinary(16)

meta = Table(
    "meta",
    TABLES,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

alembic_version = Table(
    "alembic_version", TABLES, Column("version_num", String(32), primary_key=True)
)

change_sequence = Table(
    "change_sequence",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

namespaces = Table(
    "namespaces",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("name_key", _KEY, nullable=False, unique=True),
    Column("created_seq", BigInteger, nullable=False),  # the change that made it
    Column("version", BigInteger, nullable=False),  # number of the last change in it
    sqlite_autoincrement=True,
)

cases = Table(
    "cases",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("namespace_id", ForeignKey(namespaces.c.id), nullable=False),
    Column("seq", BigInteger, nullable=False),  # number of its last change
    Column("version", BigInteger, nullable=False),  # 1, and one more with every update
    Column("external_key", _KEY),
    Column("content_key", _KEY, nullable=False),
    Column("source_key", _KEY),
    Column("kind", Text, nullable=False),
    Column("outcome", Double),
    Column("created_at", BigInteger),  # microseconds UTC, as the four below
    Column("valid_from", BigInteger),
    Column("valid_to", BigInteger),
    Column("stored_at", BigInteger, nullable=False),
    Column("invalidated_at", BigInteger),
    UniqueConstraint("namespace_id", "external_key"),  # NULL differs from NULL
    # A case id is a JSON number, and JSON numbers are exact up to 2^53 (RFC 8259, section 6).
    CheckConstraint("id > 0 AND id < 9007199254740992", name="id_is_a_json_number"),
    Index("cases_of_namespace", "namespace_id", "id"),
    Index("cases_by_change", "namespace_id", "seq"),
    Index("cases_by_content", "namespace_id", "content_key"),
    Index("cases_by_source", "namespace_id", "source_key"),
    sqlite_autoincrement=True,
)

texts = Table(
    "texts",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("case_id", BigInteger, nullable=False),
    Column("external_id", Text),
    Column("query", Text, nullable=False),
    Column("plan", Text),
    Column("plan_is_json", Integer, nullable=False),  # 0: the text as given; 1: JSON of an object
    Column("tags", Text, nullable=False),  # JSON list
    Column("source", Text),
    Column("derived_from", Text, nullable=False),  # JSON list of external ids
    Column("metadata", Text, nullable=False),  # JSON object
    Index("texts_of_case", "case_id"),
    sqlite_autoincrement=True,
)

case_tags = Table(
    "case_tags",
    TABLES,
    Column("namespace_id", ForeignKey(namespaces.c.id), primary_key=True),
    Column("tag_key", _KEY, primary_key=True),
    Column("case_id", ForeignKey(cases.c.id), primary_key=True),
    Index("tags_of_case", "case_id"),
    sqlite_with_rowid=False,
)

lineage = Table(
    "lineage",
    TABLES,
    Column("namespace_id", ForeignKey(namespaces.c.id), primary_key=True),
    Column("parent_key", _KEY, primary_key=True),
    Column("child_id", ForeignKey(cases.c.id), primary_key=True),
    Index("parents_of_case", "child_id"),
    sqlite_with_rowid=False,
)

removals = Table(
    "removals",
    TABLES,
    Column("namespace_id", ForeignKey(namespaces.c.id), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("case_id", BigInteger, primary_key=True),
    sqlite_with_rowid=False,
)

embedders = Table(
    "embedders",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("dim", Integer, nullable=False),
    sqlite_autoincrement=True,
)

vectors = Table(
    "vectors",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("namespace_id", ForeignKey(namespaces.c.id), nullable=False),
    Column("embedder_id", ForeignKey(embedders.c.id), nullable=False),
    Column("text_key", _KEY, nullable=False),  # of the text that the model read
    # Little-endian: float32 where it has 4 bytes a value, float16 where it has 2.
    Column("vector", LargeBinary, nullable=False),
    UniqueConstraint("namespace_id", "embedder_id", "text_key"),
    sqlite_autoincrement=True,
)

case_vectors = Table(
    "case_vectors",
    TABLES,
    Column("case_id", ForeignKey(cases.c.id), primary_key=True),
    Column("embedder_id", ForeignKey(embedders.c.id), primary_key=True),
    Column("vector_id", ForeignKey(vectors.c.id), nullable=False),
    Index("cases_of_vector", "vector_id"),
    sqlite_with_rowid=False,
)

imports = Table(
    "imports",
    TABLES,
    Column("namespace_id", ForeignKey(namespaces.c.id), primary_key=True),
    Column("file_key", _KEY, primary_key=True),  # of the sha256 of its content
    Column("lines", BigInteger, nullable=False),
    Column("finished", Integer, nullable=False),
)

exports = Table(
    "exports",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("namespace_id", ForeignKey(namespaces.c.id), nullable=False),
    Column("path", Text, nullable=False),
    Column("format", Text, nullable=False),  # jsonl | parquet | outcome_log
    Column("created_at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    TABLES,
    Column("namespace_id", ForeignKey(namespaces.c.id), primary_key=True),
    Column("request_key", _KEY, primary_key=True),
    Column("content_key", _KEY, nullable=False),
    Column("answer", Text, nullable=False),  # JSON list of ids
    Column("created_at", BigInteger, nullable=False),
)

runs = Table(
    "runs",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("namespace_id", ForeignKey(namespaces.c.id), nullable=False),
    Column("run_key", _KEY, nullable=False),
    Column("query_key", _KEY, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("outcome", Double),
    Column("outcome_at", BigInteger),
    UniqueConstraint("namespace_id", "run_key"),
    Index("runs_by_query", "namespace_id", "query_key"),
    sqlite_autoincrement=True,
)

run_texts = Table(
    "run_texts",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("run_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),  # the run's id as the caller knows it
    Column("query", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("metadata", Text, nullable=False),  # JSON object
    Index("texts_of_run", "run_id"),
    sqlite_autoincrement=True,
)

shown = Table(
    "shown",
    TABLES,
    Column("run_id", ForeignKey(runs.c.id), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("case_id", ForeignKey(cases.c.id), nullable=False),
    Column("text_id", BigInteger, nullable=False),  # which words of the case were shown
    Column("score", Double),
    Column("propensity", Double),
    Index("runs_that_showed_case", "case_id"),
    sqlite_with_rowid=False,
)

receipts = Table(
    "receipts",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("namespace_id", ForeignKey(namespaces.c.id)),  # None: the namespace itself is gone
    Column("created_at", BigInteger, nullable=False),
    Column("mode", Text, nullable=False),  # purge | invalidate | compact | retention | namespace
    Column("actor", Text),
    Column("erased", Text, nullable=False),  # state of the physical step: done | pending
    Column("body", Text, nullable=False),  # JSON: see `memory.forgetting.receipts.Receipt`
    sqlite_autoincrement=True,
)

forgotten = Table(
    "forgotten",
    TABLES,
    Column("namespace_id", BigInteger, primary_key=True),
    Column("content_key", _KEY, primary_key=True),
    Column("receipt_id", ForeignKey(receipts.c.id), nullable=False),
    sqlite_with_rowid=False,
)

scheduled = Table(
    "scheduled",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("namespace_id", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("request", Text, nullable=False),  # JSON of the selectors
    Column("actor", Text),
    sqlite_autoincrement=True,
)
