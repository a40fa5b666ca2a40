"""`stratus schedules`: what an agent is asked at set times, and what became of each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_fields, print_json, print_rows

if TYPE_CHECKING:
    from stratus.store.schedule import OccurrenceRow

app = typer.Typer(name="schedules", help="What agents are asked at set times.", no_args_is_help=True)
ScheduleKey = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name or id.")]


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="What the agent is asked each time.")],
    name: Annotated[str, typer.Option(help="Yours to choose; unique.")],
    agent: Annotated[str, typer.Option(help="The agent that is asked.")],
    cron: Annotated[
        str, typer.Option(help="Minute, hour, day of month, month, day of week: '30 7 * * 1-5' is 7:30 on weekdays.")
    ],
    zone: Annotated[str, typer.Option(help="Whose clocks count, such as Europe/Berlin.")] = "UTC",
    catch_up: Annotated[
        str, typer.Option(help="What was missed: `skip` it, run `one` for all of it, or run `all`.")
    ] = "one",
    session: Annotated[str | None, typer.Option(help="The session that it runs in, instead of its own.")] = None,
    channel: Annotated[str | None, typer.Option(help="Answer on this channel, in --chat.")] = None,
    chat: Annotated[str | None, typer.Option(help="The platform's id of the chat.")] = None,
    thread: Annotated[str | None, typer.Option(help="The platform's id of a thread in it.")] = None,
    as_json: Json = False,
) -> None:
    """Add a schedule. Without --channel and --chat it answers into its session only."""

    async def work(opened: Opened) -> None:
        from stratus.domain.schedule import asked, catch_up_of
        from stratus.effects import Ids
        from stratus.store import principal, schedule, server

        new = schedule.NewSchedule(
            public_id=Ids().uuid(),
            name=name,
            agent_id=agent,
            owner_id=(await principal.ensure_owner(opened.db)).id,
            cron=cron,
            time_zone=zone,
            input=asked(text),
            catch_up=catch_up_of(catch_up),
            session_id=session,
            reply_to=await schedule.answer_to(opened.db, channel, chat, thread),
        )
        made = await schedule.create(opened.db, new)
        await server.hint(opened.db, "schedules", "")
        print_fields(made.shown(), as_json=as_json)

    on_database(work)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the schedules, each with its next time."""

    async def work(opened: Opened) -> None:
        from stratus.store import schedule

        print_rows(
            [row.shown() for row in await schedule.listing(opened.db)],
            ["name", "agent", "cron", "time_zone", "channel", "chat", "enabled", "next_at"],
            as_json=as_json,
            empty="no schedules yet; add one with `stratus schedules add`",
        )

    on_database(work)


@app.command()
def show(key: ScheduleKey, limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: Json = False) -> None:
    """Show a schedule, and what became of its last occurrences."""

    async def work(opened: Opened) -> None:
        from stratus.store import schedule

        row = await schedule.get(opened.db, key)
        last = await schedule.occurrences(opened.db, row.id, limit)
        if as_json:
            print_json({**row.shown(), "occurrences": last})
            return
        print_fields(row.shown(), as_json=False)
        typer.echo()
        lines = [{**vars(one), "became": _became(one)} for one in last]
        print_rows(lines, ["due_at", "became", "run", "at"], as_json=False, empty="it was not due yet")

    on_database(work)


def _became(one: OccurrenceRow) -> str:
    if one.run is None:
        return f"skipped: {one.reason}"
    return f"{one.run_state}: {one.error['message']}" if one.error else f"{one.run_state}"


@app.command()
def enable(key: ScheduleKey, as_json: Json = False) -> None:
    """Let a schedule run from its next occurrence on."""
    _switch(key, True, as_json)


@app.command()
def disable(key: ScheduleKey, as_json: Json = False) -> None:
    """Stop a schedule. What passes meanwhile is not caught up."""
    _switch(key, False, as_json)


def _switch(key: str, enabled: bool, as_json: bool) -> None:
    async def work(opened: Opened) -> None:
        from stratus.store import schedule, server

        row = await schedule.get(opened.db, key)
        await schedule.set_enabled(opened.db, row.id, enabled)
        await server.hint(opened.db, "schedules", "")
        after = await schedule.get(opened.db, str(row.public_id))
        print_fields({"name": after.name, "enabled": after.enabled, "next_at": after.next_at}, as_json=as_json)

    on_database(work)


@app.command()
def remove(
    key: ScheduleKey,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a schedule and the record of its occurrences. Its session and runs stay."""
    if not yes:
        typer.confirm(f"Remove schedule {key}?", abort=True, err=True)

    async def work(opened: Opened) -> None:
        from stratus.store import schedule

        row = await schedule.get(opened.db, key)
        await schedule.remove(opened.db, row.id)
        print_fields({"removed": row.name}, as_json=as_json)

    on_database(work)
