"""The platform's side: channels with their runtime lease, inbox and outbox."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP, UUID

from stratus.domain.inbox import INBOX
from stratus.domain.outbox import OUTBOX
from stratus.store.schema.columns import (
    CHURN,
    NARROW,
    checks,
    counter,
    flag,
    json,
    metadata,
    public_id,
    required,
    row_id,
    state_in,
    time,
)

channel = Table(
    "channel",
    metadata,
    row_id(),
    public_id(),
    required("platform"),
    required("name"),
    required("agent_id"),
    json("config", "{}"),
    Column("credentials", LargeBinary),
    flag("enabled", True),
    Column("config_revision", BigInteger, nullable=False, server_default=text("1")),
    Column("account_key", Text),
    counter("runtime_token"),
    Column("runtime_holder", UUID()),
    Column("runtime_replica", Text),
    time("lease_until"),
    Column("running_revision", BigInteger),
    json("cursor"),
    json("health", "{}"),
    Column("last_error", Text),
    time("created_at", now=True),
    time("deleted_at"),
    Index("channel_name_key", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    CheckConstraint("(runtime_holder IS NULL) = (lease_until IS NULL)", name="lease"),
    postgresql_with=NARROW,
)

channel_inbox = Table(
    "channel_inbox",
    metadata,
    row_id(),
    Column("channel_id", BigInteger, ForeignKey("channel.id"), nullable=False),
    required("event_key"),
    required("kind"),
    Column("version", Integer, nullable=False, server_default=text("1")),
    required("chat_key"),
    Column("thread_key", Text, nullable=False, server_default=text("''")),
    json("sender", "{}"),
    json("payload", "{}"),
    Column("account_key", Text),
    required("state"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    time("not_before", now=True),
    time("received_at", now=True),
    time("routed_at"),
    Column("run_id", BigInteger),
    json("outcome"),
    UniqueConstraint("channel_id", "event_key"),
    CheckConstraint("kind IN ('message', 'edit', 'command', 'callback', 'member', 'migrate', 'other')", name="kind"),
    *checks(INBOX),
    Index("channel_inbox_ready", "channel_id", "id", postgresql_where=state_in("ready")),
    Index(
        "channel_inbox_held",
        "channel_id",
        postgresql_where=text("state = 'received' OR (state = 'ready' AND attempts > 0)"),
    ),
    Index("channel_inbox_ended", "routed_at", postgresql_where=text("routed_at IS NOT NULL")),
    postgresql_with=CHURN,
)

outbox_lane = Table(
    "outbox_lane",
    metadata,
    Column("channel_id", BigInteger, ForeignKey("channel.id"), nullable=False),
    required("lane"),
    counter("last_seq"),
    PrimaryKeyConstraint("channel_id", "lane"),
    postgresql_with=NARROW,
)

# From when a chat or thread (`scope`), or the bot itself (""), may be sent to again.
channel_rate = Table(
    "channel_rate",
    metadata,
    Column("channel_id", BigInteger, ForeignKey("channel.id"), nullable=False),
    required("scope"),
    time("next_at", now=True),
    PrimaryKeyConstraint("channel_id", "scope"),
    postgresql_with=NARROW,
)

channel_outbox = Table(
    "channel_outbox",
    metadata,
    row_id(),
    Column("channel_id", BigInteger, ForeignKey("channel.id"), nullable=False),
    required("lane"),
    Column("lane_seq", BigInteger, nullable=False),
    Column("run_id", BigInteger, ForeignKey("agent_run.id")),
    required("kind"),
    json("address", "{}"),
    json("payload", "{}"),
    required("delivery_key"),
    Column("depends_on", BigInteger, ForeignKey("channel_outbox.id")),
    Column("account_key", Text),
    required("state"),
    # `attempts` counts those that cost one (a 429 does not); `attempt_seq` numbers them all.
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("attempt_seq", Integer, nullable=False, server_default=text("0")),
    time("not_before", now=True),
    Column("attempt_token", UUID()),
    time("attempt_deadline"),
    Column("sent_message_id", Text),
    json("receipt"),
    json("error"),
    time("created_at", now=True),
    time("settled_at"),
    UniqueConstraint("channel_id", "delivery_key"),
    UniqueConstraint("channel_id", "lane", "lane_seq"),
    CheckConstraint(
        "kind IN ('send_reply', 'send_text', 'send_attachment', 'draft_update', 'send_group_reply', 'reaction', "
        "'approval_prompt', 'edit_prompt', 'notify')",
        name="kind",
    ),
    *checks(OUTBOX),
    Index("channel_outbox_due", "channel_id", "id", postgresql_where=state_in("pending")),
    Index("channel_outbox_lane", "channel_id", "lane", "lane_seq", postgresql_where=state_in("pending", "sending")),
    Index("channel_outbox_unknown", "channel_id", "id", postgresql_where=state_in("unknown")),
    Index("channel_outbox_run", "run_id", postgresql_where=text("run_id IS NOT NULL")),
    Index("channel_outbox_depends", "depends_on", postgresql_where=text("depends_on IS NOT NULL")),
    postgresql_with=CHURN,
)

outbox_attempt = Table(
    "outbox_attempt",
    metadata,
    Column("op_id", BigInteger, ForeignKey("channel_outbox.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("token", UUID(), nullable=False, unique=True),
    Column("runtime_token", BigInteger, nullable=False),
    Column("holder", UUID(), nullable=False),
    required("replica"),
    time("created_at", now=True),
    time("started_at"),
    time("deadline"),
    time("ended_at"),
    Column("outcome", Text),
    json("detail"),
    PrimaryKeyConstraint("op_id", "attempt"),
    CheckConstraint("outcome IN ('sent', 'not_sent', 'retryable', 'permanent', 'unknown')", name="outcome"),
    CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name="ended_at"),
    postgresql_with=CHURN,
)

outbox_verdict = Table(
    "outbox_verdict",
    metadata,
    row_id(),
    Column("op_id", BigInteger, ForeignKey("channel_outbox.id"), nullable=False),
    Column("key", UUID(), nullable=False, unique=True),
    required("action"),
    required("by"),
    time("at", now=True),
    required("from_state"),
    required("to_state"),
    Column("note", Text),
    CheckConstraint("action IN ('sent', 'resend', 'cancel')", name="action"),
    Index("outbox_verdict_op", "op_id"),
)

outbox_blob = Table(
    "outbox_blob",
    metadata,
    Column("sha256", LargeBinary, nullable=False),
    Column("chunk", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    time("created_at", now=True),
    PrimaryKeyConstraint("sha256", "chunk"),
    CheckConstraint("octet_length(sha256) = 32", name="sha256"),
)

session_start = Table(
    "session_start",
    metadata,
    required("platform"),
    required("account_key"),
    Column("starts", ARRAY(TIMESTAMP(timezone=True)), nullable=False),
    Column("streak", Integer, nullable=False),
    Column("next_at", TIMESTAMP(timezone=True), nullable=False),
    PrimaryKeyConstraint("platform", "account_key"),
    postgresql_with=NARROW,
)
