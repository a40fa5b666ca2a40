"""One Telegram bot: its own long polling on raw updates, or its webhook, and the way to the sends.

The library's Updater is not used: it confirms updates to Telegram before they are stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import mimetypes
import os
import posixpath
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from adapters.telegram import sending
from adapters.telegram.convert import Me, event_from_garbage, event_from_update, update_id
from adapters.telegram.failures import seconds, send_error
from stratus.channel import (
    AccountStopped,
    BadCredentials,
    Blob,
    ChannelConfig,
    Event,
    Limits,
    Op,
    PollConflict,
    RawRequest,
    Receipt,
    SendError,
    SendFailure,
    WebhookReply,
)
from stratus.channel.protocol import Cursor, Deliver, Guard

if TYPE_CHECKING:
    from telegram import Bot
    from telegram.request import HTTPXRequest

_API = "https://api.telegram.org"
_ALLOWED_UPDATES = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "callback_query",
    "my_chat_member",
    "message_reaction",
)
_POLL_SECONDS_MAX = 50  # the server's own cap: tdlib/telegram-bot-api, Client.cpp
_DOWNLOAD_BYTES_MAX = 20_000_000  # https://core.telegram.org/bots/api#getfile
_SEND_SECONDS = 15
_TOKEN = re.compile(r"(\d+):[\w-]+", re.ASCII)
_SECRET = re.compile(r"[\w-]{1,180}", re.ASCII)
_PROOF_CHARS = 32
_SECRET_HEADER = "x-telegram-bot-api-secret-token"
_IDEMPOTENT = {"edit_prompt": timedelta(minutes=10), "reaction": timedelta(minutes=10)}


class TelegramAdapter:
    """One bot. Credentials: `token`, and `secret` for the webhook (derived from the token where it is missing).

    Options: `mode` ("poll" or "webhook"), `api_base` (a self-hosted Bot API server, without `/bot`), `poll_seconds`
    (30, at most 50). Without `api_base` the environment's proxies are honoured.
    """

    platform: ClassVar[str] = "telegram"
    limits: ClassVar[Limits] = Limits(
        text_max=4096,
        caption_max=1024,
        attachment_bytes_max=50_000_000,
        # https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this; groups have negative ids.
        chat_rate=1.0,
        group_rate=20 / 60,
        group_prefix="-",
        bot_rate=30.0,
        rate_by="chat",
    )

    def __init__(self, config: ChannelConfig) -> None:
        token = config.credentials.get("token")
        match = _TOKEN.fullmatch(token.get_secret_value()) if token else None
        if match is None:
            raise BadCredentials("telegram needs the credential token, as @BotFather gave it")
        self._token = match[0]
        self._me = Me(int(match[1]))
        options = config.options
        self._api_base = str(options.get("api_base") or "").rstrip("/").removesuffix("/bot")
        self._poll_seconds = min(max(int(options.get("poll_seconds", 30)), 0), _POLL_SECONDS_MAX)
        self._webhook_url = config.webhook_url if options.get("mode") == "webhook" else None
        if options.get("mode") == "webhook" and not self._webhook_url:
            raise BadCredentials("telegram's webhook mode needs a public URL")
        self._secret = _secret(config, self._token)
        self._bot: Bot | None = None
        self._polling: HTTPXRequest | None = None
        self._sending: HTTPXRequest | None = None
        _quiet()

    def idempotent(self, kind: str) -> timedelta | None:
        """Telegram has no idempotency keys; setting a message's content or reaction twice is the same as once."""
        return _IDEMPOTENT.get(kind)

    async def account(self) -> str:
        """The bot's numeric id, from getMe."""
        from telegram.error import InvalidToken

        try:
            user = await self._api().get_me()
        except InvalidToken as error:
            raise AccountStopped("Telegram refuses the bot's token") from error
        self._me = Me(user.id, user.username or "")
        return str(user.id)

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        """Long polls from the cursor's `offset`: each call confirms what the one before delivered.

        With a webhook: registers it and waits.
        """
        from telegram.error import Conflict, InvalidToken, RetryAfter

        try:
            if not self._me.username:
                await self.account()
            if self._webhook_url is not None:
                await self._register(self._webhook_url)
                await deliver((), cursor)
                await asyncio.Event().wait()
            await self._unregister()
            await self._poll(cursor, deliver)
        except InvalidToken as error:
            raise AccountStopped("Telegram refuses the bot's token") from error
        except Conflict as error:
            raise PollConflict(str(error)) from error
        except RetryAfter as error:
            raise SendError(
                SendFailure.RETRYABLE, "rate_limited", str(error), retry_after=seconds(error.retry_after)
            ) from error
        finally:
            # a torn poll can leave its pool stuck for ever: python-telegram-bot#3087
            await self._drop_polling()

    async def webhook(self, request: RawRequest) -> WebhookReply:
        """One update, proven by the secret token.

        A tap on a button is answered in the reply, so that the button stops spinning.
        """
        name = self._proven_name(request.headers.get(_SECRET_HEADER, ""))
        if name is None:
            return WebhookReply(status=401)
        try:
            update = json.loads(request.body)
        except (ValueError, RecursionError):
            return WebhookReply(events=[event_from_garbage(request.body)])
        event = event_from_update(update, self._me if self._me.username else Me(self._me.id, name))
        reply = b""
        if event.kind == "callback":
            tap = {"method": "answerCallbackQuery", "callback_query_id": update["callback_query"]["id"]}
            reply = json.dumps(tap).encode()
        return WebhookReply(events=[event], body=reply)

    async def fetch(self, ref: str) -> Blob:
        """getFile, then the download; at most 20 MB."""
        from telegram.error import BadRequest, InvalidToken, RetryAfter

        bot = self._api()
        try:
            file = await bot.get_file(ref)
            path = file.file_path or ""
            if (file.file_size or 0) > _DOWNLOAD_BYTES_MAX:
                raise SendError(SendFailure.PERMANENT, "too_large", "Telegram hands out no file over 20 MB")
            if not path.startswith(("http://", "https://")):  # a path of the server's own disk must not be read here
                raise SendError(SendFailure.PERMANENT, "no_file", "Telegram named no address for the file")
            data = await bot.request.retrieve(path)
        except BadRequest as error:
            code = "too_large" if "too big" in str(error).lower() else "no_file"
            raise SendError(SendFailure.PERMANENT, code, str(error)) from error
        except (InvalidToken, RetryAfter) as error:
            raise send_error(error) from error
        name = posixpath.basename(path)
        return Blob(name=name, mime=mimetypes.guess_type(name)[0] or "application/octet-stream", data=bytes(data))

    async def send(self, op: Op, guard: Guard) -> Receipt:
        """A message or a file; an op that names a message edits it, a reaction is set on it."""
        if op.kind == "reaction":
            return await self.react(op, guard)
        if op.message_id is not None:
            return await self.edit(op, guard)
        return await sending.send(self._api(), self.limits, op, guard)

    async def edit(self, op: Op, guard: Guard) -> Receipt:
        """editMessageText; without a text only the buttons go."""
        if not op.text:
            return await sending.remove_buttons(self._api(), op)
        return await sending.edit(self._api(), self.limits, op, guard)

    async def react(self, op: Op, guard: Guard) -> Receipt:
        """setMessageReaction with the emoji in `text`."""
        return await sending.react(self._api(), op)

    async def close_prompt(self, op: Op, guard: Guard) -> Receipt:
        """The prompt's message without its buttons, with the op's text where it has one."""
        return await self.edit(op, guard)

    async def close(self) -> None:
        """Closes the connections."""
        await self._drop_polling()
        request, self._sending, self._bot = self._sending, None, None
        if request is not None:
            await request.shutdown()

    async def _poll(self, cursor: Cursor | None, deliver: Deliver) -> None:
        offset = int(cursor.get("offset", 0)) if cursor else 0
        while True:
            updates = await self._updates(max(offset, 0))  # a negative offset would forget all but the last updates
            numbers = [number for update in updates if (number := update_id(update)) is not None]
            if numbers:
                # not the highest ever seen: after a week of silence Telegram's numbers start anew anywhere
                offset = max(numbers) + 1
            events = [event_from_update(update, self._me) for update in updates]
            await deliver(events, {"offset": offset} if offset else None)
            await self._stop_spinning(events, updates)

    async def _updates(self, offset: int) -> Sequence[Any]:
        query = urlencode(
            {"offset": offset, "timeout": self._poll_seconds, "allowed_updates": json.dumps(_ALLOWED_UPDATES)}
        )
        if self._polling is None:
            self._polling = self._request(pool=1)
        url = f"{self._api().base_url}/getUpdates?{query}"
        # raw, because the library's get_updates drops the whole batch for one update that it cannot read
        found: Any = await self._polling.post(url, read_timeout=self._poll_seconds + 10)
        return found if isinstance(found, list) else []

    async def _stop_spinning(self, events: Sequence[Event], updates: Sequence[Any]) -> None:
        """Answer taps on buttons, as a courtesy: a tap that cannot be answered is stored all the same."""
        pairs = zip(events, updates, strict=True)
        taps = [update["callback_query"]["id"] for event, update in pairs if event.kind == "callback"]
        async with asyncio.TaskGroup() as group:
            for tap in taps:
                group.create_task(self._answer(tap))

    async def _answer(self, tap: str) -> None:
        from telegram.error import TelegramError

        try:
            await self._api().answer_callback_query(tap, read_timeout=5)
        except TelegramError as error:
            logging.getLogger(__name__).debug("callback not answered: %s", type(error).__name__)

    async def _register(self, url: str) -> None:
        token = self._secret_token(self._me.username)
        await self._api().set_webhook(url, secret_token=token, allowed_updates=_ALLOWED_UPDATES)

    def _secret_token(self, name: str) -> str:
        """The secret with the bot's name, so that a replica that never asked Telegram for it can tell a mention."""
        proof = hmac.digest(self._secret.encode(), name.encode(errors="replace"), hashlib.sha256).hex()[:_PROOF_CHARS]
        return f"{self._secret}-{name}-{proof}"

    def _proven_name(self, given: str) -> str | None:
        """The bot's name in the header, "" where it has only the secret (registered by other means); None: forged."""
        name = given[len(self._secret) + 1 : -_PROOF_CHARS - 1]
        bare, named = (_same(given, known) for known in (self._secret, self._secret_token(name)))
        return name if named else "" if bare else None

    async def _unregister(self) -> None:
        """End a webhook, which excludes polling; what waits for it stays and is polled."""
        info = await self._api().get_webhook_info()
        if info.url:
            await self._api().delete_webhook(drop_pending_updates=False)

    def _api(self) -> Bot:
        if self._bot is None:
            from telegram import Bot

            base = self._api_base or _API
            self._sending = self._request(pool=32)
            self._bot = Bot(
                self._token,
                base_url=f"{base}/bot",
                base_file_url=f"{base}/file/bot",
                request=self._sending,
                get_updates_request=self._sending,
            )
        return self._bot

    def _request(self, pool: int) -> HTTPXRequest:
        from telegram.request import HTTPXRequest

        return HTTPXRequest(
            connection_pool_size=pool,
            read_timeout=_SEND_SECONDS,
            write_timeout=_SEND_SECONDS,
            connect_timeout=5,
            pool_timeout=5,
            httpx_kwargs={"trust_env": not self._api_base},
        )

    async def _drop_polling(self) -> None:
        request, self._polling = self._polling, None
        if request is not None:
            await request.shutdown()


def _secret(config: ChannelConfig, token: str) -> str:
    given = config.credentials.get("secret")
    if given is None:
        return hmac.digest(token.encode(), f"webhook:{config.channel_id}".encode(), hashlib.sha256).hex()
    if not _SECRET.fullmatch(given.get_secret_value()):
        raise BadCredentials("telegram's secret may hold 1 to 180 of A-Z a-z 0-9 _ and -")
    return given.get_secret_value()


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode(errors="replace"))


def _quiet() -> None:
    """httpx logs each URL at INFO and httpcore at DEBUG: Telegram's URLs hold the token.

    The library logs an answer that it cannot read at ERROR, with the people's messages in it, and raises it anyway.
    """
    for name, level in (("httpx", logging.WARNING), ("httpcore", logging.WARNING), ("telegram", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
    os.environ.setdefault("PTB_TIMEDELTA", "1")  # else the library warns at each flood wait
