"""Group chats: one decision for each message of the platform, and how many turns in a row came at the word of bots. Notifications by their keys."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import UUID

from stratus.domain.group import GROUP
from stratus.store.schema.columns import CHURN, NARROW, checks, metadata, required, row_id, time

group_chat = Table(
    "group_chat",
    metadata,
    required("platform"),
    required("chat_key"),
    Column("bot_turns", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("platform", "chat_key"),
    postgresql_with=NARROW,
)

group_message = Table(
    "group_message",
    metadata,
    row_id(),
    required("platform"),
    required("chat_key"),
    Column("thread_key", Text, nullable=False, server_default=text("''")),
    required("message_key"),
    # The event that decided, and the run's; no foreign keys: inbox rows and channels may go before the record does.
    Column("inbox_id", BigInteger, nullable=False),
    Column("observer_id", BigInteger, nullable=False),
    Column("responder_id", BigInteger),
    required("state"),
    required("reason"),
    time("created_at", now=True),
    time("decided_at", now=True),
    UniqueConstraint("platform", "chat_key", "message_key"),
    *checks(GROUP),
    Index("group_message_said", "platform", "chat_key", "thread_key", "id"),
    Index("group_message_held", "inbox_id", postgresql_where=text("state = 'hold'")),
    postgresql_with=CHURN,
)

notification = Table(
    "notification",
    metadata,
    required("target"),
    required("dedup_key"),
    Column("id", UUID(), nullable=False),
    Column("body_hash", LargeBinary, nullable=False),
    Column("channel_id", BigInteger, nullable=False),
    Column("pieces", Integer, nullable=False),
    time("created_at", now=True),
    PrimaryKeyConstraint("target", "dedup_key"),
)
