"""Adapter for the test platform: a chat platform made for tests, spoken to over plain HTTP. It needs no SDK."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from stratus.channel import (
    AccountStopped,
    Attachment,
    BadCredentials,
    Blob,
    ChannelConfig,
    Event,
    Limits,
    Op,
    RawRequest,
    Receipt,
    Sender,
    SendError,
    SendFailure,
    WebhookReply,
)
from stratus.channel.protocol import Cursor, Deliver, Guard
from stratus.channel.text import clean, clean_json, length

if TYPE_CHECKING:
    import httpx

_SECRET_HEADER = "x-testchan-secret"
_MISSED_POLL_SECONDS = 5.0
_KINDS = frozenset({"message", "edit", "command", "callback", "member", "migrate", "other"})


class TestchanAdapter:
    """One bot on the test platform.

    Options: `base_url`; `bot`; `wait` (seconds of a long poll, 10); `idempotent` (seconds in which the platform takes a
    key again, 0: never); `webhook` (true: events are pushed, and the credential `secret` proves them).
    """

    __test__ = False  # the name begins like a test class

    platform: ClassVar[str] = "testchan"
    limits: ClassVar[Limits] = Limits(text_max=4096, edit_interval_seconds=0.2, chat_rate=1000, bot_rate=1000)

    def __init__(self, config: ChannelConfig) -> None:
        options = config.options
        # The testbed gives each replica a way of its own to the one platform, so that it can be cut off alone.
        self._base_url = (os.environ.get("TESTCHAN_BASE_URL") or str(options.get("base_url", ""))).rstrip("/")
        self._bot = str(options.get("bot", ""))
        if not self._base_url or not self._bot:
            raise BadCredentials("testchan needs the options base_url and bot")
        self._wait = float(options.get("wait", 10))
        self._same_key = timedelta(seconds=float(options.get("idempotent", 0)))
        self._pushed = bool(options.get("webhook", False))
        secret = config.credentials.get("secret")
        self._secret = secret.get_secret_value().encode() if secret else b""
        if self._pushed and not self._secret:
            raise BadCredentials("testchan needs the credential secret in webhook mode")
        self._client: httpx.AsyncClient | None = None

    def idempotent(self, kind: str) -> timedelta | None:
        """The option `idempotent`, for every kind."""
        return self._same_key or None

    async def account(self) -> str:
        """The bot's name, as the platform knows it where it tells."""
        reply = await self._http().get("/account", params={"bot": self._bot})
        _check_account(reply)
        if reply.status_code == 404:
            return self._bot
        reply.raise_for_status()
        return str(reply.json().get("account") or self._bot)

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        """Long polls; the next poll's `after` acknowledges what was delivered."""
        if self._pushed:
            await deliver((), cursor)
            await asyncio.Event().wait()
        after = int(cursor.get("after", 0)) if cursor else 0
        while True:
            params: dict[str, str | int | float] = {"bot": self._bot, "after": after, "wait": self._wait}
            reply = await self._http().get("/poll", params=params, timeout=self._wait + _MISSED_POLL_SECONDS)
            _check_account(reply)
            reply.raise_for_status()
            body = reply.json()
            after = int(body["next"])
            await deliver([_event(raw) for raw in body["events"]], {"after": after})

    async def webhook(self, request: RawRequest) -> WebhookReply:
        """Takes `{"events": […]}` with the secret in `X-Testchan-Secret`."""
        given = request.headers.get(_SECRET_HEADER, "").encode()
        if not self._secret or not hmac.compare_digest(given, self._secret):
            return WebhookReply(status=401)
        try:
            body = json.loads(request.body)
            events = [_event(raw) for raw in body["events"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            return WebhookReply(events=[_other(request.body, {})])
        return WebhookReply(events=events)

    async def fetch(self, ref: str) -> Blob:
        """Never needed: attachments come with their bytes."""
        raise SendError(SendFailure.PERMANENT, "no_media", "the test platform sends attachments with their bytes")

    async def send(self, op: Op, guard: Guard) -> Receipt:
        """POST /send."""
        import httpx

        if length(op.text, self.limits.text_unit) > self.limits.text_max:
            raise SendError(SendFailure.PERMANENT, "too_long", f"text is longer than {self.limits.text_max}")
        try:
            reply = await self._http().post("/send", json=self._body(op))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise SendError(SendFailure.RETRYABLE, "not_sent", type(error).__name__) from error
        except httpx.HTTPError as error:
            raise SendError(SendFailure.UNKNOWN, "no_answer", type(error).__name__) from error
        if not reply.is_success:
            raise _refusal(reply)
        try:
            return Receipt(message_id=str(reply.json()["message_id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SendError(SendFailure.UNKNOWN, "bad_answer", "the answer has no message_id") from error

    async def edit(self, op: Op, guard: Guard) -> Receipt:
        """An edit is a send with `message_id`."""
        return await self.send(op, guard)

    async def react(self, op: Op, guard: Guard) -> Receipt:
        """A reaction is a send of that kind."""
        return await self.send(op, guard)

    async def close_prompt(self, op: Op, guard: Guard) -> Receipt:
        """An edit without buttons."""
        return await self.send(op, guard)

    async def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            timeout = httpx.Timeout(15, connect=5, pool=5)
            # Each send under way keeps its connection: the default keeps 20, and opens the others anew each time.
            limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
            self._client = httpx.AsyncClient(base_url=self._base_url, trust_env=False, timeout=timeout, limits=limits)
        return self._client

    def _body(self, op: Op) -> dict[str, Any]:
        body: dict[str, Any] = {
            "op": op.id,
            "attempt": op.attempt,
            "replica": op.owner or "-",
            "kind": op.kind,
            "chat": op.chat,
            "key": op.key,
            "bot": self._bot,
        }
        file = op.attachment
        optional = {
            "thread": op.thread,
            "text": clean(op.text),
            "message_id": op.message_id,
            "reply_to": op.reply_to,
            "buttons": [list(button) for button in op.buttons],
            "attachment": file and {"name": file.name, "mime": file.mime, "base64": file.data or ""},
        }
        return body | {name: value for name, value in optional.items() if value}


def _check_account(reply: httpx.Response) -> None:
    if reply.status_code == 401:
        raise AccountStopped("the test platform refuses this bot")


def _refusal(reply: httpx.Response) -> SendError:
    status = reply.status_code
    if status == 429:
        return SendError(SendFailure.RETRYABLE, "rate_limited", "too many requests", retry_after=_retry_after(reply))
    if status == 401:
        return SendError(SendFailure.PERMANENT, "unauthorized", "the test platform refuses this bot")
    if status == 403:
        return SendError(SendFailure.PERMANENT, "blocked", "the test platform refuses this bot in the chat")
    if 400 <= status < 500:
        return SendError(SendFailure.PERMANENT, f"http_{status}", f"the platform answered {status}")
    return SendError(SendFailure.UNKNOWN, f"http_{status}", f"the platform answered {status}")


def _retry_after(reply: httpx.Response) -> float:
    try:
        return float(reply.json()["retry_after"])
    except (ValueError, KeyError, TypeError):
        header = str(reply.headers.get("retry-after", ""))
        return float(header) if header.isdigit() else 1.0


def _event(raw: Any) -> Event:
    try:
        return _known(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _other(json.dumps(raw, sort_keys=True).encode(), raw)


def _known(raw: Mapping[str, Any]) -> Event:
    chat, thread = clean(str(raw["chat"])), clean(str(raw.get("thread") or ""))
    kind = raw["kind"] if raw["kind"] in _KINDS else "other"
    text, command = clean(raw.get("text") or ""), None
    if kind in ("message", "command") and text.startswith("/") and text[1:2].isalnum():
        word, *rest = text[1:].split(maxsplit=1)
        kind, command, text = "command", word.lower(), rest[0] if rest else ""
    return Event.model_validate(
        {
            "key": clean(f"{chat}:{thread}:{raw['id']}"),
            "kind": kind,
            "chat": chat,
            "thread": thread,
            "sender": _sender(raw["sender"]),
            "text": text,
            "command": command,
            "message_id": _optional(raw, "message_id") or clean(str(raw["id"])),
            "reply_to": _optional(raw, "reply_to"),
            "callback": _optional(raw, "callback"),
            "album": _optional(raw, "album"),
            "direct": bool(raw.get("direct", True)),
            "addressed": bool(raw.get("addressed", True)),
            "mentions": [clean(str(one)) for one in raw.get("mentions") or ()],
            "shared_id": bool(raw.get("shared_id", True)),
            "attachments": [_attachment(file) for file in raw.get("attachments") or ()],
            "payload": clean_json({name: value for name, value in raw.items() if name != "attachments"}),
        }
    )


def _sender(raw: Mapping[str, Any]) -> Sender:
    return Sender(id=clean(str(raw["id"])), name=clean(str(raw.get("name", ""))), is_bot=bool(raw.get("is_bot", False)))


def _attachment(file: Mapping[str, Any]) -> Attachment:
    mime, data = str(file.get("mime") or "application/octet-stream"), str(file["base64"])
    family = mime.partition("/")[0]
    return Attachment.model_validate(
        {
            "kind": family if family in ("image", "audio", "video") else "document",
            "name": clean(str(file.get("name") or "")),
            "mime": clean(mime),
            "size": len(data.rstrip("=")) * 3 // 4,
            "data": data,
        }
    )


def _other(body: bytes, raw: Any) -> Event:
    payload = clean_json(raw) if isinstance(raw, Mapping) else {"raw": clean_json(raw)}
    key = f"digest:{hashlib.sha256(body).hexdigest()}"
    return Event(key=key, kind="other", chat="", sender=Sender(id=""), addressed=False, payload=payload)


def _optional(raw: Mapping[str, Any], name: str) -> str | None:
    value = raw.get(name)
    return None if value is None else clean(str(value))
