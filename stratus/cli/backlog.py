"""`stratus backlog`: what waits in the gateway's queues."""

from __future__ import annotations

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_rows


def backlog(as_json: Json = False) -> None:
    """Show how much waits in each queue, by state, and for how many seconds its oldest has."""

    async def work(opened: Opened) -> None:
        from stratus.store import view

        print_rows(
            await view.backlog(opened.db),
            ["queue", "state", "total", "oldest"],
            as_json=as_json,
            empty="nothing waits",
        )

    on_database(work)
