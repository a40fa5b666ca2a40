"""Whose key goes where, seen from the other end of the wire: with each request its own agent's, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stratus.agents.model import ModelError, ModelRequest
from stratus.agents.pool import ModelPool
from stratus.agents.providers import ProviderModel
from stratus.domain.agent import AgentDefinition
from testbed.fakes.model import FakeModel
from testbed.fakes.server import FakeServer
from tests.contract.provider_bench import MODELS, WIRES, user


async def say(pool: ModelPool, wire: str, base_url: str, text: str, key: str | None = None) -> None:
    agent = AgentDefinition(id="a", model=f"{wire}:{MODELS[wire]}", base_url=base_url, api_key_env=key)
    async with pool.get(agent).stream(ModelRequest("", [user(text)])) as events:
        _ = [event async for event in events]


@pytest.fixture
async def fake() -> AsyncIterator[tuple[FakeModel, str]]:
    model = FakeModel()
    async with FakeServer(model.app) as server:
        yield model, server.url


def address(wire: str, url: str) -> str:
    return url if wire == "anthropic" else f"{url}/v1"


@pytest.mark.parametrize("wire", WIRES)
async def test_agents_that_differ_only_by_key_are_told_apart_also_when_they_speak_at_once(
    fake: tuple[FakeModel, str], wire: str
) -> None:
    model, url = fake
    pool = ModelPool({"ONE": "key-1", "TWO": "key-2", "OPENAI_API_KEY": "own", "ANTHROPIC_API_KEY": "own"})
    gate = model.gate("all")
    async with asyncio.TaskGroup() as group:
        for name in ("ONE", "TWO", None) * 3:
            group.create_task(say(pool, wire, address(wire, url), f"I am {name}", name))
        while gate.entered < 9:
            await asyncio.sleep(0.01)
        model.release("all")
    keys = {logged.call.text: logged.key for logged in model.calls}
    assert keys == {"I am ONE": "key-1", "I am TWO": "key-2", "I am None": "not-needed"}
    await pool.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_one_client_is_made_for_all_that_resolve_to_the_same(
    fake: tuple[FakeModel, str], wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = ProviderModel._made

    def counted(model: ProviderModel) -> object:
        made.append(model._resolved.api_key)
        return make(model)

    monkeypatch.setattr(ProviderModel, "_made", counted)
    pool = ModelPool({"ONE": "key-1", "TWO": "key-2", "ALSO_ONE": "key-1"})
    async with asyncio.TaskGroup() as group:
        for name in ("ONE", "TWO", "ALSO_ONE", "ONE"):
            group.create_task(say(pool, wire, address(wire, fake[1]), "hi", name))
    assert sorted(made) == ["key-1", "key-2"]
    await pool.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_rotated_key_is_the_next_requests_key(fake: tuple[FakeModel, str], wire: str) -> None:
    model, url = fake
    environment = {"ONE": "old"}
    pool = ModelPool(environment)
    await say(pool, wire, address(wire, url), "before", "ONE")
    environment["ONE"] = "new"
    await say(pool, wire, address(wire, url), "after", "ONE")
    assert [logged.key for logged in model.calls] == ["old", "new"]
    await pool.close()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_takes_neither_key_nor_conversation_elsewhere(
    fake: tuple[FakeModel, str], wire: str, status: int
) -> None:
    model, url = fake

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        writer.write(f"HTTP/1.1 {status} Moved\r\nlocation: {url}{path}\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(redirect, "127.0.0.1", 0)
    pool = ModelPool({"ONE": "secret"})
    with pytest.raises(ModelError) as caught:
        here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await say(pool, wire, address(wire, here), "for your eyes only", "ONE")
    assert (caught.value.code, caught.value.retryable) == ("not_found", False)
    assert "base_url" in str(caught.value)
    assert model.calls == []
    await pool.close()
    server.close()
    await server.wait_closed()


async def test_a_cookie_of_one_agents_provider_is_not_sent_by_another() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 400 No\r\nset-cookie: who=first; Path=/\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = ModelPool({"ONE": "key-1", "TWO": "key-2"})
    for name in ("ONE", "TWO"):
        with pytest.raises(ModelError):
            await say(pool, "anthropic", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "hi", name)
    assert len(heads) == 2
    assert b"cookie" not in heads[1].lower()
    await pool.close()
    server.close()
    await server.wait_closed()
