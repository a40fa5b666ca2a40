"""Channels: the bots that this installation answers as. Credentials go in and never come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from stratus.channel.errors import AccountStopped
from stratus.channel.registry import UnknownPlatform, adapter_class, platforms
from stratus.channel.values import ChannelConfig
from stratus.domain.agent import AGENT_ID_PATTERN
from stratus.domain.errors import BadInput
from stratus.domain.routing import Access
from stratus.http import agents
from stratus.http.auth import Admin
from stratus.http.ids import public_id
from stratus.http.services import Here, Services
from stratus.store import channel as channels
from stratus.store.channel import ChannelRow

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

router = APIRouter(prefix="/channels", tags=["channels"])


class _New(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    platform: str
    name: str = Field(pattern=_NAME)
    agent: str = Field(pattern=AGENT_ID_PATTERN)
    options: dict[str, Any] = {}
    credentials: dict[str, SecretStr] = {}


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    agent: str | None = Field(default=None, pattern=AGENT_ID_PATTERN)
    options: dict[str, Any] | None = None
    credentials: dict[str, SecretStr] | None = None
    enabled: bool | None = None


@router.get("")
async def listing(here: Here, me: Admin) -> dict[str, Any]:
    """All channels with their health, and the platforms that one may add."""
    return {"channels": [_shown(row) for row in await channels.listing(here.db)], "platforms": _allowed(here)}


@router.post("", status_code=201)
async def create(body: _New, here: Here, me: Admin) -> dict[str, Any]:
    """Add a channel; some replica starts it at once."""
    if body.platform not in _allowed(here):
        raise BadInput(f"platform: must be one of {', '.join(_allowed(here))}")
    await agents.required(here, body.agent)
    identity = here.ids.uuid()
    Access.of(body.options)
    _check(body.platform, identity, body.name, body.options, body.credentials)
    row = await channels.create(
        here.db,
        identity,
        body.platform,
        body.name,
        body.agent,
        body.options,
        _sealed(here, identity, body.credentials) if body.credentials else None,
    )
    here.hints.send("channels")
    return _shown(row)


@router.patch("/{channel}")
async def change(channel: str, body: _Change, here: Here, me: Admin) -> dict[str, Any]:
    """Change what is given; whoever runs the channel applies it anew."""
    row = await channels.get(here.db, str(public_id(channel)))
    if body.agent is not None:
        await agents.required(here, body.agent)
    if body.options is not None:
        Access.of(body.options)
    if body.credentials is not None:
        options = row.config if body.options is None else body.options
        _check(row.platform, row.public_id, row.name, options, body.credentials)
    if body.agent is not None or body.options is not None or body.credentials is not None:
        sealed = None if body.credentials is None else _sealed(here, row.public_id, body.credentials)
        await channels.configure(here.db, row.id, agent_id=body.agent, config=body.options, credentials=sealed)
    if body.enabled is not None:
        await channels.set_enabled(here.db, row.id, body.enabled)
    here.hints.send("channels")
    return _shown(await channels.get(here.db, str(row.public_id)))


@router.delete("/{channel}", status_code=204)
async def delete(channel: str, here: Here, me: Admin) -> None:
    """End a channel: nothing more is received or sent on it."""
    row = await channels.get(here.db, str(public_id(channel)))
    await channels.delete(here.db, row.id)
    here.hints.send("channels")


def _allowed(here: Services) -> list[str]:
    return [name for name in platforms() if name != "testchan" or here.settings.test_channels]


def _check(
    platform: str, identity: UUID, name: str, options: Mapping[str, Any], credentials: Mapping[str, SecretStr]
) -> None:
    """Raises BadInput when the adapter cannot be made of this. No network."""
    try:
        adapter_class(platform)(
            ChannelConfig(channel_id=str(identity), name=name, options=options, credentials=credentials)
        )
    except (AccountStopped, UnknownPlatform, ValueError, ImportError) as error:
        raise BadInput(f"{platform}: {error}") from error


def _sealed(here: Services, identity: UUID, credentials: Mapping[str, SecretStr]) -> bytes:
    return here.vault.seal(identity, {name: value.get_secret_value() for name, value in credentials.items()})


def _shown(row: ChannelRow) -> dict[str, Any]:
    return {
        "id": str(row.public_id),
        "platform": row.platform,
        "name": row.name,
        "agent": row.agent_id,
        "options": row.config,
        "has_credentials": row.credentials is not None,
        "enabled": row.enabled,
        "account": row.account_key,
        "health": row.health,
        "last_error": row.last_error,
        "revision": row.config_revision,
        "running_revision": row.running_revision,
        "replica": row.replica,
        "created_at": row.created_at,
    }
