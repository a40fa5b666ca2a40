"""The platforms as a test or a bench sees them: one `Side` each, with a bot of its own, the faults it can answer with, and gates that hold calls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol
from uuid import uuid4

from testbed.fakes.controls import Controls, Gate
from testbed.fakes.discord import FakeDiscord
from testbed.fakes.discord_bot import token
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram
from testbed.stage import Stage

# What a platform can do to a call: refuse it for a while (429), refuse it for good, or take it and then not say so.
Fault = Literal["flood", "refused", "lost", "reset"]
FLOOD_SECONDS = 2
FILE = "(file)"  # how a file shows among the texts


class Side(Protocol):
    """One bot on one platform. `options` and `credentials` are what its channel is configured with.

    `markup`: the adapter sends Markdown in a form that the platform may refuse, and then once more in plain text. `chat(n)` makes an id that
    the platform takes. `same_key`: it takes an op's key again with no second effect, so that a lost answer is asked for anew.
    """

    name: str
    platform: str
    markup: bool
    same_key: bool

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def credentials(self) -> Mapping[str, str]: ...

    def chat(self, number: int) -> str: ...

    async def say(self, text: str, chat: str) -> None:
        """A person writes in a one-to-one chat."""

    def sent(self, chat: str) -> list[str]:
        """Texts (a file: FILE) that the platform has taken, in order."""

    def calls(self, chat: str) -> list[str]:
        """The same of every call that sends, whatever became of it."""

    def fault(self, fault: Fault, chat: str, text: str = "") -> None:
        """Answer the next call for this chat whose text contains `text` (FILE: that sends a file) so; a flood lasts FLOOD_SECONDS."""

    def refuse_markup(self, chat: str) -> None:
        """Refuse the next call's formatting."""

    def hold(self, name: str, chat: str, text: str, point: str = "before") -> Gate:
        """Hold calls before they take effect, or after."""

    def release(self, name: str) -> None:
        """Let them go."""


class _Side:
    """What the sides share: faults and gates are those of a fake's controls.

    `lost` is how the fake takes a call and then answers with a page of a proxy; `of_files` matches the calls that send files.
    """

    __test__ = False

    platform: str
    markup = same_key = False
    lost = "store_then_502html"
    of_files: Mapping[str, Any]

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def fault(self, fault: Fault, chat: str, text: str = "") -> None:
        answers: dict[Fault, int | str] = {"flood": 429, "refused": 400, "lost": self.lost, "reset": "store_then_reset"}
        about = self.of_files if text == FILE else {"text": {"contains": text}} if text else {}
        options = {"retry_after": FLOOD_SECONDS} if fault == "flood" else {}
        self._controls.fault({"chat": chat, **about}, answers[fault], **options)

    def refuse_markup(self, chat: str) -> None:
        raise NotImplementedError(f"{self.platform} takes every text")

    def hold(self, name: str, chat: str, text: str, point: str = "before") -> Gate:
        return self._controls.hold(name, {"chat": chat, "text": {"contains": text}}, point)

    def release(self, name: str) -> None:
        self._controls.release(name)


class TestchanSide(_Side):
    """The test platform."""

    name = platform = "testchan"
    lost = "store_then_502"
    of_files = {"kind": "send_attachment"}

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.platform.controls)
        self._stage = stage
        self.bot = f"bot-{uuid4().hex[:8]}"

    @property
    def options(self) -> Mapping[str, Any]:
        return {"base_url": self._stage.platform_url, "bot": self.bot, "wait": 2}

    @property
    def credentials(self) -> Mapping[str, str]:
        return {"secret": "webhook-secret"}

    def chat(self, number: int) -> str:
        return f"{self.bot}-{number}"

    async def say(self, text: str, chat: str) -> None:
        await self._stage.say(text, chat, bot=self.bot)

    def sent(self, chat: str) -> list[str]:
        return [_shown(one) for one in self._stage.platform.log if one["chat"] == chat]

    def calls(self, chat: str) -> list[str]:
        return [_shown(one) for one in self._stage.platform.calls if one["chat"] == chat]


class TelegramSide(_Side):
    """A Telegram bot."""

    name = platform = "telegram"
    markup = True
    of_files = {"method": ["sendPhoto", "sendDocument"]}

    def __init__(self, telegram: FakeTelegram, url: str, number: int) -> None:
        super().__init__(telegram.controls)
        self._telegram = telegram
        self._url = url
        self._number = number

    @property
    def options(self) -> Mapping[str, Any]:
        return {"api_base": self._url, "poll_seconds": 1}

    @property
    def credentials(self) -> Mapping[str, str]:
        return {"token": f"{self._number}:a-token", "secret": "secret-of-the-tests"}

    def chat(self, number: int) -> str:
        return str(self._number * 100 + number)

    async def say(self, text: str, chat: str) -> None:
        place = {"id": int(chat), "type": "private"}
        await self._telegram.bot(self._number).add({"message": {"text": text, "chat": place}})

    def sent(self, chat: str) -> list[str]:
        return [FILE if "attachment" in one else one["text"] for one in self._telegram.log if one["chat"] == chat]

    def calls(self, chat: str) -> list[str]:
        sends = [one for one in self._telegram.calls if one["method"].startswith("send")]
        mine = [one for one in sends if str(one["params"].get("chat_id")) == chat]
        return [one["params"].get("text", "") if one["method"] == "sendMessage" else FILE for one in mine]

    def refuse_markup(self, chat: str) -> None:
        self._controls.fault({"chat": chat}, "parse")


class DiscordSide(_Side):
    """A Discord bot."""

    name = platform = "discord"
    same_key = True
    of_files = {"attachments": {"contains": "filename"}}

    def __init__(self, discord: FakeDiscord, url: str, number: int) -> None:
        super().__init__(discord.controls)
        self._discord = discord
        self._url = url
        self._bot = discord.bot(str(4_300_000_000_000_000_000 + number))
        self._bot.beat_seconds = 2.0  # on a busy machine, an answer within 0.3 s is much to ask
        self._number = number

    @property
    def options(self) -> Mapping[str, Any]:
        return {"api_base": f"{self._url}/api/v10"}

    @property
    def credentials(self) -> Mapping[str, str]:
        return {"token": token(self._bot.id)}

    def chat(self, number: int) -> str:
        return str(self._number * 100 + number)

    async def say(self, text: str, chat: str) -> None:
        self._bot.say(text, chat)

    def sent(self, chat: str) -> list[str]:
        return [FILE if one["attachment"] else one["text"] for one in self._discord.log if one["chat"] == chat]

    def calls(self, chat: str) -> list[str]:
        sends = [one["params"] for one in self._discord.calls if one["method"] == "createMessage"]
        return [FILE if one.get("attachments") else one["content"] for one in sends if one["chat"] == chat]


SIDES = ("testchan", "telegram", "discord")


class Sides:
    """Makes a side of its own for each case; `close` ends what was started for them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._telegram = FakeTelegram()
        self._number = 500
        self._stack = contextlib.AsyncExitStack()
        self._telegram_url = ""
        self._discord = FakeDiscord()
        self._discord_url = ""

    async def make(self, name: str) -> Side:
        """A bot that nobody else uses."""
        if name == "testchan":
            return TestchanSide(self._stage)
        if name == "discord":
            if not self._discord_url:
                self._discord_url = (await self._stack.enter_async_context(FakeServer(self._discord.app))).url
            self._number += 1
            return DiscordSide(self._discord, self._discord_url, self._number)
        if not self._telegram_url:
            server = await self._stack.enter_async_context(FakeServer(self._telegram.app))
            self._telegram_url = server.url
        self._number += 1
        return TelegramSide(self._telegram, self._telegram_url, self._number)

    async def close(self) -> None:
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def sides_on(stage: Stage) -> AsyncIterator[Sides]:
    """Sides for the cases on this stage."""
    sides = Sides(stage)
    try:
        yield sides
    finally:
        await sides.close()


async def add_side(stage: Stage, side: Side, **options: Any) -> int:
    """Add the side's channel for the agent `demo`; returns its row's id."""
    config = {**side.options, "access": {"mode": "open"}, **options}
    row = await stage.install(side.platform, f"{side.name}-{uuid4().hex[:8]}", config, side.credentials)
    stage.channel_id, stage.channel_uuid = row.id, str(row.public_id)
    return row.id


def _shown(body: Mapping[str, Any]) -> str:
    return FILE if body.get("attachment") else str(body.get("text", ""))
