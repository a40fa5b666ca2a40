"""A file from Telegram to a model and back over real processes: received and sent by one replica, worked on by another, byte for byte."""

from __future__ import annotations

import base64
import hashlib

import pytest

from stratus.store import blob
from testbed.eventually import eventually
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram
from testbed.fakes.telegram_checks import File
from testbed.invariants import violations
from testbed.stage import OWNER_OFF, WORKER_OFF, Stage

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 1200
TEXT = "a,b\n" + "1,ä\n" * 600
STATES = "SELECT state, outcome ->> 'reason' AS reason FROM channel_inbox ORDER BY id"


async def add_bot(stage: Stage, url: str) -> None:
    options = {"api_base": url, "poll_seconds": 1, "access": {"mode": "open"}, "drafts": "off"}
    row = await stage.install("telegram", "bot", options, {"token": "7001:a-token", "secret": "of-the-tests"})
    stage.channel_id = row.id


@pytest.mark.parametrize("answer", [504, "hang"])
async def test_an_album_and_a_file_back_cross_two_replicas(stage: Stage, answer: int | str) -> None:
    telegram = FakeTelegram()
    await stage.add_agent("demo", model="fake", tools=["send_file"])
    produced = {"name": "send_file", "args": {"name": "out.csv", "content": TEXT}}
    stage.model.script({"tools": [produced]}, {"text": "Here it is."}, match="look")
    bot = telegram.bot(7001)
    ids = [telegram.add_file(File(f"p{number}.png", "image/png", PNG + bytes([number]))) for number in range(3)]
    telegram.controls.fault({"method": "getFile"}, answer)
    async with FakeServer(telegram.app) as server:
        await add_bot(stage, server.url)
        async with stage.replicas(2, roles=[WORKER_OFF, OWNER_OFF]):
            for number, file_id in enumerate(ids):
                document = {"file_id": file_id, "file_name": f"p{number}.png", "mime_type": "image/png"}
                said = {"caption": "look"} if number == 0 else {}
                await bot.add({"message": {"document": document, "media_group_id": "g1", **said}})
            await eventually(lambda: len(telegram.log) >= 2, 45, "the answer with its file")
            await stage.settled(2, timeout=30)
    text, file = telegram.log
    assert text["text"] == "Here it is."
    sent = TEXT.encode()
    assert (file["attachment"]["size"], file["attachment"]["sha256"]) == (len(sent), hashlib.sha256(sent).hexdigest())
    shown = str(stage.model.calls[0].call.body)
    assert all(base64.b64encode(PNG + bytes([number])).decode() in shown for number in range(3))
    for number in range(3):
        data = PNG + bytes([number])
        assert await blob.get(stage.db, hashlib.sha256(data).digest()) == data
    found = await stage.rows(STATES)
    assert [row["state"] for row in found] == ["routed", "ignored", "ignored"]
    assert len(await stage.run_states()) == 1
    assert await violations(stage.db, at_rest=True) == {}
