"""`stratus runs`: finds turns, shows what became of them, cancels them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from stratus.cli.opened import Opened, on_database, operator
from stratus.cli.output import Json, print_fields, print_rows

if TYPE_CHECKING:
    from stratus.store.view import RunView

app = typer.Typer(name="runs", help="Turns of sessions.", no_args_is_help=True)
RunId = Annotated[UUID, typer.Argument(metavar="RUN")]


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as queued or failed.")] = None,
    session: Annotated[str | None, typer.Option(help="Only those of this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List the newest runs."""
    from stratus.domain.run import RunState

    if state is not None and state not in set(RunState):
        raise typer.BadParameter(f"one of {', '.join(RunState)}", param_hint="--state")

    async def work(opened: Opened) -> None:
        from stratus.store import recent

        print_rows(
            await recent.runs(opened.db, state, session, limit),
            ["run", "session_id", "turn", "agent_id", "state", "error", "attempts", "worker", "enqueued_at"],
            as_json=as_json,
            empty="no runs",
        )

    on_database(work)


@app.command()
def show(run: RunId, as_json: Json = False) -> None:
    """Show a run: state, answer, error, usage, and the delivery of its answer."""

    async def work(opened: Opened) -> None:
        print_fields(await _required(opened, run), as_json=as_json)

    on_database(work)


@app.command()
def cancel(run: RunId, as_json: Json = False) -> None:
    """Cancel a run: a queued one at once, a running one on whichever replica it is."""

    async def work(opened: Opened) -> None:
        from stratus.domain.errors import Conflict
        from stratus.store import server, stop

        view = await _required(opened, run)
        met = await stop.stop(opened.db, view.session_id, operator(), queued=True, run=run)
        if not met.running and not met.canceled:
            raise Conflict(f"run {run} has ended: it is {view.state}")
        for topic, key in (("cancel", view.session_id), ("session", view.session_id), ("runs", "")):
            await server.hint(opened.db, topic, key)
        print_fields({"run": run, "canceled": bool(met.canceled), "asked_to_stop": met.running}, as_json=as_json)

    on_database(work)


async def _required(opened: Opened, run: UUID) -> RunView:
    from stratus.domain.errors import NotFound
    from stratus.store import view

    found = await view.run_view(opened.db, run)
    if found is None:
        raise NotFound(f"there is no run {run}; `stratus runs list` shows them")
    return found
