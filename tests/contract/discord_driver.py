"""The fake Discord as the conformance suite's driver, and the channel that points an adapter at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr

from adapters.discord import DiscordAdapter
from stratus.channel import ChannelConfig, RawRequest
from stratus.channel.driver import Fault
from testbed.fakes.discord import FakeDiscord
from testbed.fakes.discord_bot import Session, token
from tests.contract.served import ANSWERS, Served

BOT = "4200000000000000042"


class DiscordDriver(Served):
    """The fake Discord under the suite, which thinks of a queue: people say again what a new session has missed."""

    chat = "7000"

    def __init__(self) -> None:
        self.discord = FakeDiscord()
        self.bot = self.discord.bot(BOT)
        self.bot.on_identify = self._again
        self._everything = False
        super().__init__(self.discord.app)

    async def inject(self, text: str) -> None:
        self.bot.say(text, self.chat)

    async def redeliver(self) -> None:
        self._everything = True

    async def acknowledged(self) -> int:
        return len(self.bot.acknowledged())

    async def arm(self, fault: Fault) -> None:
        self.discord.controls.fault({}, **ANSWERS[fault])

    async def sent(self) -> Sequence[str]:
        return [entry["text"] for entry in self.discord.log if not entry["edit"]]

    async def send_calls(self) -> int:
        return len(self.calls("createMessage"))

    async def revoke(self) -> None:
        self.bot.token = "another"
        self.discord.end(self.bot, code=4004)

    async def pushed(self, text: str) -> RawRequest | None:
        return None

    def calls(self, method: str) -> list[dict[str, Any]]:
        return [call for call in self.discord.calls if call["method"] == method]

    def _again(self, session: Session) -> None:
        known = set() if self._everything else self.bot.acknowledged()
        for message in self.bot.said:
            if message["id"] not in known:
                session.emit("MESSAGE_CREATE", message)


def config(url: str, **options: Any) -> ChannelConfig:
    return ChannelConfig(
        channel_id="ch",
        name="test",
        options={"api_base": f"{url}/api/v10", **options},
        credentials={"token": SecretStr(token(BOT))},
    )


def adapter_at(url: str, **options: Any) -> DiscordAdapter:
    """An adapter whose new sessions nobody counts."""
    made = DiscordAdapter(config(url, **options))
    made.use_budget(free)
    return made


async def free() -> None:
    """A budget without bounds."""
