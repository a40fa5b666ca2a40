"""The terminal client over real HTTP: what it prints, how it goes on after a break, how it stops, and what it refuses.

The tests play the worker, so that they decide when each word of an answer is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from stratus.cli.conversation import Conversation
from stratus.domain.run import RunEvent
from stratus.domain.values import RunError
from stratus.http.server import HttpServer
from stratus.store.database import Database
from testbed.eventually import eventually
from testbed.sockets import ReservedPort
from tests.store.world import rows
from tests.system.commands import Command, ended
from tests.system.player import Player
from tests.system.web import Web

WORDS = ("one ", "two\u2028 ", "three ", "four")
CANCELED = "SELECT session_id FROM session_execution WHERE cancel_requested"


@pytest.fixture
async def web(dsn: str, db: Database) -> AsyncIterator[Web]:
    async with Web(dsn, db) as running:
        await running.agent()
        yield running


@pytest.fixture
def stratus(dsn: str, tmp_path: Path) -> Command:
    return Command.on(dsn, tmp_path)


async def _printed(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert (await process.stdout.readexactly(len(text.encode()))).decode() == text


async def test_an_answer_is_printed_as_it_comes_and_once(web: Web, stratus: Command) -> None:
    process = await stratus.start("chat", "--url", web.url, "--once", "count")
    turn = await Player.next(web.db, web.hints)
    await turn.say(WORDS[:2])
    await _printed(process, "one two\ufffd ")
    await turn.say(WORDS[2:])
    await turn.end()
    done = await ended(process)
    assert (done.code, done.out, done.err) == (0, "three four\n", "")


async def test_text_that_was_never_streamed_is_printed_when_it_is_complete(web: Web, stratus: Command) -> None:
    process = await stratus.start("chat", "--url", web.url, "--once", "count", "--json")
    turn = await Player.next(web.db, web.hints)
    turn.said = "whole"
    await turn.end()
    events = [json.loads(line) for line in (await ended(process)).out.splitlines()]
    assert [event["kind"] for event in events][-3:] == ["text.completed", "message.assistant", "run.completed"]
    process = await stratus.start("chat", "--url", web.url, "--once", "count")
    turn = await Player.next(web.db, web.hints)
    turn.said = "whole"
    await turn.end()
    assert (await ended(process)).out == "whole\n"


async def test_it_goes_on_at_another_replica_without_gap_or_repeat(web: Web, dsn: str, stratus: Command) -> None:
    async with Web(dsn) as first:
        process = await stratus.start("chat", "--url", first.url, "--url", web.url, "--once", "count")
        turn = await Player.next(web.db, web.hints)
        await turn.say(WORDS[:1])
        await _printed(process, "one ")
    await turn.say(WORDS[1:])
    await turn.end()
    done = await ended(process)
    assert (done.code, done.out, done.err) == (0, "two\ufffd three four\n", "")


async def test_a_message_meant_for_a_dead_replica_reaches_another_one_once(web: Web, stratus: Command) -> None:
    with ReservedPort() as nobody:
        dead = f"http://127.0.0.1:{nobody.number}"
        process = await stratus.start("chat", "--url", dead, "--url", web.url, "--agent", "demo", "--once", "hi")
        turn = await Player.next(web.db, web.hints)
        await turn.end()
        assert (await ended(process)).code == 0
    assert len(await rows(web.db, "SELECT id FROM agent_run")) == 1


async def test_ctrl_c_stops_the_turn_and_the_end_is_awaited(web: Web, stratus: Command) -> None:
    process = await stratus.start("chat", "--url", web.url, "--once", "count")
    turn = await Player.next(web.db, web.hints)
    await turn.say(WORDS[:1])
    await _printed(process, "one ")
    process.send_signal(signal.SIGINT)

    async def asked() -> bool:
        return bool(await rows(web.db, CANCELED))

    await eventually(asked, 20, "the stop in the database")
    await turn.end(RunEvent.CANCEL)
    done = await ended(process)
    assert done.code == 1 and done.err.splitlines()[-1] == "stratus: canceled"


async def test_a_failed_turn_says_why_and_fails(web: Web, stratus: Command) -> None:
    process = await stratus.start("chat", "--url", web.url, "--once", "count")
    turn = await Player.next(web.db, web.hints)
    await turn.end(RunEvent.FAIL, RunError(code="overloaded", message="The model is overloaded.\x1b[2J"))
    assert (await ended(process)).refused() == "failed: The model is overloaded.\ufffd[2J"


async def test_a_reader_that_goes_away_ends_it_quietly(web: Web, stratus: Command) -> None:
    source, sink = os.pipe()
    os.close(source)
    process = await stratus.start("chat", "--url", web.url, "--once", "count", "--json", stdout=sink)
    os.close(sink)
    done = await ended(process)
    assert (done.code, done.err) == (1, "")


async def test_what_the_gateway_refuses_is_one_line(web: Web, stratus: Command) -> None:
    chat = ["chat", "--url", web.url]
    wrong = await stratus(*chat, "--once", "hi", settings={"STRATUS_TOKEN": "wrong"})
    assert "a valid bearer token" in wrong.refused()
    assert "there is no agent nobody" in (await stratus(*chat, "--agent", "nobody", "--once", "hi")).refused()
    oversize = await stratus(*chat, "--agent", "demo", said="x" * 1_100_000 + "\n")
    assert "1" in oversize.refused() and "x" * 100 not in oversize.err


async def test_a_token_of_ours_is_not_shown_to_a_strange_address(stratus: Command) -> None:
    done = await stratus("chat", "--url", "http://192.0.2.1:8321", "--once", "hi")
    assert "set STRATUS_TOKEN to a token for http://192.0.2.1:8321" in done.refused()


async def test_no_gateway_is_said_soon(stratus: Command) -> None:
    with ReservedPort() as nobody:
        url = f"http://127.0.0.1:{nobody.number}"
        done = await stratus("chat", "--url", url, "--once", "hi", settings={"STRATUS_TOKEN": "any"})
    assert f"no gateway answers at {url}" in done.refused()


def _scripted(calls: list[tuple[str, str, str]]) -> ASGIApp:
    """A replica whose stream breaks off after two events, and whose log then no longer reaches back to the reader's place."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        calls.append((scope["method"], headers.get("idempotency-key", ""), headers.get("last-event-id", "")))
        status = 409 if scope["method"] == "GET" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        kinds = ["run.queued", "text.delta", "text.delta", "run.completed"][: 2 if len(calls) == 1 else 4]
        events = [{"seq": seq, "kind": kind, "text": f"{seq}"} for seq, kind in enumerate(kinds, 1)]
        body = "".join(f"id: run:{one['seq']}\ndata: {json.dumps(one)}\n\n" for one in events)
        await send({"type": "http.response.body", "body": body.encode() if status == 200 else b"{}"})

    return app


async def test_a_place_that_the_log_has_lost_is_found_again_by_the_messages_own_key() -> None:
    calls: list[tuple[str, str, str]] = []
    server = HttpServer(_scripted(calls), "127.0.0.1", 0, grace=1)
    url = f"http://127.0.0.1:{server.listen()}"
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        talk = Conversation([url], "token", "s1")
        assert [event["seq"] async for event in talk.ask("demo", "hi")] == [1, 2, 3, 4]
        server.stop()
    [first, second, third] = calls
    assert (first[0], second, third[0]) == ("POST", ("GET", "", "run:2"), "POST")
    assert first[1] == third[1] and len(first[1]) >= 16
