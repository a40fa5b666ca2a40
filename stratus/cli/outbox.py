"""`stratus outbox`: shows what goes out to platforms, and settles what only a person can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratus.cli.opened import Opened, on_database, operator
from stratus.cli.output import Json, complain, print_fields, print_json, print_rows

if TYPE_CHECKING:
    from stratus.store.verdict import Settled

app = typer.Typer(name="outbox", help="Messages on their way to platforms.", no_args_is_help=True)
OpId = Annotated[int, typer.Argument(metavar="ID", min=1)]
OpIds = Annotated[list[int], typer.Argument(metavar="ID...", min=1)]
Note = Annotated[str, typer.Option(help="Why, for whoever looks later.")]


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as unknown.")] = None,
    channel: Annotated[str | None, typer.Option(help="Only those of this channel, by id or name.")] = None,
    older: Annotated[float | None, typer.Option(min=0, help="Only those older than so many seconds.")] = None,
    before: Annotated[
        int | None, typer.Option(min=1, help="Only those before this one: the last ID of a page.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List the newest operations with what is known of each."""
    from stratus.domain.outbox import OpState

    if state is not None and state not in set(OpState):
        raise typer.BadParameter(f"one of {', '.join(OpState)}", param_hint="--state")

    async def work(opened: Opened) -> None:
        from stratus.store.outbox_view import Filter, listing

        print_rows(
            await listing(opened.db, Filter(state=state, channel=channel, older=older, before=before, limit=limit)),
            [
                "id",
                "channel_name",
                "kind",
                "state",
                "attempts",
                "text",
                "error",
                "sent_message_id",
                "created_at",
                "run",
            ],
            as_json=as_json,
            empty="nothing there",
        )

    on_database(work)


@app.command()
def show(op: OpId, as_json: Json = False) -> None:
    """Show one operation with its evidence: each attempt, each verdict, and what stands around it in its chat."""

    async def work(opened: Opened) -> None:
        from stratus.store.outbox_view import evidence

        found = await evidence(opened.db, op)
        if as_json:
            print_json(found)
            return
        parts: dict[str, list[dict[str, Any]]] = {
            name: found.pop(name) for name in ("attempts_made", "verdicts", "around")
        }
        print_fields(found, as_json=False)
        columns = {
            "attempts_made": ["attempt", "replica", "started_at", "deadline", "ended_at", "outcome", "detail"],
            "verdicts": ["at", "by", "action", "from_state", "to_state", "note"],
            "around": ["id", "lane_seq", "kind", "state", "depends_on"],
        }
        for name, rows in parts.items():
            typer.echo(f"\n{name.replace('_', ' ')}:")
            print_rows(rows, columns[name], as_json=False, empty="none")

    on_database(work)


@app.command()
def resend(ops: OpIds, note: Note = "", as_json: Json = False) -> None:
    """Send `unknown` operations again. If the platform did take one, people see it twice."""
    _settle(ops, "resend", note, as_json)


@app.command("mark-sent")
def mark_sent(
    ops: OpIds,
    note: Note = "",
    message_id: Annotated[str | None, typer.Option(help="The message's id on the platform, for a single ID.")] = None,
    as_json: Json = False,
) -> None:
    """Settle `unknown` operations as sent: you saw them on the platform."""
    if message_id is not None and len(ops) > 1:
        raise typer.BadParameter("goes with a single ID", param_hint="--message-id")
    _settle(ops, "sent", note, as_json, message_id)


@app.command()
def cancel(ops: OpIds, note: Note = "", as_json: Json = False) -> None:
    """Give up pending or `unknown` operations, and what depends on them."""
    _settle(ops, "cancel", note, as_json)


def _settle(ops: list[int], action: str, note: str, as_json: bool, message_id: str | None = None) -> None:
    """One transaction for each: what one refuses does not hold up the others, and the command then exits with 1."""

    async def work(opened: Opened) -> tuple[list[Settled], list[str]]:
        from stratus.domain.errors import Rejected
        from stratus.effects import Ids
        from stratus.store import server
        from stratus.store.verdict import Verdict, settle

        settled, refused = [], []
        for op in dict.fromkeys(ops):
            try:
                verdict = Verdict(op, action, operator(), Ids().uuid(), note, message_id)
                settled.append(await settle(opened.db, verdict))
            except Rejected as error:
                refused.append(str(error))
        for channel in {one.channel_id for one in settled}:
            await server.hint(opened.db, "outbox", str(channel))
        return settled, refused

    settled, refused = on_database(work)
    rows = [{"id": one.op_id, "state": one.state} for one in settled]
    if as_json and (rows or not refused):
        print_json(rows[0] if len(ops) == 1 else rows)
    elif rows:
        print_rows(rows, ["id", "state"], as_json=False, empty="")
    for problem in refused:
        complain(problem)
    if refused:
        raise typer.Exit(1)
