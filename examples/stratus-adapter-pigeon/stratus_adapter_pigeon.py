"""An example of an adapter: Pigeon, a chat server that takes one line of JSON on a connection and answers with one.

`{"call": "poll", "token", "after", "wait"}` is answered with the events numbered above `after`, which are thereby kept
no longer up to `after`; `{"call": "send", "token", "chat", "text", "key"}` with the message's id, for a key that it knows
with the first one's. A refusal is `{"error": code}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from stratus.channel import (
    AccountStopped,
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

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 15.0
_KEY_LIFE = timedelta(hours=1)


class NotSent(Exception):
    """No connection was made, so nothing of the call can have arrived."""


class PigeonAdapter:
    """One bot. Options: `host`, `port`, and `wait` (seconds of a long poll, 10). Credential: `token`."""

    platform: ClassVar[str] = "pigeon"
    limits: ClassVar[Limits] = Limits(text_max=1000, caption_max=1000)

    def __init__(self, config: ChannelConfig) -> None:
        token = config.credentials.get("token")
        self._host, self._port = str(config.options.get("host", "")), int(config.options.get("port", 0))
        if token is None or not self._host or not self._port:
            raise BadCredentials("pigeon needs the credential token and the options host and port")
        self._token = token.get_secret_value()
        self._wait = float(config.options.get("wait", 10))

    def idempotent(self, kind: str) -> timedelta | None:
        """Pigeon remembers keys for a day; an hour is promised, so that the clocks need not agree."""
        return _KEY_LIFE

    async def account(self) -> str:
        """The bot's name."""
        return str((await self._checked({"call": "account"}))["account"])

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        """Long polls; the next poll tells Pigeon that the events of the one before are stored."""
        after = int(cursor["after"]) if cursor else 0
        while True:
            answer = await self._checked({"call": "poll", "after": after, "wait": self._wait}, self._wait)
            events = [_event(raw) for raw in answer["events"]]
            after = max([after, *(int(raw["n"]) for raw in answer["events"])])
            await deliver(events, {"after": after})

    async def webhook(self, request: RawRequest) -> WebhookReply:
        """Pigeon pushes nothing."""
        return WebhookReply(status=404)

    async def fetch(self, ref: str) -> Blob:
        """Pigeon has no files."""
        raise SendError(SendFailure.PERMANENT, "no_file", "pigeon has no files")

    async def send(self, op: Op, guard: Guard) -> Receipt:
        """One message. Pigeon renders nothing: Markdown goes out as it is."""
        text = clean(op.text)
        if length(text, self.limits.text_unit) > self.limits.text_max:
            raise SendError(SendFailure.PERMANENT, "too_long", f"text is longer than {self.limits.text_max}")
        try:
            answer = await self._ask({"call": "send", "chat": op.chat, "text": text, "key": op.key})
        except NotSent as error:
            raise SendError(SendFailure.RETRYABLE, "not_sent", str(error)) from error
        except (OSError, ValueError, TimeoutError) as error:  # it may have arrived: nobody can know
            raise SendError(SendFailure.UNKNOWN, "no_answer", type(error).__name__) from error
        if "error" in answer:
            raise _refusal(answer)
        return Receipt(message_id=str(answer["id"]))

    async def close(self) -> None:
        """Each call has a connection of its own, so there is nothing to free."""

    async def _checked(self, call: Mapping[str, Any], wait: float = 0.0) -> dict[str, Any]:
        answer = await self._ask(call, wait)
        if answer.get("error") == "unauthorized":
            raise AccountStopped("Pigeon refuses the token")
        if "error" in answer:
            raise ConnectionError(f"Pigeon answers {answer['error']}")
        return answer

    async def _ask(self, call: Mapping[str, Any], wait: float = 0.0) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise NotSent(f"no connection: {type(error).__name__}") from error
        try:
            async with asyncio.timeout(_ANSWER_SECONDS + wait):
                writer.write(json.dumps({**call, "token": self._token}).encode() + b"\n")
                await writer.drain()
                answer = json.loads(await reader.readline())
        finally:
            writer.close()
        if not isinstance(answer, dict):
            raise ValueError("the answer is no object")  # noqa: TRY004 - as for any line that is no answer
        return answer


def _refusal(answer: Mapping[str, Any]) -> SendError:
    code = str(answer["error"])
    if code == "slow_down":
        return SendError(SendFailure.RETRYABLE, "rate_limited", "Pigeon asks for a pause", retry_after=answer["after"])
    if code == "internal":
        return SendError(SendFailure.UNKNOWN, "internal", "Pigeon does not know whether it took the message")
    return SendError(SendFailure.PERMANENT, code, f"Pigeon answers {code}")


def _event(raw: Mapping[str, Any]) -> Event:
    """The event's number is its identity: Pigeon never uses one twice."""
    return Event(
        key=f"{clean(str(raw['chat']))}:{int(raw['n'])}",
        kind="message",
        chat=clean(str(raw["chat"])),
        sender=Sender(id=clean(str(raw["from"]))),
        text=clean(str(raw["text"])),
        message_id=str(raw["n"]),
        payload=clean_json(dict(raw)),
    )
