"""Slash commands and buttons: what they mean, how they are answered inside Discord's 3 seconds, and which we register.

The answer to a command is a normal message of the outbox. The interaction itself is only acknowledged: a command's
"thinking" is shown to its sender alone and taken away once the command is stored, a button's tap shows nothing.

Shapes: https://discord.com/developers/docs/interactions/receiving-and-responding, interactions/application-commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adapters.discord.convert import other, person, snowflake
from stratus.channel import Event
from stratus.channel.text import clean, clean_json

if TYPE_CHECKING:
    from adapters.discord.rest import Rest

_COMMAND, _COMPONENT = 2, 3
_DEFER_MESSAGE, _DEFER_UPDATE = 5, 6
_EPHEMERAL = 1 << 6
_DEFER_SECONDS = 2.5
_CHAT_INPUT, _STRING = 1, 3


def _registered(name: str, says: str, argument: str = "", *, required: bool = False) -> dict[str, Any]:
    option = {"type": _STRING, "name": argument, "description": argument, "required": required}
    return {"name": name, "type": _CHAT_INPUT, "description": says, "options": [option] if argument else []}


COMMANDS: Sequence[Mapping[str, Any]] = (
    _registered("new", "Start a new conversation", "agent"),
    _registered("stop", "Stop the turn that is running"),
    _registered("status", "What is going on here"),
    _registered("approve", "Allow what an agent asked for", "code"),
    _registered("deny", "Refuse what an agent asked for", "code"),
    _registered("agents", "List the agents"),
    _registered("agent", "Talk to another agent", "name", required=True),
    _registered("whoami", "Who you are to this bot"),
    _registered("help", "What you can say"),
)


def event_from_interaction(data: Any) -> Event | None:
    """The event of INTERACTION_CREATE: a command, or a tap on a button; None for what we never offered."""
    try:
        return _known(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        shown = isinstance(data, Mapping)
        return other("INTERACTION_CREATE", _without_token(data) if shown else data)


def _known(data: Any) -> Event | None:
    if data["type"] not in (_COMMAND, _COMPONENT):
        return None
    member = data.get("member")
    direct = not data.get("guild_id")
    fields = {
        "key": f"interaction:{snowflake(data['id'])}",
        "chat": snowflake(data["channel_id"]),
        "sender": person(member["user"] if member else data["user"], member),
        "direct": direct,
        "addressed": True,
        "payload": clean_json(_without_token(data)),
    }
    inner = data["data"]
    if data["type"] == _COMPONENT:
        told = {"kind": "callback", "callback": clean(str(inner["custom_id"]))}
        return Event.model_validate({**fields, **told, "message_id": snowflake(data["message"]["id"])})
    if inner.get("type", _CHAT_INPUT) != _CHAT_INPUT:
        return None
    text = " ".join(clean(str(option["value"])) for option in inner.get("options", ()) if "value" in option)
    return Event.model_validate({**fields, "kind": "command", "command": str(inner["name"]).lower(), "text": text})


def _without_token(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "token"}


async def defer(rest: Rest, data: Any) -> None:
    """Acknowledge, within the time that Discord gives. Never raises: one that cannot be acknowledged is stored all the same."""
    from discord.http import Route

    command = data.get("type") == _COMMAND
    body: dict[str, Any] = {"type": _DEFER_MESSAGE if command else _DEFER_UPDATE}
    if command:
        body["data"] = {"flags": _EPHEMERAL}
    route = Route(
        "POST",
        "/interactions/{webhook_id}/{webhook_token}/callback",
        webhook_id=data.get("id"),
        webhook_token=data.get("token"),
    )
    await _courtesy(rest.request(route, json=body), "interaction not deferred")


async def end_thinking(rest: Rest, application: str, data: Any, deferred: asyncio.Task[None]) -> None:
    """Take the "thinking" away, once the command is stored. Never raises."""
    from discord.http import Route

    await asyncio.wait([deferred])
    if data.get("type") != _COMMAND:
        return
    route = Route(
        "DELETE",
        "/webhooks/{webhook_id}/{webhook_token}/messages/@original",
        webhook_id=application,
        webhook_token=data.get("token"),
    )
    await _courtesy(rest.request(route), "thinking not ended")


async def register(rest: Rest, application: str) -> None:
    """Make the bot's global commands ours, when they are not. Never raises: typed commands work without."""

    async def work() -> None:
        found = await rest.get_global_commands(application)
        if _outline(found) != _outline(COMMANDS):
            await rest.bulk_upsert_global_commands(application, [dict(one) for one in COMMANDS])

    await _courtesy(work(), "commands not registered")


def _outline(commands: Any) -> list[Any]:
    """What of commands is compared: Discord adds ids, versions and defaults of its own."""
    return sorted(
        (
            one["name"],
            one.get("description"),
            [(o["name"], o["description"], bool(o.get("required"))) for o in one.get("options") or ()],
        )
        for one in commands
    )


async def _courtesy(call: Any, failed: str) -> None:
    try:
        async with asyncio.timeout(_DEFER_SECONDS):
            await call
    except Exception as error:
        logging.getLogger(__name__).info("%s: %s", failed, type(error).__name__)
