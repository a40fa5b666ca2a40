"""One Discord bot: its options, who it is, and the way to receiving, sends and files."""

from __future__ import annotations

import asyncio
import importlib
import re
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from adapters.discord import sending
from adapters.discord.failures import send_error
from adapters.discord.standing import Standing
from stratus.channel import (
    AccountStopped,
    BadCredentials,
    Blob,
    Budget,
    ChannelConfig,
    Limits,
    Op,
    RawRequest,
    Receipt,
    SendError,
    SendFailure,
    WebhookReply,
)
from stratus.channel.protocol import Cursor, Deliver, Guard

if TYPE_CHECKING:
    from adapters.discord.rest import Rest

_API = "https://discord.com/api/v10"
_FILE_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_DOWNLOAD_BYTES_MAX = 50_000_000
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
# https://discord.com/developers/docs/events/gateway#list-of-intents
_GUILDS, _GUILD_MESSAGES, _DIRECT_MESSAGES, _MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
# "the past few minutes": discord-api-docs, Create Message, on enforce_nonce
_NONCE_WINDOW = timedelta(seconds=120)
_REPEATABLE = timedelta(minutes=10)


class DiscordAdapter:
    """One bot. Credential: `token`.

    Options: `message_content` (true; false asks for no privileged intent, and then only direct messages and mentions can
    be read), `api_base` (another server that speaks the API, with its version). Without `api_base` the environment's
    proxies are honoured.
    """

    platform: ClassVar[str] = "discord"
    # what a server without boosts takes: 10 MB a file; five messages in five seconds a channel, fifty calls a second
    limits: ClassVar[Limits] = Limits(
        text_max=2000, caption_max=2000, attachment_bytes_max=10_000_000, chat_rate=1.0, bot_rate=40.0
    )

    def __init__(self, config: ChannelConfig) -> None:
        token = config.credentials.get("token")
        if token is None or _TOKEN.fullmatch(token.get_secret_value()) is None:
            raise BadCredentials("discord needs the credential token, from the bot's page in the developer portal")
        self._token = token.get_secret_value()
        options = config.options
        self._api_base = str(options.get("api_base") or "").rstrip("/")
        self._intents = _GUILDS | _GUILD_MESSAGES | _DIRECT_MESSAGES
        if options.get("message_content", True):
            self._intents |= _MESSAGE_CONTENT
        self._id = ""
        self._budget: Budget = _unasked
        self._rest: Rest | None = None

    def idempotent(self, kind: str) -> timedelta | None:
        """A message by its nonce; setting a message's content or a reaction twice is the same as once."""
        return _REPEATABLE if kind in ("edit_prompt", "reaction") else _NONCE_WINDOW

    def use_budget(self, budget: Budget) -> None:
        """What is asked before each IDENTIFY: over a thousand a day, Discord ends all sessions and the token."""
        self._budget = budget

    async def account(self) -> str:
        """The bot's user id, from Get Current User."""
        rest = await self._api()
        from discord.http import Route

        from adapters.discord.receiving import receive_error
        from adapters.discord.rest import Refused

        try:
            user = await rest.request(Route("GET", "/users/@me"))
        except Refused as error:
            raise receive_error(error) from error
        self._id = str(user["id"])
        return self._id

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        """Goes on with the cursor's session where there is one, else starts a new one and fetches what came in between."""
        if not self._id:
            await self.account()
        rest = await self._api()
        from adapters.discord.receiving import Account, Receiving

        account = Account(self._id, self._token, self._intents, self._budget)
        await Receiving(rest, account, Standing.of(cursor), deliver).run()

    async def webhook(self, request: RawRequest) -> WebhookReply:
        """Discord pushes nothing to us: interactions come over the gateway."""
        return WebhookReply(status=404)

    async def fetch(self, ref: str) -> Blob:
        """The file behind an attachment's link; links run out after about a day. At most 50 MB."""
        if not self._is_file(ref):
            raise SendError(SendFailure.PERMANENT, "no_file", "this is no link to a file on Discord")
        rest = await self._api()
        from adapters.discord.rest import Refused

        try:
            data, mime = await rest.download(ref, _DOWNLOAD_BYTES_MAX)
        except Refused as error:
            if error.status == 429 or error.status >= 500:
                raise send_error(error) from error
            code = "too_large" if error.status == 413 else "no_file"
            raise SendError(SendFailure.PERMANENT, code, str(error)) from error
        return Blob(name=urlsplit(ref).path.rpartition("/")[2] or "file", mime=mime, data=data)

    async def send(self, op: Op, guard: Guard) -> Receipt:
        """A message or a file; an op that names a message edits it, a reaction is added to it."""
        if op.kind == "reaction":
            return await self.react(op, guard)
        if op.message_id is not None:
            return await self.edit(op, guard)
        return await sending.send(await self._api(), self.limits, op)

    async def edit(self, op: Op, guard: Guard) -> Receipt:
        """Edit Message; without a text only the buttons go."""
        return await sending.edit(await self._api(), self.limits, op)

    async def react(self, op: Op, guard: Guard) -> Receipt:
        """Create Reaction with the emoji in `text`; without one, ours are taken away."""
        return await sending.react(await self._api(), op, guard)

    async def close_prompt(self, op: Op, guard: Guard) -> Receipt:
        """The prompt's message without its buttons, with the op's text where it has one."""
        return await self.edit(op, guard)

    async def close(self) -> None:
        """Closes the connections."""
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest.close()

    def _is_file(self, ref: str) -> bool:
        parts = urlsplit(ref)
        if self._api_base and ref.startswith(f"{_origin(self._api_base)}/"):
            return True
        return parts.scheme == "https" and parts.hostname in _FILE_HOSTS

    async def _api(self) -> Rest:
        if self._rest is None:
            # the import takes a second or two, in which a blocked loop would renew no lease
            module = await asyncio.to_thread(importlib.import_module, "adapters.discord.receiving")
            if self._rest is None:
                self._rest = module.Rest(self._token, self._api_base or _API, trust_env=not self._api_base)
        return self._rest


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def _unasked() -> None:
    raise AccountStopped("nobody counts this bot's new sessions; without that it starts none")
