"""The tables of format 1, as the release 0.1 made them. Frozen: a migration starts from them."""

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
    Table,
    Text,
    UniqueConstraint,
)

TABLES = MetaData()

# SQLite gives out row ids, and never the same one twice, only for a column that is plainly INTEGER.
_ID = BigInteger().with_variant(Integer, "sqlite")

meta = Table(
    "meta",
    TABLES,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

namespaces = Table(
    "namespaces",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("version", BigInteger, nullable=False),  # grows with every change of its cases
    sqlite_autoincrement=True,
)

cases = Table(
    "cases",
    TABLES,
    Column("id", _ID, primary_key=True),
    Column("namespace_id", ForeignKey(namespaces.c.id), nullable=False),
    Column("external_id", Text),
    Column("query", Text, nullable=False),
    Column("plan", Text),
    Column("plan_is_json", Integer, nullable=False),  # 0: the text as given; 1: JSON of an object
    Column("outcome", Double),
    Column("kind", Text, nullable=False),
    Column("tags", Text, nullable=False),  # JSON list
    Column("source", Text),
    Column("created_at", BigInteger),  # microseconds UTC, as the two below
    Column("valid_from", BigInteger),
    Column("valid_to", BigInteger),
    Column("derived_from", Text, nullable=False),  # JSON list of external ids
    Column("metadata", Text, nullable=False),  # JSON object
    UniqueConstraint("namespace_id", "external_id"),  # NULL differs from NULL
    # A case id is a JSON number, and JSON numbers are exact up to 2^53 (RFC 8259, section 6).
    CheckConstraint("id > 0 AND id < 9007199254740992", name="id_is_a_json_number"),
    Index("cases_of_namespace", "namespace_id", "id"),
    sqlite_autoincrement=True,
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
    Column("text_sha256", LargeBinary(32), nullable=False),
    Column("vector", LargeBinary, nullable=False),  # little-endian float32
    UniqueConstraint("namespace_id", "embedder_id", "text_sha256"),
    sqlite_autoincrement=True,
)

#: Which vector is whose: the only place that joins a case with the text a model read of it.
case_vectors = Table(
    "case_vectors",
    TABLES,
    Column("embedder_id", ForeignKey(embedders.c.id), primary_key=True),
    Column("case_id", ForeignKey(cases.c.id, ondelete="CASCADE"), primary_key=True),
    Column("vector_id", ForeignKey(vectors.c.id), nullable=False),
    sqlite_with_rowid=False,
)

#: Files that were imported, or are half-way: `lines` of it are in the bank.
imports = Table(
    "imports",
    TABLES,
    Column("namespace_id", ForeignKey(namespaces.c.id), primary_key=True),
    Column("sha256", LargeBinary(32), primary_key=True),
    Column("lines", BigInteger, nullable=False),
    Column("finished", Integer, nullable=False),
)
