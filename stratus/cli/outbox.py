"""`stratus outbox`: shows what goes out to platforms, and settles what only a person can."""

from __future__ import annotations

from typing import Annotated

import typer

from stratus.cli.opened import Opened, on_database, operator
from stratus.cli.output import Json, print_fields, print_rows

app = typer.Typer(name="outbox", help="Messages on their way to platforms.", no_args_is_help=True)
OpId = Annotated[int, typer.Argument(metavar="ID", min=1)]


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as unknown.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List the newest operations with what is known of each."""
    from stratus.domain.outbox import OpState

    if state is not None and state not in set(OpState):
        raise typer.BadParameter(f"one of {', '.join(OpState)}", param_hint="--state")

    async def work(opened: Opened) -> None:
        from stratus.store import outbox

        print_rows(
            await outbox.listing(opened.db, state, limit),
            ["id", "channel_name", "kind", "state", "attempts", "error", "sent_message_id", "created_at", "run"],
            as_json=as_json,
            empty="nothing there",
        )

    on_database(work)


@app.command()
def resend(op: OpId, as_json: Json = False) -> None:
    """Send an `unknown` operation again. If the platform did take it, people see it twice."""
    _settle(op, "resend", as_json)


@app.command("mark-sent")
def mark_sent(op: OpId, as_json: Json = False) -> None:
    """Settle an `unknown` operation as sent: you saw it on the platform."""
    _settle(op, "evidence", as_json)


@app.command()
def cancel(op: OpId, as_json: Json = False) -> None:
    """Give up a pending or `unknown` operation, and what depends on it."""
    _settle(op, "cancel", as_json)


def _settle(op: int, event_name: str, as_json: bool) -> None:
    from stratus.domain.outbox import OUTBOX, OpEvent

    event = OpEvent(event_name)
    sources = [str(state) for state in OUTBOX.sources(event)]
    [to] = {str(target) for (_, moved_by), target in OUTBOX.moves.items() if moved_by is event}

    async def work(opened: Opened) -> None:
        from stratus.domain.errors import Conflict
        from stratus.store import outbox, server

        channel = await outbox.settle_by_operator(opened.db, op, to, sources, operator())
        if channel is None:
            raise Conflict(f"there is no operation {op} that is {' or '.join(sorted(sources))}")
        await server.hint(opened.db, "outbox", str(channel))
        print_fields({"id": op, "state": to}, as_json=as_json)

    on_database(work)
