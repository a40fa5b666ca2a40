"""What the HTTP interface is given by the composition root, and how a handler reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request

from stratus.channel.values import RawRequest, WebhookReply
from stratus.config import Settings
from stratus.effects import Chance, Clock, Ids, LoopHealth
from stratus.observe.tailer import Tailer
from stratus.store.database import Database
from stratus.store.hints import Hints
from stratus.store.vault import Vault

Webhooks = Callable[[UUID, RawRequest], Awaitable[WebhookReply]]


@dataclass
class Services:
    """The parts of one replica that requests use.

    `health` lists why the replica is not ready; `providers` the model providers that would work; `loops` the state of every loop;
    `webhooks` takes a platform's request for a channel and answers once its events are committed (NotFound, DatabaseAway). `draining`
    is set when the replica ends.
    """

    db: Database
    hints: Hints
    tailer: Tailer
    settings: Settings
    vault: Vault
    health: Callable[[], Sequence[str]]
    providers: Callable[[], Sequence[str]]
    loops: Callable[[], Sequence[LoopHealth]]
    webhooks: Webhooks
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Clock = field(default_factory=Clock)
    chance: Chance = field(default_factory=Chance)
    ids: Ids = field(default_factory=Ids)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Here = Annotated[Services, Depends(_services)]
