"""`stratus groups`: shows which messages of groups were answered by whom, and why others were not."""

from __future__ import annotations

from typing import Annotated

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_rows


def groups(
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as hold.")] = None,
    chat: Annotated[str | None, typer.Option(help="Only those of this chat, by the platform's id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List the newest decisions on messages in groups: who answers, who waits, and why nobody does."""
    from stratus.domain.group import GroupState

    if state is not None and state not in set(GroupState):
        raise typer.BadParameter(f"one of {', '.join(GroupState)}", param_hint="--state")

    async def work(opened: Opened) -> None:
        from dataclasses import asdict

        from stratus.store import group

        print_rows(
            [asdict(row) for row in await group.listing(opened.db, state, chat, limit)],
            ["id", "platform", "chat", "message", "state", "reason", "observer", "responder", "run", "run_state"],
            as_json=as_json,
            empty="nothing there",
        )

    on_database(work)
