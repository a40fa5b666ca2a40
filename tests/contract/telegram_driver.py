"""The fake Telegram as the conformance suite's driver, and the channel that points an adapter at it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pydantic import SecretStr

from stratus.channel import ChannelConfig, RawRequest
from stratus.channel.driver import RETRY_AFTER_SECONDS, Fault
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram

TOKEN = "42:AAtests-token"
SECRET = "a-secret-of_tests"
ANSWERS: dict[Fault, dict[str, Any]] = {
    Fault.REFUSED: {"answer": 400},
    Fault.RATE_LIMITED: {"answer": 429, "retry_after": RETRY_AFTER_SECONDS},
    Fault.UNAUTHORIZED: {"answer": 401},
    Fault.UNFORMATTED: {"answer": "parse"},
    Fault.SERVER_ERROR: {"answer": "store_then_502html"},
    Fault.LOST: {"answer": "store_then_reset"},
    Fault.SILENCE: {"answer": "store_then_hang"},
}


class TelegramDriver:
    """The fake Telegram under the suite."""

    chat = "7"

    def __init__(self) -> None:
        self.telegram = FakeTelegram()
        self.bot = self.telegram.bot(42)
        self._server = FakeServer(self.telegram.app)

    @property
    def url(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    async def inject(self, text: str) -> None:
        await self.bot.add({"message": {"text": text}})

    async def redeliver(self) -> None:
        await self.bot.redeliver(None)

    async def acknowledged(self) -> int:
        return len(self.bot.history) - len(self.bot.pending)

    async def arm(self, fault: Fault) -> None:
        self.telegram.controls.fault({}, **ANSWERS[fault])

    async def sent(self) -> Sequence[str]:
        return [entry["text"] for entry in self.telegram.log]

    async def send_calls(self) -> int:
        return len(self.calls("sendMessage"))

    async def revoke(self) -> None:
        self.bot.token = "42:another"

    async def pushed(self, text: str) -> RawRequest | None:
        return pushed(self.bot.history[-1], SECRET)

    def calls(self, method: str) -> list[dict[str, Any]]:
        return [call for call in self.telegram.calls if call["method"] == method]


def pushed(update: Any, secret: str) -> RawRequest:
    headers = {"x-telegram-bot-api-secret-token": secret}
    return RawRequest(method="POST", headers=headers, body=json.dumps(update).encode())


def config(url: str, webhook_url: str | None = None, **options: Any) -> ChannelConfig:
    return ChannelConfig(
        channel_id="ch",
        name="test",
        options={"api_base": url, "poll_seconds": 1, **options},
        credentials={"token": SecretStr(TOKEN), "secret": SecretStr(SECRET)},
        webhook_url=webhook_url,
    )
