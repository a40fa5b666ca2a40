"""`stratus doctor`: looks at what a gateway stands on, one named check after the other, and names the cause of what is wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from stratus.cli.output import Json, print_json, printable
from stratus.domain.errors import DatabaseAway, StratusError

if TYPE_CHECKING:
    from stratus.config import Settings
    from stratus.store.database import Database
    from stratus.store.lane import Stuck

CLOCK_SECONDS = 30.0
LISTEN_SECONDS = 5.0
ALIVE_SECONDS = 30.0
STUCK_SECONDS = 120.0


@dataclass(frozen=True)
class Finding:
    """What a check saw, and with `ok` False what to do about it."""

    name: str
    ok: bool
    detail: str


def doctor(as_json: Json = False) -> None:
    """Check settings, database, schema, notifications, credentials, models, channels, outbox and replicas. Exit code 1 if any is wrong."""
    findings = asyncio.run(_collect(as_json))
    wrong = [finding for finding in findings if not finding.ok]
    if as_json:
        print_json({"ok": not wrong, "checks": findings})
    raise typer.Exit(1 if wrong else 0)


async def _collect(as_json: bool) -> list[Finding]:
    from stratus.cli.opened import quiet

    quiet()
    findings = []
    async for finding in _findings():
        findings.append(finding)
        if not as_json:
            typer.echo(f"{'ok' if finding.ok else 'FAILED':<6}  {finding.name:<11}  {printable(finding.detail)}")
    return findings


async def _findings() -> AsyncIterator[Finding]:
    from stratus.cli.opened import database, server
    from stratus.config import load

    try:
        settings = load()
    except StratusError as error:
        yield Finding("settings", False, str(error))
        return
    yield Finding("settings", True, "read, and none contradicts another")
    async with AsyncExitStack() as stack:
        try:
            complete, _ = await stack.enter_async_context(server(settings))
            db = await stack.enter_async_context(database(complete))
            yield await _database(db)
        except StratusError as error:
            yield Finding("database", False, str(error))
            return
        schema = await _schema(complete)
        yield schema
        yield await _listen(complete, db)
        if schema.ok:
            yield await _credentials(complete, db)
            for check in (_agents, _channels, _outbox, _replicas):
                yield await check(db)


async def _database(db: Database) -> Finding:
    from stratus.effects import Clock
    from stratus.store.server import OLDEST_VERSION, facts

    server = await facts(db)
    skew = abs((server.clock - Clock().now()).total_seconds())
    if server.major < OLDEST_VERSION:
        return Finding("database", False, f"PostgreSQL {server.version}: {OLDEST_VERSION} or newer is needed")
    if server.standby:
        return Finding(
            "database", False, "it is a standby and takes no writes; point STRATUS_DATABASE_URL at the primary"
        )
    if skew > CLOCK_SECONDS:
        return Finding("database", False, f"its clock and ours differ by {skew:.0f} s; set both by NTP")
    return Finding("database", True, f"PostgreSQL {server.version}, clocks {skew:.1f} s apart")


async def _schema(settings: Settings) -> Finding:
    from stratus.store import migrate

    try:
        await migrate.require_current(settings.dsn)
    except StratusError as error:
        return Finding("schema", False, str(error))
    return Finding("schema", True, f"revision {await migrate.current(settings.dsn)}")


async def _listen(settings: Settings, db: Database) -> Finding:
    """A hint sent over the one address must arrive over the other; behind a transaction pooler LISTEN is accepted and hears nothing."""
    from stratus.store.database import Timeouts
    from stratus.store.hints import Hints
    from stratus.store.server import hint

    heard = asyncio.Event()
    hints = Hints(settings.listen_dsn, Timeouts(), "stratus-doctor")
    hints.on("doctor", lambda key: heard.set() if key else None)
    try:
        async with asyncio.timeout(LISTEN_SECONDS), asyncio.TaskGroup() as group:
            listening = group.create_task(hints.run())
            while not heard.is_set():
                if hints.connected:
                    with suppress(DatabaseAway):
                        await hint(db, "doctor", "heard")
                await _moment(heard)
            listening.cancel()
    except ExceptionGroup as error:
        return Finding("listen", False, f"STRATUS_LISTEN_URL: {error.exceptions[0]}")
    except TimeoutError:
        which = "STRATUS_DATABASE_URL" if settings.listen_url is None else "STRATUS_LISTEN_URL"
        return Finding(
            "listen", False, f"no notification comes through {which}; set STRATUS_LISTEN_URL to a direct connection"
        )
    return Finding("listen", True, "notifications come through")


async def _moment(heard: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(0.1):
            await heard.wait()
    except TimeoutError:
        pass


async def _agents(db: Database) -> Finding:
    from stratus.agents.model import ModelError
    from stratus.agents.pool import ModelPool
    from stratus.store import agent

    rows = await agent.listing(db)
    if not rows:
        return Finding("agents", False, "there is none; store one with `stratus agents apply PATH`")
    pool = ModelPool(os.environ)
    causes = []
    for row in rows:
        try:
            pool.get(row.definition)
        except ModelError as error:
            causes.append(f"{row.id}: {error}")
    return Finding("agents", not causes, "; ".join(causes) or f"{len(rows)}, their models are available")


async def _credentials(settings: Settings, db: Database) -> Finding:
    """Whether this process's keys open what is stored: a replica with the same keys could run the channels."""
    from stratus.store.reseal import sealed
    from stratus.store.vault import CredentialsUnreadable, Vault

    vault = Vault([one.get_secret_value() for one in settings.secret_key])
    causes, older, batch, count = [], 0, await sealed(db), 0
    while batch:
        for row in batch:
            try:
                vault.open(row.public_id, row.credentials)
            except CredentialsUnreadable as error:
                causes.append(f"{row.name}: {error}")
            older += not vault.current(row.credentials)
        count += len(batch)
        batch = await sealed(db, batch[-1].id)
    if causes:
        return Finding("credentials", False, "; ".join(causes) + "; add the key that sealed them to STRATUS_SECRET_KEY")
    by = f", {older} of them by an older key: `stratus channels reseal`" if older else ""
    return Finding("credentials", True, f"of {count} channels, all readable{by}")


async def _channels(db: Database) -> Finding:
    from stratus.cli.channels import describe
    from stratus.store import agent, channel

    agents = {row.id for row in await agent.listing(db)}
    rows = [row for row in await channel.listing(db) if row.enabled]
    causes = [f"{row.name}: its agent {row.agent_id} is not there" for row in rows if row.agent_id not in agents]
    for row in rows:
        shown = describe(row)
        if row.replica is None:
            causes.append(f"{row.name}: no replica runs it")
        elif shown["state"] != "connected":
            causes.append(f"{row.name}: {shown['state']}, {shown['cause'] or row.last_error}")
    return Finding("channels", not causes, "; ".join(causes) or f"{len(rows)} enabled, all connected")


async def _outbox(db: Database) -> Finding:
    """What stands still on its way to a platform, and what only a person can settle."""
    from stratus.store import lane, view

    causes = [_standing(one) for one in await lane.stuck(db, STUCK_SECONDS)]
    waiting = {one.state: one for one in await view.backlog(db) if one.queue == "outbox"}
    if lost := waiting.pop("unknown", None):
        causes.append(
            f"{lost.total} unknown, the oldest of {lost.oldest:.0f} s: look at `stratus outbox list --state unknown`"
        )
    total = sum(one.total for one in waiting.values())
    return Finding("outbox", not causes, "; ".join(causes) or f"{total} on their way, none for long")


def _standing(one: Stuck) -> str:
    after = "" if one.code is None else f" after {one.code}"
    why = {
        "disabled": "the channel is disabled",
        "no_owner": "no replica runs the channel",
        "quarantine": "its attempt is past the deadline, and is given up by the channel's owner once it cannot be under way",
        "sending": "an attempt of it is open",
        "not_before": f"it waits {one.wait:.0f} s more{after}",
        "rate": f"the platform takes no more for another {one.wait:.0f} s",
        "due": "it could be sent: look at the log of the replica that runs the channel",
    }[one.reason]
    return f"{one.channel}: {one.lanes} chat{'' if one.lanes == 1 else 's'} waiting, the longest {one.age:.0f} s for operation {one.op_id}: {why}"


async def _replicas(db: Database) -> Finding:
    from stratus.store import agent, replica

    alive = [row for row in await replica.listing(db) if row.unseen_seconds < ALIVE_SECONDS and not row.draining]
    if not alive:
        return Finding(
            "replicas",
            False,
            f"none was seen for {ALIVE_SECONDS:.0f} s; start one with `stratus up` or `stratus serve`",
        )
    workers = [set(row.capabilities) for row in alive if row.roles.get("run_worker")]
    causes = []
    for one in await agent.listing(db):
        missing = min((set(one.definition.needs()) - has for has in workers), key=len, default=set())
        if missing:
            causes.append(f"nobody can execute {one.id}: it needs {', '.join(sorted(missing))}")
    return Finding("replicas", not causes, "; ".join(causes) or f"{len(alive)} running")
