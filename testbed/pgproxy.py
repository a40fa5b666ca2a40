"""A proxy in front of PostgreSQL that knows statements: it can lose one COMMIT, its answer, or hold it back.

For everything that is not about statements (cut, reset, refuse) it is the plain TCP proxy.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from testbed.pgwire import Backend, Frontend, Request
from testbed.tcpproxy import Link, TcpProxy, Upstream, Wire

Action = Literal["drop_before", "lose_ack_rst", "lose_ack_silent", "delay"]


@dataclass(frozen=True)
class Hit:
    """An armed action that fired: at the statement `sql`."""

    sql: str
    action: Action


@dataclass
class _Armed:
    match: str | None
    within: str | None
    action: Action
    times: int

    def fits(self, sql: str, transaction: list[str]) -> bool:
        if self.match is not None and self.match not in sql:
            return False
        return self.within is None or any(self.within in earlier for earlier in transaction)


class PgProxy(TcpProxy):
    """A proxy for the PostgreSQL server of `dsn`; `.dsn` is the same database through the proxy.

    Encryption is refused on the client's side (the statements must be readable), and not used towards the server.
    """

    def __init__(self, dsn: str, *, port: int = 0) -> None:
        super().__init__(upstream_of(dsn), port=port)
        self.log: list[Hit] = []
        self._direct = dsn
        self._armed: list[_Armed] = []
        self._release = asyncio.Event()
        self._changed = asyncio.Condition()

    @property
    def dsn(self) -> str:
        return rerouted(self._direct, self.port)

    async def arm(
        self, match: bytes | str | None, action: Action, times: int = 1, *, within: str | None = None
    ) -> None:
        """Lets `action` happen to the next `times` executed statements that contain `match` (None: to any statement).

        `drop_before`: never reaches the server, the connection is reset. `lose_ack_rst`: executed, then reset.
        `lose_ack_silent`: executed, the answer is swallowed, the connection stays. `delay`: held until `release`; it
        reaches the server then even if the client has gone. `within` narrows it to transactions that already ran a
        statement containing that text: `arm("COMMIT", ..., within="INSERT INTO outbox")` hits one COMMIT among many.
        """
        text = match.decode() if isinstance(match, bytes) else match
        self._armed.append(_Armed(text, within, action, times))

    async def disarm(self) -> None:
        """Forgets what is armed and has not fired; held statements stay held."""
        self._armed.clear()

    async def release(self) -> None:
        """Lets every statement pass that `delay` holds now."""
        self._release.set()
        self._release = asyncio.Event()

    async def wait_hit(self, n: int = 1) -> None:
        """Returns once `n` actions have fired since the proxy was made: dropped, held, or (lost answers) executed."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.log) >= n)

    async def heal(self) -> None:
        """Ends every cut, loss and delay, and disarms. Connections that lost an answer are reset."""
        await self.disarm()
        await self.release()
        await super().heal()

    def make_link(self, wire: Wire) -> Link:
        return _PgLink(self, wire)

    def take(self, sql: str, transaction: list[str]) -> Action | None:
        """The action that is due for this statement, used up once."""
        for armed in self._armed:
            if armed.fits(sql, transaction):
                armed.times -= 1
                if armed.times <= 0:
                    self._armed.remove(armed)
                return armed.action
        return None

    async def hit(self, sql: str, action: Action) -> None:
        """Records that an action fired."""
        async with self._changed:
            self.log.append(Hit(sql, action))
            self._changed.notify_all()

    def next_release(self) -> asyncio.Event:
        """Is set by the next `release`."""
        return self._release


class _PgLink(Link):
    def __init__(self, proxy: PgProxy, wire: Wire) -> None:
        super().__init__(proxy, wire)
        self._pg = proxy
        self._frontend = Frontend()
        self._backend = Backend()
        self._transaction: list[str] = []
        self._losing: Hit | None = None

    async def from_client(self, data: bytes) -> None:
        for request in self._frontend.feed(data):
            if request.asks_encryption:
                self.wire.client.write(b"N")
            elif request.executes is None or await self._admit(request, request.executes):
                self.wire.server.write(request.raw)
            else:
                return
        await self.wire.server.drain()

    async def _admit(self, request: Request, sql: str) -> bool:
        action = self._pg.take(sql, self._transaction)
        self._transaction.append(sql)
        if action == "drop_before":
            self.reset()
            await self._pg.hit(sql, action)
            return False
        if action == "delay":
            await self.wire.server.drain()
            release = self._pg.next_release()
            await self._pg.hit(sql, action)
            await release.wait()
        elif action is not None:
            self._losing = Hit(sql, action)
        return True

    async def from_server(self, data: bytes) -> None:
        passing = bytearray()
        for answer in self._backend.feed(data):
            if answer.ready == "I":
                self._transaction.clear()
            if self._losing is None:
                passing += answer.raw
            elif answer.ready is not None and not self.lost:
                await self._lose(self._losing)
        if passing:
            await super().from_server(bytes(passing))

    async def _lose(self, hit: Hit) -> None:
        self.lost = True
        if hit.action == "lose_ack_rst":
            self.reset()
        await self._pg.hit(hit.sql, hit.action)


def upstream_of(dsn: str) -> Upstream:
    """Where the server of `dsn` listens: (host, port), or the path of its unix socket (`?host=/folder`)."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query))
    host = query.get("host") or parts.hostname or "127.0.0.1"
    port = int(query.get("port") or parts.port or 5432)
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)


def rerouted(dsn: str, port: int) -> str:
    """The same user and database as `dsn`, reached at 127.0.0.1:`port`."""
    parts = urlsplit(dsn)
    credentials = parts.netloc.rpartition("@")[0]
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in ("host", "port", "sslmode")]
    place = f"{credentials}@127.0.0.1:{port}" if credentials else f"127.0.0.1:{port}"
    return urlunsplit((parts.scheme, place, parts.path, urlencode(query, quote_via=quote), ""))
