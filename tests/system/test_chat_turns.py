"""The terminal client at turns that are lost, merged, or wait for a person who types the answer; the tests play the worker or the gateway."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from stratus.cli.conversation import Conversation
from stratus.domain.errors import CursorExpired
from stratus.http.server import HttpServer
from stratus.store.database import Database
from tests.system.commands import Command, ended
from tests.system.player import Player
from tests.system.web import Web

APPROVAL = "a1b2c3d4-0000-4000-8000-000000000000"
HASH = "0a" * 32
ASKS = {"id": APPROVAL, "call_id": "c1", "name": "pay", "args": '{"sum":1}', "args_hash": HASH}


@pytest.fixture
async def web(dsn: str, db: Database) -> AsyncIterator[Web]:
    async with Web(dsn, db) as running:
        await running.agent()
        yield running


@pytest.fixture
def stratus(dsn: str, tmp_path: Path) -> Command:
    return Command.on(dsn, tmp_path)


async def test_a_lost_attempt_s_text_is_told_to_be_void(web: Web, stratus: Command) -> None:
    process = await stratus.start("chat", "--url", web.url, "--once", "count")
    player = await Player.next(web.db, web.hints)
    await player.say(["lost"])
    await player.resume("recovered")
    player.attempt = 1
    await player.event("text.delta", part=0, text="late")
    player.attempt = 2
    await player.say(["whole"])
    await player.end()
    done = await ended(process)
    told = "stratus: taken up again by another worker, attempt 2; the unfinished text above is written anew\n"
    assert (done.code, done.out, done.err) == (0, "lost\nwhole\n", told)


async def test_the_turn_that_takes_a_message_up_is_followed_from_there_to_its_end(web: Web, stratus: Command) -> None:
    first = await stratus.start("chat", "--url", web.url, "--session", "s1", "--agent", "demo", "--once", "go")
    player = await Player.next(web.db, web.hints)
    await player.say(["before "])
    second = await stratus.start("chat", "--url", web.url, "--session", "s1", "--once", "and hurry")
    await player.merged()
    await player.say(["after"])
    await player.end()
    done = await ended(second)
    assert done.code == 0 and "taken up by the answer" in done.err
    assert done.out == "after\nbefore after\n", "the completed text is told whole, for it is not what was heard"
    assert (await ended(first)).out == "before after\n"


class Asking:
    """A gateway whose one turn asks for an approval, and completes once it is given; `answers` are what it was told."""

    def __init__(self, refusals: int = 0) -> None:
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self._refusals = refusals
        self._decided = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/approvals/"):
            await self._decide(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        said: list[tuple[str, dict[str, Any]]] = [
            ("run.started", {}),
            ("approval.requested", ASKS),
            ("run.waiting", {"for": [{"approval": APPROVAL, "call_id": "c1"}]}),
        ]
        await self._say(send, said, 1)
        await self._decided.wait()
        answer = {"id": APPROVAL, "call_id": "c1", "state": "approved", "by": "Ada"}
        await self._say(send, [("approval.resolved", answer)], 4)
        await self.may_end.wait()
        await self._say(send, [("run.completed", {})], 5)
        await send({"type": "http.response.body", "body": b""})

    async def _say(self, send: Send, events: list[tuple[str, dict[str, Any]]], first: int) -> None:
        told = [{"seq": seq, "attempt": 1, "kind": kind, **more} for seq, (kind, more) in enumerate(events, first)]
        body = "".join(f"id: run:{one['seq']}\ndata: {json.dumps(one)}\n\n" for one in told)
        await send({"type": "http.response.body", "body": body.encode(), "more_body": True})

    async def _decide(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.answers.append((scope["path"].removeprefix("/approvals/"), json.loads((await receive())["body"])))
        refused = len(self.answers) <= self._refusals
        status, body = (409, b'{"detail": "Ben was first."}') if refused else (200, b"{}")
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})
        if not refused:
            self._decided.set()

    def decide_elsewhere(self) -> None:
        """Somebody answers on another way."""
        self._decided.set()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    server = HttpServer(app, "127.0.0.1", 0, grace=1)
    url = f"http://127.0.0.1:{server.listen()}"
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        yield url
        server.stop()


async def _told(process: asyncio.subprocess.Process, text: str) -> str:
    """Read lines on stderr up to one with this text."""
    assert process.stderr is not None
    lines = ""
    async with asyncio.timeout(20):
        while text not in lines:
            line = (await process.stderr.readline()).decode()
            assert line, lines
            lines += line
    return lines


@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "a terminal"])
async def test_an_approval_is_answered_by_typing(stratus: Command, terminal: bool) -> None:
    ours, theirs = os.openpty() if terminal else (os.pipe()[::-1])
    asking = Asking(refusals=1)
    async with serving(asking) as url:
        settings = {"STRATUS_TOKEN": "any"}
        process = await stratus.start("chat", "--url", url, "--agent", "demo", settings=settings, stdin=theirs)
        os.close(theirs)
        os.write(ours, b"go\n")
        told = await _told(process, "waits for an approval of pay")
        assert 'asks to run pay with {"sum":1}' in told and "/approve a1b2c3 or /deny a1b2c3" in told
        os.write(ours, b"yes\n")
        await _told(process, "the agent waits for /approve or /deny")
        os.write(ours, b"/deny a1b2c3\n")
        await _told(process, "Ben was first.")
        os.write(ours, b"/approve a1b2c3d4 only once\n")
        await _told(process, "pay: approved by Ada")
        os.write(ours, b"/approve\n")
        await _told(process, "nothing waits for an answer here")
        os.write(ours, b"\x04") if terminal else os.close(ours)
        assert (await ended(process)).code == 0
    first, second = asking.answers
    assert first == (APPROVAL, {"decision": "deny", "args_hash": HASH})
    assert second == (APPROVAL, {"decision": "approve", "note": "only once", "args_hash": HASH})


async def test_what_is_typed_after_somebody_else_answered_is_the_next_message(stratus: Command) -> None:
    asking = Asking()
    async with serving(asking) as url:
        process = await stratus.start("chat", "--url", url, "--agent", "demo", settings={"STRATUS_TOKEN": "any"})
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        await _told(process, "waits for an approval of pay")
        asking.may_end.clear()
        asking.decide_elsewhere()
        await _told(process, "pay: approved by Ada")
        process.stdin.write(b"go\n")
        asking.may_end.set()
        await _told(process, "pay: approved by Ada")
        assert (await ended(process)).code == 0
    assert asking.answers == []


async def test_a_turn_that_took_a_message_up_and_is_no_longer_kept_is_said() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        status = 409 if scope["method"] == "GET" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        merged = json.dumps({"seq": 2, "kind": "run.merged", "into": "r2"})
        await send({"type": "http.response.body", "body": f"id: r1:2\ndata: {merged}\n\n".encode()})

    async with serving(app) as url:
        talk = Conversation([url], "token", "s1")
        with pytest.raises(CursorExpired):
            async with asyncio.timeout(20):
                assert [event["kind"] async for event in talk.ask("demo", "hi")] == ["run.merged"]
