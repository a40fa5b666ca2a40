"""One replica's HTTP interface on a real port and a real database, without workers: the test plays the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx

from stratus.channel.values import RawRequest, WebhookReply
from stratus.config import load
from stratus.domain.agent import AgentDefinition
from stratus.http.app import create_app
from stratus.http.server import HttpServer
from stratus.http.services import Services
from stratus.observe.tailer import Tailer
from stratus.store import agent, principal
from stratus.store.database import Connection, Database, Timeouts
from stratus.store.hints import Hints
from stratus.store.principal import Principal
from stratus.store.vault import Vault

PUBLIC_URL = "https://stratus.example.org"
KEY = "k" * 40
MAKE_PRINCIPAL = "INSERT INTO principal (name, role) VALUES ($1, $2) RETURNING id, public_id, name, role"


@dataclass
class Frame:
    """One server-sent event as a client reads it."""

    fields: dict[str, str] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)

    @property
    def event(self) -> str:
        return self.fields.get("event", "")


class Web:
    """A running HTTP interface. `hooks` is what webhooks answer with."""

    def __init__(self, dsn: str, db: Database | None = None) -> None:
        self.db = db or Database(dsn, main_size=6, ingress_size=4)
        self._own_db = db is None
        self.hooked: list[tuple[UUID, RawRequest]] = []
        self.hook: Callable[[], WebhookReply] = WebhookReply
        self.unready: list[str] = []
        self.settings = load(
            {
                "database_url": dsn,
                "secret_key": KEY,
                "test_channels": True,
                "public_url": PUBLIC_URL,
            }
        )
        self.hints = Hints(dsn, Timeouts(), "test")
        self.tailer = Tailer(self.db, self.hints, poll_seconds=0.2)
        self.services = Services(
            db=self.db,
            hints=self.hints,
            tailer=self.tailer,
            settings=self.settings,
            vault=Vault([KEY]),
            health=lambda: self.unready,
            providers=lambda: ["demo"],
            loops=lambda: [self.tailer.loop.health],
            webhooks=self._webhook,
        )
        self.server = HttpServer(create_app(self.services), "127.0.0.1", 0, grace=2)
        self._tasks: list[asyncio.Task[None]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._own_db:
            await self.db.open()
        self.url = f"http://127.0.0.1:{self.server.listen()}"
        self._tasks = [asyncio.create_task(self.server.run()), asyncio.create_task(self.tailer.loop.run())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tailer.close()
        self.server.stop()
        self.tailer.loop.stop()
        await asyncio.gather(*self._tasks)
        if self._own_db:
            await self.db.close()

    async def person(self, name: str, role: str = "user") -> Person:
        """A principal with an API token."""
        row = await self.db.transact(lambda c: c.fetchrow(MAKE_PRINCIPAL, name, role))
        who = Principal(**dict(row))
        made = await principal.create_token(self.db, who.id, "api", name=name)
        return Person(self, who, made.secret)

    async def agent(self, name: str = "demo", **fields: Any) -> None:
        await agent.upsert(self.db, AgentDefinition(id=name, model="demo", **fields))

    async def _webhook(self, channel: UUID, request: RawRequest) -> WebhookReply:
        self.hooked.append((channel, request))
        return self.hook()


class Person:
    """A client with a bearer token; each call is a fresh connection, so that none outlives the server."""

    def __init__(self, web: Web, who: Principal, secret: str) -> None:
        self.web = web
        self.who = who
        self.secret = secret
        self._keys = 0

    def key(self) -> str:
        self._keys += 1
        return f"{self.who.name}-key-{self._keys:012d}"

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secret}", **options.pop("headers", {})}
        async with httpx.AsyncClient(base_url=self.web.url, timeout=20) as client:
            return await client.request(method, path, headers=headers, **options)

    async def say(self, session: str, text: str, *, key: str | None = None, **body: Any) -> httpx.Response:
        """Send a message to the demo agent."""
        return await self.call(
            "POST",
            f"/sessions/{session}/messages",
            json={"agent": "demo", "text": text, **body},
            headers={"Idempotency-Key": key or self.key()},
        )

    @asynccontextmanager
    async def stream(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, **options: Any
    ) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[Frame]]]:
        """An open stream: its response, and its frames as they come."""
        sent = {"Authorization": f"Bearer {self.secret}", "Accept": "text/event-stream", **(headers or {})}
        async with httpx.AsyncClient(base_url=self.web.url, timeout=20) as client:
            async with client.stream(method, path, headers=sent, **options) as response:
                yield response, _frames(response)

    async def all_frames(self, path: str, **options: Any) -> list[Frame]:
        """The frames of a stream that ends."""
        async with self.stream(path, **options) as (response, frames):
            assert response.status_code == 200, await response.aread()
            return [frame async for frame in frames]


async def _frames(response: httpx.Response) -> AsyncIterator[Frame]:
    frame = Frame()
    async for line in response.aiter_lines():
        if not line:
            yield frame
            frame = Frame()
        elif line.startswith(":"):
            frame.comments.append(line[1:])
        else:
            name, _, value = line.partition(": ")
            assert name not in frame.fields, "one line a field"
            frame.fields[name] = value
    assert frame == Frame(), "the last frame was cut"


async def fetchrow(db: Database, sql: str, *arguments: object) -> dict[str, Any]:
    async def work(connection: Connection) -> Any:
        return await connection.fetchrow(sql, *arguments)

    return dict(await db.transact(work))


def code(response: httpx.Response) -> tuple[int, str]:
    """The status and the problem's code, after the document's form was checked."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert set(document) == {"type", "title", "status", "detail", "code"}
    assert document["status"] == response.status_code
    return response.status_code, document["code"]
