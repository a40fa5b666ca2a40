"""Pools, transactions, and the only place that decides what happened to a COMMIT whose answer was lost.

`transact` is the house's one way to write (`commit_or_resolve`): no other module opens a transaction or catches a connection error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import asyncpg
import structlog

from stratus.domain.errors import BadSetting, Broken, DatabaseAway
from stratus.effects import Chance, Clock, finished
from stratus.store.faults import FAULTS, Fault, classify, translate
from stratus.store.isolation import APP, TURN

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], Awaitable[T]]

ACQUIRE_SECONDS = 2.0
RESOLVE_SECONDS = 20.0
# So many of the tools' own reads run at once: however slow they are, they keep no connection from the commits.
TOOL_CONNECTIONS = 2

_WHO = "SELECT current_user::text"
_ENTER_TURN = f"SELECT stratus_enter($1), set_config('role', '{TURN}', true)"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """The doubtful transaction did commit; `value` is what its work would have returned."""

    value: T


Resolve: TypeAlias = Callable[[Connection], Awaitable[Resolved[T] | None]]


@dataclass(frozen=True)
class Timeouts:
    """Session limits in seconds. The server's come before the client's, so that the server gives the verdict; all lie below the lease TTL."""

    statement: float = 5.0
    idle_in_transaction: float = 5.0
    lock: float = 2.0

    @classmethod
    def below(cls, lease_ttl: float) -> Timeouts:
        """Limits that let a takeover happen, and a lost answer be missed and resolved, within one TTL.

        The shares are those of production (5 s and 30 s), idle in transaction below a third.
        """
        return cls(
            statement=min(5.0, lease_ttl / 3),
            idle_in_transaction=min(5.0, 0.3 * lease_ttl),
            lock=min(2.0, 0.3 * lease_ttl),
        )

    @property
    def client(self) -> float:
        """How long the client waits for an answer: a little longer than the server may take."""
        return self.statement + min(1.0, 0.5 * self.statement)

    def server_settings(self, application_name: str) -> dict[str, str]:
        """The session's settings, as PostgreSQL spells them."""
        return {
            "application_name": application_name,
            "role": APP,
            "TimeZone": "UTC",
            "default_transaction_isolation": "read committed",
            "synchronous_commit": "on",
            "statement_timeout": f"{self.statement * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{self.idle_in_transaction * 1000:.0f}",
            "lock_timeout": f"{self.lock * 1000:.0f}",
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "10000",
        }


async def connect(dsn: str, timeouts: Timeouts, application_name: str) -> asyncpg.Connection[asyncpg.Record]:
    """One connection outside of the pools, with the house's settings and role. Raises DatabaseAway."""
    try:
        return await asyncpg.connect(
            dsn,
            timeout=timeouts.statement,
            command_timeout=timeouts.client,
            server_settings=timeouts.server_settings(application_name),
        )
    except FAULTS as error:
        raise translate(error) from error


class Database:
    """Small pools on one server: `ingress` answers platforms and people even while the workers' one is exhausted, `tools` reads for tools.

    All run as `stratus_app`. With `agent`, a transaction runs as `stratus_turn` instead, and the rows of other agents are not there for it.
    """

    def __init__(
        self,
        dsn: str,
        *,
        timeouts: Timeouts | None = None,
        application_name: str = "stratus",
        main_size: int = 10,
        ingress_size: int = 4,
    ) -> None:
        self.dsn = dsn
        self.timeouts = timeouts or Timeouts()
        self.application_name = application_name
        self._sizes = {"main": main_size, "ingress": ingress_size, "tools": TOOL_CONNECTIONS}
        self._pools: dict[str, asyncpg.Pool[asyncpg.Record]] = {}
        self._clock = Clock()
        self._chance = Chance()

    async def open(self) -> None:
        """Make the pools. Raises DatabaseAway when the server cannot be reached, BadSetting when it does not let us run as `stratus_app`."""
        try:
            for name, size in self._sizes.items():
                self._pools[name] = await asyncpg.create_pool(
                    self.dsn,
                    min_size=0,  # a pool that keeps some open writes a traceback at each try while the server is away
                    max_size=size,
                    timeout=self.timeouts.statement,
                    command_timeout=self.timeouts.client,
                    max_inactive_connection_lifetime=120.0,
                    server_settings=self.timeouts.server_settings(f"{self.application_name}/{name}"),
                    reset=_keep,
                )
        except FAULTS as error:
            raise translate(error) from error
        try:
            await self.read(_require_role)
        except Broken as error:
            await self.close()
            if APP in str(error):
                raise BadSetting(
                    f"the database refuses to let us run as {APP}; run `stratus migrate` ({error})"
                ) from error
            raise
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close what is idle, cut what is not: leases expire by themselves."""
        for pool in self._pools.values():
            try:
                async with asyncio.timeout(2.0):
                    await pool.close()
            except TimeoutError:
                pool.terminate()
        self._pools.clear()

    async def read(self, work: Work[T], *, pool: str = "main", agent: str | None = None) -> T:
        """Run reads, each statement on its own; with `agent` all in one transaction. Raises DatabaseAway, or what `work` raises."""
        connection = await self._acquire(pool)
        try:
            if agent is None:
                return await self._guarded(connection, work)
            # Rolled back, so that no setting which a tool's statement has made stays.
            return await self._rolled_back(connection, work, agent, readonly=True)
        finally:
            await self._release(pool, connection)

    async def transact(
        self,
        work: Work[T],
        *,
        resolve: Resolve[T] | None = None,
        idempotent: bool = False,
        autocommit: bool = False,
        pool: str = "main",
        agent: str | None = None,
    ) -> T:
        """Run `work` in one transaction, and know what became of it (`commit_or_resolve`).

        When the answer to COMMIT is lost: `resolve` locks a row that the doubtful transaction wrote, waits so for its end, and reads its
        marker; it returns None when nothing was committed, and `work` runs again. `idempotent` work simply runs again: its own locks and unique
        keys wait for the doubtful one. With neither, DatabaseAway is raised and the caller must treat the outcome as unknown.

        `autocommit` is for a `work` of one single statement: it saves two round trips, and any lost answer is then in doubt. Such a statement may
        arrive even after a look that did not find it, with no lock to wait on, so its repeat must recognise its own work. It cannot go with `agent`.
        """
        assert not (autocommit and agent is not None)
        until = self._clock.monotonic() + RESOLVE_SECONDS
        doubted = False
        while True:
            try:
                doubt = await self._attempt(work, autocommit=autocommit, pool=pool, agent=agent)
            except DatabaseAway:
                # The doubtful transaction itself may be what is in the way: as long as it may commit, there is no answer.
                if not doubted or self._clock.monotonic() > until:
                    raise
                await self._clock.sleep(self._chance.spread(0.2, 0.5))
                continue
            if not isinstance(doubt, _Doubt):
                return doubt
            doubted = True
            log.warning("commit.in_doubt", pool=pool, error=type(doubt.error).__name__)
            if resolve is not None:
                found = await self._resolve(resolve, until, pool, agent)
                if found is not None:
                    return found.value
            elif not idempotent:
                raise translate(doubt.error) from doubt.error
            if self._clock.monotonic() > until:
                raise DatabaseAway("the database did not answer in time") from doubt.error
            await self._clock.sleep(self._chance.spread(0.2, 0.5))

    async def _attempt(self, work: Work[T], *, autocommit: bool, pool: str, agent: str | None) -> T | _Doubt:
        connection = await self._acquire(pool)
        try:
            if autocommit:
                return await _statement(connection, work)
            transaction = connection.transaction()
            value = await self._guarded(connection, lambda c: _begin_and_work(transaction, work, c, agent))
            return await finished(_commit(connection, transaction, value))
        finally:
            await self._release(pool, connection)

    async def _guarded(self, connection: Connection, work: Work[T]) -> T:
        try:
            return await work(connection)
        except asyncio.CancelledError:
            _cut(connection)  # cancelling a query needs a second connection; ending this one is certain
            raise
        except Exception as error:
            if classify(error) is Fault.LOST:
                _cut(connection)
            translated = translate(error)
            if translated is error:
                raise
            raise translated from error

    async def _resolve(self, resolve: Resolve[T], until: float, pool: str, agent: str | None) -> Resolved[T] | None:
        while True:
            try:
                return await self._resolve_once(resolve, pool, agent)
            except DatabaseAway:
                if self._clock.monotonic() > until:
                    raise
                await self._clock.sleep(self._chance.spread(0.2, 0.5))

    async def _resolve_once(self, resolve: Resolve[T], pool: str, agent: str | None) -> Resolved[T] | None:
        connection = await self._acquire(pool)
        try:
            return await self._rolled_back(connection, resolve, agent, readonly=False)
        finally:
            await self._release(pool, connection)

    async def _rolled_back(self, connection: Connection, work: Work[T], agent: str | None, *, readonly: bool) -> T:
        transaction = connection.transaction(readonly=readonly)
        found = await self._guarded(connection, lambda c: _begin_and_work(transaction, work, c, agent))
        await self._guarded(connection, lambda _: transaction.rollback())
        return found

    async def _acquire(self, pool: str) -> asyncpg.pool.PoolConnectionProxy[asyncpg.Record]:
        if pool not in self._pools:
            raise DatabaseAway("the database is not open")
        try:
            return await self._pools[pool].acquire(timeout=ACQUIRE_SECONDS)
        except FAULTS as error:
            raise translate(error) from error

    async def _release(self, pool: str, connection: Any) -> None:
        owner = self._pools.get(pool)
        if owner is not None:
            await asyncio.shield(owner.release(connection, timeout=2.0))


@dataclass(frozen=True)
class _Doubt:
    error: BaseException


async def _require_role(connection: Connection) -> None:
    role = await connection.fetchval(_WHO)
    if role != APP:
        raise BadSetting(
            f"the database takes us for {role}, not for {APP}: a pooler between us drops the startup parameter `role`; "
            "the operator guide says how to set it there"
        )


async def _keep(_connection: Any) -> None:
    """No reset on release: nothing of ours leaves session state, and the round trip halves the throughput."""


def _cut(connection: Any) -> None:
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        pass  # a connection that broke has already left the pool's hands


async def _begin_and_work(transaction: Any, work: Work[T], connection: Connection, agent: str | None) -> T:
    await transaction.start()
    try:
        if agent is not None:
            await connection.execute(_ENTER_TURN, agent)
        return await work(connection)
    except Exception as error:
        if classify(error) is not Fault.LOST:
            await transaction.rollback()
        raise


async def _commit(connection: Any, transaction: Any, value: T) -> T | _Doubt:
    try:
        await transaction.commit()
    except Exception as error:
        _cut(connection)
        if classify(error) is Fault.LOST:
            return _Doubt(error)
        raise translate(error) from error
    return value


async def _statement(connection: Connection, work: Work[T]) -> T | _Doubt:
    try:
        return await work(connection)
    except asyncio.CancelledError:
        _cut(connection)
        raise
    except Exception as error:
        if classify(error) is Fault.LOST:
            _cut(connection)
            return _Doubt(error)
        raise translate(error) from error
