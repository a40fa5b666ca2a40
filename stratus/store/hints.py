"""Wake-ups between replicas: coalesced NOTIFYs on a connection of their own, sent after commit. A lost hint costs a poll's time, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import orjson
import structlog

from stratus.effects import Chance, Clock
from stratus.store.database import Timeouts, connect

CHANNEL = "stratus_hint"
WINDOW_SECONDS = 0.01
PROBE_SECONDS = 10.0
# PostgreSQL refuses payloads of 8,000 bytes and more.
_PAYLOAD_MAX = 7_000

Listener = Callable[[str], None]

log = structlog.get_logger(__name__)


class Hints:
    """Topics are `inbox`, `runs`, `cancel`, `family`, `waiting`, `media`, `outbox`, `session`, `agents`, `channels`, `balance` and `schedules`.

    A key names what a hint is about; with the key "" it is about all of its topic.

    `send` wakes this process's listeners at once and the other replicas' within the window.
    """

    def __init__(self, dsn: str, timeouts: Timeouts, application_name: str) -> None:
        self._dsn = dsn
        self._timeouts = timeouts
        self._name = f"{application_name}/listen"
        self._listeners: dict[str, list[Listener]] = {}
        self._pending: set[tuple[str, str]] = set()
        self._due = asyncio.Event()
        self._clock = Clock()
        self._chance = Chance()
        self.connected = False

    def on(self, topic: str, listener: Listener) -> None:
        """Call `listener(key)` for each hint of the topic; with "" after a reconnect, when hints may have been missed."""
        self._listeners.setdefault(topic, []).append(listener)

    def send(self, topic: str, key: str = "") -> None:
        """Hint here and elsewhere. Never blocks, never fails."""
        self._deliver(topic, key)
        self._pending.add((topic, key))
        self._due.set()

    async def run(self) -> None:
        """Keep the connection, listen and notify until cancelled."""
        failures = 0
        while True:
            try:
                await self._serve()
            except Exception as error:  # the process must outlive whatever a broken connection raises
                failures = 0 if self.connected else failures + 1
                if failures <= 1:
                    log.warning("hints.disconnected", error=type(error).__name__)
            finally:
                self.connected = False
            await self._clock.sleep(self._chance.spread(min(0.2 * 2.0**failures, 5.0)))

    async def _serve(self) -> None:
        connection = await connect(self._dsn, self._timeouts, self._name)
        try:
            await connection.add_listener(CHANNEL, self._received)
            self.connected = True
            for topic in self._listeners:
                self._deliver(topic, "")
            while True:
                await self._flush_or_probe(connection)
        finally:
            connection.terminate()

    async def _flush_or_probe(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._due.wait()
        except TimeoutError:
            await connection.execute("SELECT 1")  # a half-open connection is found here, not by a missing hint
            return
        await self._clock.sleep(WINDOW_SECONDS)
        self._due.clear()
        hints, self._pending = self._pending, set()
        for payload in _payloads(hints):
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)

    def _received(self, connection: Any, pid: int, _channel: str, payload: object) -> None:
        if pid == connection.get_server_pid():
            return  # ours: delivered when it was sent
        try:
            hints = orjson.loads(str(payload))
        except orjson.JSONDecodeError:
            return
        for topic, keys in hints.items():
            for key in keys:
                self._deliver(topic, key)

    def _deliver(self, topic: str, key: str) -> None:
        for listener in self._listeners.get(topic, ()):
            listener(key)


def _payloads(hints: set[tuple[str, str]]) -> list[str]:
    """As few payloads as fit; a topic with too many keys becomes a hint for all of it."""
    topics: dict[str, list[str]] = {}
    for topic, key in sorted(hints):
        topics.setdefault(topic, []).append(key)
    payloads = []
    for topic, keys in topics.items():
        payload = orjson.dumps({topic: keys}).decode()
        if len(payload) > _PAYLOAD_MAX:
            payload = orjson.dumps({topic: [""]}).decode()
        payloads.append(payload)
    return payloads
