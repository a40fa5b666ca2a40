"""Notifications over real replicas: one op a piece, once for each key whoever asks, and an honest answer where nobody can be reached."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.stage import Stage
from tests.system.commands import Command

LONG = "word " * 1_500
PERSON = "SELECT public_id::text FROM principal WHERE role = 'guest' ORDER BY id LIMIT 1"


async def tell(client: httpx.AsyncClient, key: str, **body: Any) -> httpx.Response:
    return await client.post("/notifications", json={"text": LONG, **body}, headers={"Idempotency-Key": key})


def told(stage: Stage) -> list[str]:
    return [one["text"] for one in stage.platform.log if one["kind"] == "notify"]


async def test_two_replicas_tell_a_person_once_and_each_piece_has_its_receipt(stage: Stage, tmp_path: Path) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(2) as [one, two]:
        await stage.say("in a room", chat="room", direct=False, sender={"id": "u1", "name": "Una"})
        await stage.say("hello", chat="alone", sender={"id": "u1", "name": "Una"})
        await stage.say("in a room", chat="room", direct=False, sender={"id": "u1", "name": "Una"})
        await stage.answered(3, timeout=40)
        user = await stage.value(PERSON)
        async with stage.client(one) as first, stage.client(two) as second:
            key = f"the-same-key-{uuid4()}"
            answers = await asyncio.gather(*(tell(client, key, user=user) for client in (first, second, first, second)))
            assert {answer.status_code for answer in answers} == {202}
            made = [answer.json() for answer in answers]
            assert len({each["id"] for each in made}) == 1 and [each["repeated"] for each in made].count(False) == 1
            await eventually(lambda: len(told(stage)) == 2, 30, "both pieces are told")
            await stage.settled(5, timeout=30)
            stands = (await tell(second, key, user=user)).json()
            assert stands["repeated"] and [op["state"] for op in stands["ops"]] == ["sent", "sent"]
            assert len({op["sent_message_id"] for op in stands["ops"]}) == 2
            assert {one["chat"] for one in stage.platform.log if one["kind"] == "notify"} == {"alone"}
            assert (await tell(first, key, user=user, text="another")).status_code == 422
            assert (await tell(first, key + "2", user=str(uuid4()))).status_code == 404
            owner = await stage.value("SELECT public_id::text FROM principal WHERE role = 'owner'")
            refused = await tell(first, key, user=owner)
            assert refused.status_code == 409 and "cannot be reached" in refused.json()["detail"]
            stage.platform.controls.fault({"chat": "alone"}, 403)
            await tell(first, key + "3", user=user, text="blocked now")

            async def failed() -> bool:
                return bool(await stage.value("SELECT count(*) = 1 FROM channel_outbox WHERE state = 'failed'"))

            await eventually(failed, 30, "the chat refuses")
            assert "refuses the bot" in (await tell(first, key + "4", user=user, text="more")).json()["detail"]
        stratus = Command.on(stage.dsn, tmp_path)
        session = await stage.value("SELECT session_id FROM agent_run WHERE reply_to ->> 'chat' = 'room' LIMIT 1")
        for repeated in (False, True):
            [op] = (await stratus("notify", "from the desk", "--session", session, "--key", "k1", "--json")).json()
            assert op["repeated"] is repeated
        await eventually(lambda: "from the desk" in told(stage), 30, "the room is told")
        await stage.settled(6, timeout=30)
    assert told(stage).count("from the desk") == 1
    assert await violations(stage.db, at_rest=True) == {}


async def test_an_agent_tells_news_once_a_key(stage: Stage) -> None:
    await stage.add_agent("demo", model="fake", tools=["notify"])
    await stage.add_channel()
    news = {"tools": [{"name": "notify", "args": {"text": "the parcel is here", "key": "parcel"}}]}
    for word in ("first", "second"):
        stage.model.script(news, {"text": f"{word} done"}, match=word)
    async with stage.replicas(1):
        await stage.say("first", chat="c1")
        await stage.answered(2, timeout=30)
        await stage.say("second", chat="c2")
        await stage.answered(3, timeout=30)
        await stage.settled(3)
    assert told(stage) == ["the parcel is here"]
    body = stage.model.calls[-1].call.body
    [result] = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    assert "knows already" in result
    assert await violations(stage.db, at_rest=True) == {}
