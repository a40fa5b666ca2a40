"""send_file and notify on real replicas: the person gets the file and the word once, also when the worker died between the act and its commit."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.stage import Stage

NOTICE = {"name": "notify", "args": {"text": "I have begun."}}
FILE = {"name": "send_file", "args": {"name": "sheep.txt", "content": "12 sheep"}}


async def ask(stage: Stage, *turns: dict[str, Any]) -> None:
    await stage.add_agent("demo", model="fake", tools=["notify", "send_file"])
    await stage.add_channel()
    stage.model.script(*turns, match="go")


@pytest.mark.parametrize("point", ["", "tool.before_result=kill*1", "tool.before_result=kill*1@2"])
async def test_a_word_on_the_way_and_a_file_with_the_answer(stage: Stage, point: str) -> None:
    await ask(stage, {"tools": [NOTICE, FILE]}, {"text": "Here it is."})
    armed = {"STRATUS_FAILPOINTS": point} if point else {}
    async with stage.replicas(1, settings=armed) as [first]:
        await stage.say("go")
        if point:
            await eventually(lambda: not first.running(), 20, "the worker died")
        async with stage.replicas(1):
            sent = await stage.answered(3, timeout=30)
            await stage.settled(3)
    assert sent[:2] == ["I have begun.", "Here it is."]
    kinds = [one["kind"] for one in stage.platform.log]
    assert kinds == ["notify", "send_reply", "send_attachment"]
    attachment = stage.platform.log[2]["attachment"]
    assert (attachment["name"], base64.b64decode(attachment["base64"])) == ("sheep.txt", b"12 sheep")
    [event] = await stage.rows("SELECT payload FROM session_event WHERE kind = 'file.produced'")
    assert "sheep.txt" in str(event["payload"])
    assert await violations(stage.db, at_rest=True) == {}


async def test_somebody_who_cannot_be_reached_is_told_to_the_model(stage: Stage) -> None:
    await ask(stage, {"tools": [{**NOTICE, "args": {"text": "x", "channel": "nowhere"}}]}, {"text": "over"})
    async with stage.replicas(1):
        await stage.say("go")
        assert await stage.answered(1) == ["over"]
    body = stage.model.calls[-1].call.body
    [result] = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    assert "cannot be reached on the channel 'nowhere'" in result
