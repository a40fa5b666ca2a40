"""`stratus serve`, one replica on a migrated database, and `stratus migrate`, which prepares it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import typer

from stratus.cli.output import Json, print_fields

if TYPE_CHECKING:
    from stratus.config import Settings


def serve() -> None:
    """Run one replica until SIGTERM or SIGINT, then drain. The database must be migrated."""
    from stratus.config import load
    from stratus.telemetry import configure_logging

    configure_logging()
    raise typer.Exit(run_loop(_serve(load())))


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run a replica's coroutine on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def _serve(settings: Settings) -> int:
    from stratus import replica
    from stratus.cli.opened import database, require_current, server

    async with server(settings) as (complete, _):
        await require_current(complete)
        async with database(complete):
            pass
        return await replica.serve(complete)


def migrate(as_json: Json = False) -> None:
    """Bring the database to this release's schema. Safe to run from several places at once."""
    from stratus.cli.opened import quiet
    from stratus.config import load

    quiet()
    print_fields({"revision": asyncio.run(_migrate(load()))}, as_json=as_json)


async def _migrate(settings: Settings) -> str:
    from stratus.cli.opened import reach, server
    from stratus.store import migrate

    async with server(settings) as (complete, _):
        await reach(complete)
        await migrate.upgrade(complete.dsn)
    return migrate.head()
