"""Takes what platforms push: on any replica, verified on the raw body first, answered only after the commit."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from stratus.channel.protocol import Adapter
from stratus.channel.values import RawRequest, WebhookReply
from stratus.domain.errors import NotFound, Temporary
from stratus.ingress.intake import Intake
from stratus.store import channel
from stratus.store.adapter_config import adapter_config
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.vault import Vault

_UNPROVEN_SECONDS = 2.0


class Webhooks:
    """Keeps one adapter for each channel's revision, for verifying and parsing only: it opens no connection."""

    def __init__(
        self, db: Database, vault: Vault, intake: Intake, public_url: str, adapters: Callable[[str], type[Adapter]]
    ) -> None:
        self._db = db
        self._vault = vault
        self._intake = intake
        self._public_url = public_url
        self._adapters = adapters
        self._made: dict[int, tuple[int, Adapter]] = {}

    async def handle(self, public_id: UUID, request: RawRequest) -> WebhookReply:
        """Verify, store, answer. Raises NotFound for no, a disabled or a polling-only channel, Temporary when nothing could be stored."""
        row = await channel.get(self._db, str(public_id))
        if not row.enabled or row.public_id != public_id:
            raise NotFound(f"there is no channel {public_id}")
        reply = await (await self._adapter(row)).webhook(request)
        if reply.events:
            if not row.account_proven():
                raise Temporary("the channel's new configuration is not proven yet; send it again", _UNPROVEN_SECONDS)
            await self._intake.push(row.id, row.account_key, reply.events)
        return reply

    async def close(self) -> None:
        """Let the adapters go."""
        for _, adapter in self._made.values():
            await adapter.close()
        self._made.clear()

    async def _adapter(self, row: ChannelRow) -> Adapter:
        known = self._made.get(row.id)
        if known is not None and known[0] == row.config_revision:
            return known[1]
        made = self._adapters(row.platform)(adapter_config(row, self._vault, self._public_url))
        self._made[row.id] = (row.config_revision, made)
        if known is not None:
            await known[1].close()
        return made
