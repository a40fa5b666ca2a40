"""The fake Telegram as the conformance suite's driver, and the channel that points an adapter at it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr

from stratus.channel import ChannelConfig, RawRequest
from stratus.channel.driver import Fault
from testbed.fakes.telegram import FakeTelegram
from tests.contract import served
from tests.contract.served import Served

TOKEN = "42:AAtests-token"
SECRET = "a-secret-of_tests"
ANSWERS = {**served.ANSWERS, Fault.UNFORMATTED: {"answer": "parse"}}


class TelegramDriver(Served):
    """The fake Telegram under the suite."""

    chat = "7"

    def __init__(self) -> None:
        self.telegram = FakeTelegram()
        self.bot = self.telegram.bot(42)
        super().__init__(self.telegram.app)

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
