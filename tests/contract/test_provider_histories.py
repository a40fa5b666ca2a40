"""Conversations that are stored, resumed and moved from one provider to another: each wire takes what the others made.

The fake refuses what the real wires refuse (testbed/fakes), so an answer is the proof.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratus.domain.values import Message, ToolCallPart
from tests.contract.provider_bench import ADD, WIRES, Bench, opened, result_of, stored, user


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with opened() as made:
        yield made


async def turn(bench: Bench, wire: str, history: list[Message], text: str) -> list[Message]:
    """One turn with reasoning, two calls and an answer, stored after each step as a turn does it."""
    calls = [{"name": "add", "args": {"a": 1, "b": n}} for n in range(2)]
    bench.fake.script({"thinking": f"about {text}", "text": "Adding.", "tools": calls}, {"text": "done"}, match=text)
    messages = [*history, user(text)]
    said = stored((await bench.answer(wire, *messages, tools=[ADD])).message)
    messages += [said, stored(result_of(said))]
    done = await bench.answer(wire, *messages, tools=[ADD])
    assert done.message.text() == "done", bench.body()
    return [*messages, stored(done.message)]


def sent(bench: Bench) -> list[str]:
    return [json.dumps(logged.call.body) for logged in bench.fake.calls]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_resumed_conversation_sends_what_it_would_have_sent(bench: Bench, wire: str) -> None:
    calls = [{"name": "add", "args": '{"b": 1, "a":  2}'}, {"name": "add", "args": '{"a": 1'}]
    bench.fake.script(
        {"thinking": "hm", "text": "Adding.", "tools": calls}, {"thinking": "so", "text": "3"}, match="go"
    )
    kept, resumed = [user("go")], [user("go")]
    for _ in range(2):
        done = await bench.answer(wire, *kept, tools=[ADD])
        for history, store in ((kept, False), (resumed, True)):
            message = stored(done.message) if store else done.message
            history += [message, result_of(message)] if message.calls() else [message, user("go on")]
    await bench.answer(wire, *kept, tools=[ADD])
    await bench.answer(wire, *resumed, tools=[ADD])
    never_stored, stored_and_read = sent(bench)[-2:]
    assert never_stored == stored_and_read
    assert ("fake-signature" if wire == "anthropic" else "hm") in stored_and_read
    if wire == "openai-responses":
        assert "fake-sealed-reasoning" in stored_and_read and '"rs_1"' in stored_and_read


@pytest.mark.parametrize(("home", "away"), list(itertools.permutations(WIRES, 2)))
async def test_a_conversation_moves_to_another_provider_and_back(bench: Bench, home: str, away: str) -> None:
    history = await turn(bench, home, [], "first")
    at_home = json.dumps(bench.body())
    history = await turn(bench, away, history, "second")
    abroad = json.dumps(bench.body())
    history = await turn(bench, home, history, "third")
    back = json.dumps(bench.body())
    for own in own_marks(home):
        assert own in at_home and own in back, "what is its own it hears again"
        assert own not in abroad, "what is another's it does not"
    assert [logged.outcome for logged in bench.fake.calls] == ["answered"] * 6


def own_marks(wire: str) -> list[str]:
    return {"anthropic": ["fake-signature"], "openai-responses": ["fake-sealed-reasoning"], "openai-chat": []}[wire]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("call_id", ["call_1~2", "functions.add:0", "x" * 80, "ü"])
async def test_a_call_id_that_only_its_maker_takes_stands_in_nobodys_way(bench: Bench, wire: str, call_id: str) -> None:
    said = Message(role="assistant", parts=[ToolCallPart(call_id=call_id, name="add", args='{"a": 1, "b": 2}')])
    done = await bench.answer(wire, user("2+3?"), said, result_of(said), tools=[ADD])
    assert done.message.text() == "echo: 2+3?"


@pytest.mark.parametrize("wire", WIRES)
async def test_messages_with_nothing_to_say_stand_in_nobodys_way(bench: Bench, wire: str) -> None:
    blank: list[Any] = [{"kind": "text", "text": " \n"}]
    silent = Message.model_validate({"role": "assistant", "parts": blank})
    nothing = Message(role="assistant", parts=[])
    history = [Message.model_validate({"role": "user", "parts": blank}), silent, user("a"), nothing, user("b")]
    assert (await bench.answer(wire, *history)).message.text() == "echo: b"
