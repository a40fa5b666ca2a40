"""The Discord adapter's receiving against the fake gateway: sessions that go on elsewhere, gaps, heartbeats, close codes, commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from adapters.discord import DiscordAdapter
from adapters.discord.interactions import COMMANDS
from stratus.channel import AccountStopped, Event, Misconfigured, Op, StartRefused
from stratus.channel.protocol import Cursor
from stratus.channel.suite import CountedGuard, Delivered, receiving
from testbed.eventually import eventually
from tests.contract.discord_driver import DiscordDriver, adapter_at, config, free


@pytest.fixture
async def driver() -> AsyncIterator[DiscordDriver]:
    async with DiscordDriver() as made:
        made.bot.on_identify = None
        yield made


@pytest.fixture
async def adapter(driver: DiscordDriver) -> AsyncIterator[DiscordAdapter]:
    made = adapter_at(driver.url)
    yield made
    await made.close()


def starts(driver: DiscordDriver) -> list[str]:
    """What sessions were asked for, and how connections ended, in order."""
    return [entry["what"] for entry in driver.bot.gateway_log]


class Slow(Delivered):
    """Stores a batch of events only when `let` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()

    async def __call__(self, events: Sequence[Event], cursor: Cursor | None) -> None:
        if events:
            await self.let.wait()
        await super().__call__(events, cursor)


async def until_texts(delivered: Delivered, *texts: str) -> None:
    await delivered.until(lambda: [event.text for event in delivered.events if event.text] == list(texts))


async def test_another_process_goes_on_with_the_session(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    first, second = Delivered(), Delivered()
    async with receiving(adapter, first):
        await first.until(lambda: first.batches >= 1)
        driver.bot.say("one")
        await until_texts(first, "one")
    driver.bot.say("while nobody listens")
    other = adapter_at(driver.url)
    async with receiving(other, second, first.cursor):
        driver.bot.say("after")
        await until_texts(second, "while nobody listens", "after")
    await other.close()
    assert [what for what in starts(driver) if what != "left"] == ["identify", "resume"]
    left = [entry["code"] for entry in driver.bot.gateway_log if entry["what"] == "left"]
    assert left and not {1000, 1001}.intersection(left)


async def test_discord_hears_of_no_sequence_that_is_not_stored(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Slow()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 2)
        driver.bot.say("held")
        beats = _beats(driver)
        await eventually(lambda: _beats(driver) >= beats + 3, what="heartbeats while the database is slow")
        assert driver.bot.acknowledged() == set()
        delivered.let.set()
        await eventually(lambda: len(driver.bot.acknowledged()) == 1, what="the stored message to be acknowledged")


async def test_a_lost_session_is_filled_from_the_history_once(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        driver.bot.say("known")
        driver.bot.say("in a server", "7001", guild_id="9", mentions=[driver.bot.user()])
        await until_texts(delivered, "known", "in a server")
    driver.discord.end(driver.bot, forget=True)
    for number in range(120):
        driver.bot.say(f"missed {number}")
    driver.bot.say("missed there", "7001", guild_id="9", mentions=[driver.bot.user()])
    second = Delivered()
    other = adapter_at(driver.url)
    async with receiving(other, second, delivered.cursor):
        await second.until(lambda: second.cursor is not None and not second.cursor["gap"] and second.batches > 2)
        driver.bot.say("live")
        await second.until(lambda: second.events[-1].text == "live")
    await other.close()
    assert starts(driver).count("identify") == 2
    before = {event.key for event in delivered.events}
    fresh = [event for event in second.events if event.key not in before]
    assert [event.text for event in fresh if event.chat == "7000"] == [f"missed {n}" for n in range(120)] + ["live"]
    [there] = [event for event in fresh if event.chat == "7001"]
    assert (there.text, there.direct, there.addressed) == ("missed there", False, True)


async def test_a_crash_in_the_backfill_does_it_again(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        driver.bot.say("known")
        await until_texts(delivered, "known")
    driver.discord.end(driver.bot, forget=True)
    driver.bot.say("missed")
    driver.discord.controls.hold("history", {"method": "getMessages"})
    crashed, after = Delivered(), Delivered()
    async with receiving(adapter, crashed, delivered.cursor):
        await eventually(lambda: driver.discord.controls.gates["history"].held == 1, what="the backfill")
    assert crashed.cursor is not None and crashed.cursor["gap"]
    driver.discord.controls.release("history")
    other = adapter_at(driver.url)
    async with receiving(other, after, crashed.cursor):
        await after.until(lambda: any(event.text == "missed" for event in after.events))
    await other.close()
    assert [what for what in starts(driver) if what != "left"] == ["identify", "resume", "identify", "resume"]


async def test_a_request_to_reconnect_is_no_failure(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        driver.discord.end(driver.bot, op=7)
        driver.bot.say("after")
        await until_texts(delivered, "after")
    assert [what for what in starts(driver) if what != "left"] == ["identify", "resume"]


async def test_a_heartbeat_without_an_answer_ends_the_connection(
    adapter: DiscordAdapter, driver: DiscordDriver
) -> None:
    delivered = Delivered()
    driver.bot.acks = False
    async with receiving(adapter, delivered):
        await eventually(lambda: "resume" in starts(driver), what="another connection")
        driver.bot.acks = True
        driver.bot.say("heard")
        await until_texts(delivered, "heard")
    codes = [entry["code"] for entry in driver.bot.gateway_log if entry["what"] == "left"]
    assert codes[0] == 4000
    assert starts(driver).count("identify") == 1


@pytest.mark.parametrize("code", [4007, 4009])
async def test_some_close_codes_want_a_new_session(adapter: DiscordAdapter, driver: DiscordDriver, code: int) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        driver.discord.end(driver.bot, code=code)
        await eventually(lambda: starts(driver).count("identify") == 2, what="a new session")
    assert "resume" not in starts(driver)


@pytest.mark.parametrize("code", [4010, 4011, 4012, 4013, 4014])
async def test_what_only_an_operator_can_mend_is_not_tried_again(
    adapter: DiscordAdapter, driver: DiscordDriver, code: int
) -> None:
    driver.bot.close_codes = [code]
    with pytest.raises(Misconfigured, match=str(code)):
        await adapter.receive(None, Delivered())
    assert starts(driver).count("identify") == 1


async def test_a_missing_intent_says_what_to_switch_on(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    driver.bot.message_content = False
    with pytest.raises(Misconfigured, match="MESSAGE CONTENT INTENT"):
        await adapter.receive(None, Delivered())
    delivered = Delivered()
    modest = adapter_at(driver.url, message_content=False)
    async with receiving(modest, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        driver.bot.say("", "7001", guild_id="9")
        await delivered.until(lambda: bool(delivered.events))
    await modest.close()
    assert [event.kind for event in delivered.events] == ["other"]


async def test_refused_credentials_end_it(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    driver.bot.close_codes = [4004]
    with pytest.raises(AccountStopped):
        await adapter.receive(None, Delivered())


async def test_no_session_starts_without_the_budget(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    async def refuse() -> None:
        raise StartRefused("too many", 90.0)

    adapter.use_budget(refuse)
    with pytest.raises(StartRefused):
        await asyncio.wait_for(adapter.receive(None, Delivered()), 10)
    uncounted = DiscordAdapter(config(driver.url))
    with pytest.raises(AccountStopped):
        await asyncio.wait_for(uncounted.receive(None, Delivered()), 10)
    await uncounted.close()
    driver.bot.starts_left = 5
    adapter.use_budget(free)
    with pytest.raises(StartRefused) as caught:
        await asyncio.wait_for(adapter.receive(None, Delivered()), 10)
    assert caught.value.retry_after == 14_400
    assert starts(driver).count("identify") == 0


# -- commands and buttons --


async def test_a_command_is_acknowledged_before_it_is_stored(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Slow()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        options = [{"name": "name", "type": 3, "value": "blair"}]
        made = driver.bot.interact({"name": "agent", "type": 1, "options": options})
        state = driver.bot.interactions[made["id"]]
        await eventually(lambda: state["type"] == 5, what="the deferral while the database is slow")
        assert (state["flags"], state["ended"], delivered.events) == (64, False, [])
        delivered.let.set()
        await eventually(lambda: state["ended"], what="the end of thinking")
    [event] = delivered.events
    assert (event.kind, event.command, event.text, event.key) == (
        "command",
        "agent",
        "blair",
        f"interaction:{made['id']}",
    )
    assert "token" not in event.payload


async def test_a_command_that_cannot_be_acknowledged_is_stored(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    driver.discord.controls.fault({"method": "answerInteraction"}, 500)
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        driver.bot.interact({"name": "status", "type": 1})
        await delivered.until(lambda: bool(delivered.events))
    assert delivered.events[0].command == "status"


async def test_a_tap_on_a_button_is_a_callback(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        prompt = driver.bot.message("Allow?", "7000", driver.bot.id)
        made = driver.bot.interact({"custom_id": "opaque-1", "component_type": 2}, type=3, message=prompt)
        await delivered.until(lambda: bool(delivered.events))
        await eventually(lambda: driver.bot.interactions[made["id"]]["type"] == 6, what="the deferral")
    [event] = delivered.events
    assert (event.kind, event.callback, event.message_id, event.sender.id) == (
        "callback",
        "opaque-1",
        prompt["id"],
        "4711",
    )


async def test_commands_are_registered_once(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    for _ in range(2):
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await eventually(lambda: len(driver.bot.commands) == len(COMMANDS), what="the commands")
            await eventually(lambda: bool(driver.calls("getCommands")), what="the look at them")
        driver.discord.end(driver.bot, forget=True)
    assert len(driver.calls("putCommands")) == 1
    assert {one["name"] for one in driver.bot.commands} >= {
        "new",
        "stop",
        "status",
        "approve",
        "deny",
        "agents",
        "help",
    }


async def test_our_own_message_tells_of_its_op(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: delivered.batches >= 1)
        made = {"id": 1, "kind": "send_text", "chat": "7000", "text": "hi", "key": "k1"}
        receipt = await adapter.send(Op.model_validate(made), CountedGuard())
        await delivered.until(lambda: bool(delivered.events))
    [event] = delivered.events
    assert (event.kind, event.echo, event.message_id) == ("other", "k1", receipt.message_id)


def _beats(driver: DiscordDriver) -> int:
    return sum(session.beats for session in driver.bot.sessions.values())
