"""Two Telegram bots of ours in one group, against a server that keeps the Bot API's rules: one answers, once, whoever saw the message."""

from __future__ import annotations

from typing import Any

from testbed.eventually import eventually
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram
from testbed.invariants import violations
from testbed.stage import Stage

SUPERGROUP = {"id": -100500, "type": "supergroup"}
BASIC = {"id": -500, "type": "group"}
DECISIONS = "SELECT m.state, r.name AS responder FROM group_message m LEFT JOIN channel r ON r.id = m.responder_id ORDER BY m.id"
CONNECTED = "SELECT count(*) FROM channel WHERE account_key IS NOT NULL"
ACCOUNTS = "SELECT account_key, state FROM channel_outbox ORDER BY id"


def mention(text: str, name: str) -> dict[str, Any]:
    return {"text": text, "entities": [{"type": "mention", "offset": text.index(name), "length": len(name)}]}


async def test_of_two_bots_that_see_a_message_the_one_that_is_meant_answers(stage: Stage) -> None:
    telegram = FakeTelegram()
    async with FakeServer(telegram.app) as server:
        await stage.add_agent()
        for number in (1, 2):
            config = {"api_base": server.url, "poll_seconds": 1, "access": {"mode": "open"}, "drafts": "off"}
            await stage.install("telegram", f"bot-{number}", config, {"token": f"{number}:a-token", "secret": "s"})
        one, two = telegram.bot(1), telegram.bot(2)

        async def sent(count: int) -> None:
            await eventually(lambda: len(telegram.log) >= count, 40, f"{count} answers")
            await stage.settled(count, timeout=30)

        async def decided(count: int) -> None:
            async def there() -> bool:
                return len(await stage.rows(DECISIONS)) == count

            await eventually(there, 30, f"{count} decisions")

        async with stage.replicas(2):

            async def connected() -> bool:
                return bool(await stage.value(CONNECTED) == 2)

            await eventually(connected, 30, "both bots are known")
            # By a username, which only its own bot can tell: the other saw it first.
            asked = {"chat": SUPERGROUP, "message_id": 11, **mention("hello @bot2_bot", "@bot2_bot")}
            await one.add({"message": asked})
            await decided(1)
            await two.add({"message": asked})
            await sent(1)
            # By its id, in a reply: the other hands it over, and its own view of it is a repeat.
            answer = {"message_id": 12, "from": {"id": 2, "is_bot": True}, "chat": SUPERGROUP}
            reply = {"chat": SUPERGROUP, "message_id": 13, "text": "go on", "reply_to_message": answer}
            await one.add({"message": reply})
            await sent(2)
            await two.add({"message": reply})
            # In a basic group the same number is another message for each bot.
            for bot, name in ((one, "@bot1_bot"), (two, "@bot2_bot")):
                await bot.add({"message": {"chat": BASIC, "message_id": 21, **mention(f"hi {name}", name)}})
            await sent(4)
            await decided(4)
    assert [entry["bot"] for entry in telegram.log][:2] == [2, 2]
    assert sorted(entry["bot"] for entry in telegram.log) == [1, 2, 2, 2]
    found = await stage.rows(DECISIONS)
    assert [(row["state"], row["responder"]) for row in found][:2] == [("accept", "bot-2")] * 2
    accounts = await stage.rows(ACCOUNTS)
    assert [row["account_key"] for row in accounts][:2] == ["2", "2"]
    assert await violations(stage.db, at_rest=True) == {}
