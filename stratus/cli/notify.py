"""`stratus notify`: sends a person a message, on the chat where they last wrote."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_rows


def notify(
    text: Annotated[str, typer.Argument(help="What to say, in Markdown.")],
    user: Annotated[UUID | None, typer.Option(help="Whom to tell, by their id.")] = None,
    session: Annotated[str | None, typer.Option(help="Or the session whose chat is told.")] = None,
    channel: Annotated[str | None, typer.Option(help="Only on this channel.")] = None,
    key: Annotated[str | None, typer.Option(help="The same key within a day sends nothing again.")] = None,
    as_json: Json = False,
) -> None:
    """Send a message to a person, or to a session's chat. It says how each piece of it stands."""
    if (user is None) == (session is None):
        raise typer.BadParameter("give either --user or --session")
    if not text.strip():
        raise typer.BadParameter("the text is empty")

    async def work(opened: Opened) -> None:
        from stratus.channel.registry import adapter_class
        from stratus.domain.chain import notification
        from stratus.effects import Ids
        from stratus.store import notification as notifications
        from stratus.store import server
        from stratus.store.notification import Order, Target

        new = Ids().uuid()
        order = Order(
            new,
            Target(user, session, channel),
            key or str(new),
            text,
            lambda platform, prefix: notification(text, adapter_class(platform).limits, prefix),
        )
        made = await notifications.notify(opened.db, order)
        await server.hint(opened.db, "outbox", str(made.channel_id))
        print_rows(
            [{**op, "repeated": made.repeated} for op in made.ops],
            ["id", "channel", "state", "sent_message_id", "error", "repeated"],
            as_json=as_json,
            empty="nothing there",
        )

    on_database(work)
