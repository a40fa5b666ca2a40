"""`stratus sessions`: finds conversations, shows and exports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_fields, print_json, print_json_line, print_rows, printable_lines, shown

if TYPE_CHECKING:
    from stratus.store.session import SessionRow

EXPORT_PAGE = 200

app = typer.Typer(name="sessions", help="Conversations.", no_args_is_help=True)
SessionId = Annotated[str, typer.Argument(metavar="ID")]


@app.command("list")
def list_(
    query: Annotated[str | None, typer.Option(help="Part of the title or id.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="The archived ones instead.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List sessions: those that wait for somebody first, then by activity."""

    async def work(opened: Opened) -> None:
        from stratus.store import session

        found = await session.listing(
            opened.db, owner_id=None, agent_id=agent, archived=archived, query=query, limit=limit
        )
        print_rows(
            found,
            ["id", "agent_id", "title", "open_state", "message_seq", "active_at"],
            as_json=as_json,
            empty="no sessions",
        )

    on_database(work)


@app.command()
def show(
    session_id: SessionId,
    limit: Annotated[int, typer.Option(min=0, max=200, help="How many of the newest messages.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a session and its newest messages."""

    async def work(opened: Opened) -> None:
        from stratus.domain.values import Message
        from stratus.store import message

        head = await _required(opened, session_id)
        page = await message.page(opened.db, session_id, None, limit) if limit else None
        messages = page.messages if page else []
        if as_json:
            print_json({**vars(head), "messages": messages})
            return
        print_fields(head, as_json=False)
        for one in messages:
            text = Message(role="user", parts=one.parts).text()
            typer.echo(f"\n[{one.position}] {one.role}, {shown(one.created_at)}\n{printable_lines(text)}")

    on_database(work)


@app.command()
def export(session_id: SessionId) -> None:
    """Print all messages of a session as NDJSON, oldest first."""

    async def work(opened: Opened) -> None:
        from stratus.store import message

        last = (await _required(opened, session_id)).message_seq
        for start in range(1, last + 1, EXPORT_PAGE):
            # Positions have no gaps, so the page before `start + EXPORT_PAGE` begins at `start`.
            end = min(start + EXPORT_PAGE, last + 1)
            page = await message.page(opened.db, session_id, end, end - start)
            for one in page.messages if page else []:
                print_json_line(one)

    on_database(work)


async def _required(opened: Opened, session_id: str) -> SessionRow:
    from stratus.domain.errors import NotFound
    from stratus.store import session

    row = await session.get(opened.db, session_id)
    if row is None:
        raise NotFound(f"there is no session {session_id!r}; `stratus sessions list` shows them")
    return row
