"""Rates: from when a bot, and each of its chats, may be sent to again. They are rows, so they hold for every replica and outlive each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratus.channel.values import Limits
from stratus.store.database import Connection, Database

# The row of the bot itself.
BOT = ""
# What a bot or a chat may be sent at once, beside the platform's own burst, as a share of what it takes a second.
_BURST_SHARE = 0.25
_FORGET = """
DELETE FROM channel_rate WHERE channel_id = $1 AND next_at < clock_timestamp() - interval '10 minutes'
"""


@dataclass(frozen=True)
class Rates:
    """What a platform takes: messages a second in a chat, in a group (a chat whose id begins with `group_prefix`, "" for none) and of the bot.

    `burst` is how many may go at once after a pause. `by_chat` says that all threads of a chat count together.
    """

    chat: float = 1e6
    group: float = 1e6
    bot: float = 1e6
    burst: int = 1
    group_prefix: str = ""
    by_chat: bool = False

    def parameters(self) -> list[Any]:
        """For the statement that claims intents: intervals in seconds, and bursts."""
        return [
            1 / self.chat,
            1 / self.group,
            1 / self.bot,
            max(self.burst, int(self.chat * _BURST_SHARE)),
            max(self.burst, int(self.bot * _BURST_SHARE)),
            self.group_prefix,
            self.by_chat,
        ]


UNLIMITED = Rates()


def rates_of(limits: Limits, options: Mapping[str, Any]) -> Rates:
    """A platform's rates; the options `chat_rate` and `bot_rate` of a channel, messages a second, go before them (for groups too).

    Raises ValueError for an option that is no number above 0.
    """
    chat, bot = _option(options, "chat_rate"), _option(options, "bot_rate")
    return Rates(
        chat=chat or limits.chat_rate,
        group=chat or limits.group_rate or limits.chat_rate,
        bot=bot or limits.bot_rate,
        burst=limits.burst,
        group_prefix=limits.group_prefix,
        by_chat=limits.rate_by == "chat",
    )


def _option(options: Mapping[str, Any], name: str) -> float | None:
    if options.get(name) is None:
        return None
    value = float(options[name])
    if not 0 < value <= 1e6:
        raise ValueError(f"the option {name} must be a number of messages a second, above 0")
    return value


async def forget(db: Database, channel_id: int) -> None:
    """Drop what has no bearing any more on a channel: what could be sent to long since."""

    async def work(connection: Connection) -> None:
        await connection.execute(_FORGET, channel_id)

    await db.transact(work, idempotent=True, autocommit=True)
