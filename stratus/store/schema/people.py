"""Who there is: agents, principals with their identities and tokens, replicas."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import UUID

from stratus.store.schema.columns import counter, flag, json, metadata, public_id, required, row_id, time

agent = Table(
    "agent",
    metadata,
    Column("id", Text, primary_key=True),
    counter("revision"),
    json("definition", "{}"),
    # What a replica must have to execute a turn of the agent; see AgentDefinition.needs.
    Column("needs", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    flag("enabled", True),
    time("created_at", now=True),
    time("updated_at", now=True),
)

principal = Table(
    "principal",
    metadata,
    row_id(),
    public_id(),
    required("name"),
    required("role"),
    time("created_at", now=True),
    time("disabled_at"),
    CheckConstraint("role IN ('owner', 'admin', 'user', 'guest')", name="role"),
)

identity = Table(
    "identity",
    metadata,
    required("platform"),
    required("sender_key"),
    Column("principal_id", BigInteger, ForeignKey("principal.id"), nullable=False),
    Column("name", Text, nullable=False, server_default=text("''")),
    time("created_at", now=True),
    PrimaryKeyConstraint("platform", "sender_key"),
)

access_token = Table(
    "access_token",
    metadata,
    row_id(),
    public_id(),
    Column("principal_id", BigInteger, ForeignKey("principal.id"), nullable=False),
    required("kind"),
    Column("name", Text, nullable=False, server_default=text("''")),
    Column("hash", LargeBinary, nullable=False, unique=True),
    time("created_at", now=True),
    time("expires_at"),
    time("used_at"),
    time("revoked_at"),
    CheckConstraint("kind IN ('api', 'signin', 'session')", name="kind"),
)

replica = Table(
    "replica",
    metadata,
    Column("id", UUID(), primary_key=True),
    required("host"),
    Column("pid", Integer, nullable=False),
    required("version"),
    json("roles", "{}"),
    Column("capabilities", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    time("started_at", now=True),
    time("seen_at", now=True),
    flag("draining", False),
)
