"""The stage of system tests: a database, fake platform and model, an agent and a channel, and short ways to talk and to look."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from stratus.domain.agent import AgentDefinition
from stratus.store import agent, channel, principal
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.vault import Vault
from testbed.fakes.model import FakeModel
from testbed.fakes.platform import FakePlatform
from testbed.fakes.server import FakeServer
from testbed.postgres import TestCluster
from testbed.replicas import SECRET_KEY, Replica, ReplicaSet, eventually

MODEL_KEY = "test-key-of-the-fake-model"
OWNER_OFF = {"STRATUS_CHANNEL_LEASE": "off"}
WORKER_OFF = {"STRATUS_RUN_WORKER": "off"}
HTTP_ONLY = {**OWNER_OFF, **WORKER_OFF}
_COUNTS = """
SELECT (SELECT count(*) FROM channel_inbox) AS inbox, (SELECT count(*) FROM agent_run) AS runs,
       (SELECT count(*) FROM message) AS messages, (SELECT count(*) FROM channel_outbox) AS ops,
       (SELECT count(*) FROM channel_outbox WHERE state = 'sent') AS sent
"""


@dataclass
class Stage:
    """Everything around the replicas. `token` is an owner's bearer token."""

    dsn: str
    db: Database
    platform: FakePlatform
    platform_url: str
    model: FakeModel
    model_url: str
    token: str
    channel_id: int = 0
    channel_uuid: str = ""

    async def add_agent(self, agent_id: str = "demo", model: str = "demo", **fields: Any) -> None:
        """Store an agent; model `fake` is the fake provider over the Chat Completions wire."""
        if model == "fake":
            fields |= {"base_url": f"{self.model_url}/v1", "api_key_env": "FAKE_MODEL_KEY"}
            model = "openai-chat:fake-1"
        definition = AgentDefinition(id=agent_id, model=model, soul="You are a test agent.", **fields)
        await agent.upsert(self.db, definition)

    async def add_channel(
        self,
        agent_id: str = "demo",
        *,
        name: str = "chan",
        options: Mapping[str, Any] | None = None,
        mode: str = "open",
    ) -> int:
        """A channel of the test platform; it shows drafts only with the option `drafts`."""
        config = {"base_url": self.platform_url, "bot": "bot", "wait": 2, "access": {"mode": mode}, "drafts": "off"}
        config |= options or {}
        row = await self.install("testchan", name, config, {"secret": "webhook-secret"}, agent_id)
        self.channel_id, self.channel_uuid = row.id, str(row.public_id)
        return row.id

    async def install(
        self,
        platform: str,
        name: str,
        config: Mapping[str, Any],
        credentials: Mapping[str, str],
        agent_id: str = "demo",
    ) -> ChannelRow:
        """A channel of any platform, its credentials sealed for the replicas; the stage's own channel stays what it is."""
        public_id = uuid4()
        sealed = Vault([SECRET_KEY]).seal(public_id, credentials)
        return await channel.create(self.db, public_id, platform, name, agent_id, config, sealed)

    @contextlib.asynccontextmanager
    async def replicas(
        self, n: int = 1, *, roles: Sequence[Mapping[str, str]] = (), settings: Mapping[str, str] | None = None
    ) -> AsyncIterator[ReplicaSet]:
        """Real `stratus serve` processes on this stage."""
        given = {"FAKE_MODEL_KEY": MODEL_KEY, **(settings or {})}
        async with ReplicaSet(n, dsn=self.dsn, roles=roles, settings=given, platform=self.platform_url) as started:
            yield started

    async def say(self, text: str, chat: str = "c1", **fields: Any) -> dict[str, Any]:
        """A person writes; `/word` is a command as the platform marks it."""
        return await self.platform.add_event({"chat": chat, "text": text, **fields})

    def sent(self, chat: str | None = None) -> list[str]:
        """Texts that the platform has accepted, in order."""
        return [one.get("text", "") for one in self.platform.log if chat is None or one["chat"] == chat]

    async def answered(self, count: int, *, timeout: float = 15.0) -> list[str]:
        """Wait until the platform has accepted `count` messages."""
        await eventually(lambda: len(self.platform.log) >= count, timeout=timeout, what=f"{count} messages sent")
        return self.sent()

    async def rows(self, sql: str, *args: object) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.db.read(lambda c: c.fetch(sql, *args))]

    async def value(self, sql: str, *args: object) -> Any:
        return await self.db.read(lambda c: c.fetchval(sql, *args))

    async def owner(self) -> str | None:
        """The name of the replica that holds the channel's lease now."""
        found: str | None = await self.value(
            "SELECT runtime_replica FROM channel WHERE id = $1 AND lease_until > clock_timestamp()", self.channel_id
        )
        return found

    async def owned_by(self, replica: Replica, *, timeout: float = 15.0) -> None:
        """Wait until this replica owns the channel and has connected."""
        await eventually(
            lambda: self._is_owner(replica), timeout=timeout, what=f"process {replica.pid} owns the channel"
        )

    async def _is_owner(self, replica: Replica) -> bool:
        name = await self.owner()
        return name is not None and f":{replica.pid}:" in name

    async def owner_among(self, replicas: Iterable[Replica], *, timeout: float = 15.0) -> Replica:
        """The one of these that owns the channel, as soon as one does."""

        async def found() -> Replica | None:
            name = await self.owner()
            return next((one for one in replicas if name is not None and process_in(name) == one.pid), None)

        owner: Replica | None = await eventually(found, timeout, "an owner of the channel")
        assert owner is not None
        return owner

    def senders(self) -> list[tuple[str, int]]:
        """What the platform has accepted, in order, each with the process that sent it."""
        return [(one.get("text", ""), process_in(one["replica"])) for one in self.platform.log]

    async def counts(self) -> dict[str, int]:
        """How many rows there are of each kind, and how many ops were sent."""
        [row] = await self.rows(_COUNTS)
        return row

    async def settled(self, count: int, *, timeout: float = 15.0) -> None:
        """Wait until the receipts of `count` sends are stored."""

        async def stored() -> bool:
            return (await self.counts())["sent"] >= count

        await eventually(stored, timeout, f"{count} receipts stored")

    async def run_states(self) -> list[str]:
        return [row["state"] for row in await self.rows("SELECT state FROM agent_run ORDER BY id")]

    def client(self, replica: Replica, **headers: str) -> httpx.AsyncClient:
        """An API client of the owner."""
        return httpx.AsyncClient(
            base_url=replica.url,
            headers={"Authorization": f"Bearer {self.token}", **headers},
            timeout=20.0,
            trust_env=False,
        )


@contextlib.asynccontextmanager
async def stage_on(dsn: str, db: Database) -> AsyncIterator[Stage]:
    """A stage on a migrated database."""
    platform, model = FakePlatform(), FakeModel()
    async with FakeServer(platform.app) as platform_server, FakeServer(model.app) as model_server:
        owner = await principal.ensure_owner(db)
        token = await principal.create_token(db, owner.id, "api", name="test")
        yield Stage(dsn, db, platform, platform_server.url, model, model_server.url, token.secret)


def process_in(name: str) -> int:
    """The process id in a replica's name."""
    return int(name.split(":")[1])


async def logged(replica: Replica, text: str, *, times: int = 1, timeout: float = 10.0) -> None:
    """Wait until the replica's log has this text so many times."""
    await eventually(lambda: replica.log_text().count(text) >= times, timeout, f"{text} in the log of {replica.name}")


async def stands_still(replica: Replica, *, timeout: float = 15.0) -> None:
    """Wait until the process has stopped itself (a failpoint's `stop`)."""

    def stopped() -> bool:
        return Path(f"/proc/{replica.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    await eventually(stopped, timeout, f"{replica.name} stopped")


@contextlib.asynccontextmanager
async def shared_stage(cluster: TestCluster) -> AsyncIterator[Stage]:
    """A stage on a database of its own, for tests that share their replicas and differ by session, chat or channel."""
    async with cluster.database() as dsn:
        db = Database(dsn, main_size=6, ingress_size=2)
        await db.open()
        try:
            async with stage_on(dsn, db) as made:
                yield made
        finally:
            await db.close()


@dataclass(frozen=True)
class Heard:
    """One SSE event."""

    id: str | None
    kind: str
    data: dict[str, Any]


async def listen(response: httpx.Response) -> AsyncIterator[Heard]:
    """Parse a stream; comments and `retry` are passed over."""
    event_id: str | None = None
    kind, data = "message", ""
    async for line in response.aiter_lines():
        if not line:
            if data:
                yield Heard(event_id, kind, json.loads(data))
            event_id, kind, data = None, "message", ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            event_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
