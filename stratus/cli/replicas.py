"""`stratus replicas`: the processes of the last day."""

from __future__ import annotations

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_rows


def replicas(as_json: Json = False) -> None:
    """List the replicas of the last day, and how long ago each was seen."""

    async def work(opened: Opened) -> None:
        from stratus.store import replica

        print_rows(
            await replica.listing(opened.db),
            ["id", "host", "pid", "version", "roles", "started_at", "unseen_seconds", "draining"],
            as_json=as_json,
            empty="no replica was here during the last day",
        )

    on_database(work)
