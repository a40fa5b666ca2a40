"""What platforms show us of our own sends: evidence that an op whose end was not known has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import structlog

from stratus.channel.values import Event
from stratus.delivery.ops import platform_key
from stratus.store import settle
from stratus.store.attempt import open_attempts
from stratus.store.database import Database
from stratus.store.settle import Outcome

log = structlog.get_logger(__name__)


async def confirm(db: Database, channel_id: int, channel: UUID, events: Sequence[Event]) -> None:
    """Settle the ops that `events` echo, by their keys; one that is settled, or not ours, is left alone. A repeat is a no-op."""
    shown = {event.echo: event.message_id for event in events if event.echo is not None}
    if not shown:
        return
    outcomes = []
    for op_id, token in await open_attempts(db, channel_id):
        key = platform_key(channel, op_id)
        if key in shown:
            outcomes.append(Outcome(op_id, token, "sent", {"message_id": shown[key], "evidence": "echo"}))
    if outcomes:
        states = await settle.complete(db, outcomes)
        log.info("send.echoed", channel=channel_id, ops=list(states))
