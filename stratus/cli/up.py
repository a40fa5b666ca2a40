"""`stratus up`: one command to a running gateway, with its database, its first agent and a link to sign in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import typer

from stratus.cli.agent_folder import AgentFolder
from stratus.cli.serve import run_loop
from stratus.cli.signin import signin_link

if TYPE_CHECKING:
    from stratus.config import Settings
    from stratus.embedded import EmbeddedPostgres

FOLLOW_SECONDS = 1.0
KEEP_SECONDS = 15.0


def up() -> None:
    """Run a gateway: database, schema, agents from STRATUS_HOME/agents (edits are followed), console. Prints a sign-in link."""
    from stratus.config import load
    from stratus.telemetry import configure_logging

    configure_logging()
    raise typer.Exit(run_loop(_up(load())))


async def _up(settings: Settings) -> int:
    from stratus import replica
    from stratus.cli.opened import database, reach, server
    from stratus.store import migrate

    typer.echo("stratus: opening the database")
    async with server(settings) as (complete, embedded):
        await reach(complete)
        await migrate.upgrade(complete.dsn)
        async with database(complete) as db:
            folder = AgentFolder(db, complete.home / "agents")
            folder.prepare()
            await folder.follow()
            link = await signin_link(db, complete.public_url, "stratus up")
            typer.echo(f"stratus: agents in {folder.path} are followed")
            typer.echo(f"stratus: sign in within 15 minutes at {link}")
            async with _meanwhile(folder, embedded):
                return await replica.serve(complete)


@asynccontextmanager
async def _meanwhile(folder: AgentFolder, embedded: EmbeddedPostgres | None) -> AsyncIterator[None]:
    """While the body runs: follow the agents' files, and bring back the embedded server whose guard was killed, too."""
    from stratus.effects import Loop

    loops = [Loop("agents", folder.follow, FOLLOW_SECONDS)]
    if embedded is not None:

        async def keep() -> bool:
            await asyncio.to_thread(embedded.start)
            return False

        loops.append(Loop("embedded", keep, KEEP_SECONDS))
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop.run())
        try:
            yield
        finally:
            for loop in loops:
                loop.stop()
