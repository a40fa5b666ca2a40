"""`stratus chat`: talk to an agent in the terminal, over the same HTTP interface that programs use."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratus.cli.output import complain, print_json_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratus.cli.conversation import Conversation
    from stratus.cli.typed import Typed
    from stratus.config import Settings
    from stratus.domain.transcript import TurnView

TOKEN_VARIABLE = "STRATUS_TOKEN"
TOKEN_SECONDS = 12 * 3600.0


def chat(
    agent: Annotated[
        str | None, typer.Option(help="Whom to talk to; without it the session's, or the gateway's first one.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="The conversation to go on with; a new one without it.")] = None,
    url: Annotated[list[str] | None, typer.Option(help="Where a replica answers; repeat it for several.")] = None,
    once: Annotated[str | None, typer.Option(metavar="TEXT", help="Send this, print the answer, and end.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")] = False,
) -> None:
    """Talk to an agent. Ctrl-C stops the answer, Ctrl-D ends; /approve CODE and /deny CODE answer what it asks.

    The access token is read from STRATUS_TOKEN; without it one is made for twelve hours, where this machine can reach the database.
    """
    from stratus.cli.conversation import Conversation
    from stratus.cli.opened import quiet
    from stratus.cli.typed import Typed
    from stratus.config import load
    from stratus.effects import Ids

    quiet()
    settings = load()
    urls = url or [settings.public_url]
    conversation = Conversation(urls, _token(settings, urls), session or f"cli-{Ids().uuid()}")
    chosen = agent if agent or session else asyncio.run(_first_agent(conversation))
    at_terminal = sys.stdin.isatty()
    typed = Typed(prompt=at_terminal and not as_json)
    if once is not None:
        # Standard input may belong to the script around us.
        answers = typed if at_terminal and not as_json else None
        raise typer.Exit(0 if asyncio.run(_turn(conversation, chosen, once, answers, as_json=as_json)) else 1)
    if at_terminal and not as_json:
        typer.echo(f"session {conversation.session}")
    for text in _said_by_person(typed):
        asyncio.run(_turn(conversation, chosen, text, None if as_json else typed, as_json=as_json))


def _said_by_person(typed: Typed) -> Iterator[str]:
    from stratus.cli.typed import is_answer

    while True:
        try:
            text = typed.line()
        except KeyboardInterrupt:
            return
        if text is None:
            return
        if text and is_answer(text):
            complain("nothing waits for an answer here")
        elif text:
            yield text


def _token(settings: Settings, urls: list[str]) -> str:
    from stratus.cli.conversation import is_local
    from stratus.domain.errors import BadInput

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    # A token of our own database is for our own gateway: no other address is shown one.
    strange = [url for url in urls if url.rstrip("/") != settings.public_url and not is_local(url)]
    if strange:
        raise BadInput(f"set {TOKEN_VARIABLE} to a token for {strange[0]}; `stratus tokens create` makes one there")
    return _mint()


def _mint() -> str:
    from stratus.cli.opened import Opened, on_database

    async def work(opened: Opened) -> str:
        from stratus.store import principal

        owner = await principal.ensure_owner(opened.db)
        made = await principal.create_token(opened.db, owner.id, "api", name="stratus chat", ttl=TOKEN_SECONDS)
        return made.secret

    return on_database(work)


async def _first_agent(conversation: Conversation) -> str:
    from stratus.domain.errors import NotFound

    agents = await conversation.agents()
    if not agents:
        raise NotFound("the gateway has no agent yet; store one with `stratus agents apply PATH`")
    return agents[0]


async def _turn(
    conversation: Conversation, agent: str | None, text: str, typed: Typed | None, *, as_json: bool
) -> bool:
    """Whether the turn completed."""
    from stratus.cli.typed import Answers

    stop = asyncio.Event()
    with _interrupts(stop):
        async with asyncio.TaskGroup() as group:
            stopper = group.create_task(_stop_when(stop, conversation))
            answers = None if typed is None else Answers(conversation, typed, group)
            try:
                async with aclosing(conversation.ask(agent, text)) as events:
                    if as_json:
                        return await _print_json(events)
                    return await print_text(events, None if answers is None else answers.follow)
            finally:
                stopper.cancel()
                if answers is not None:
                    answers.close()


@contextmanager
def _interrupts(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C asks the turn to stop, the second one ends the program."""
    import signal

    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _stop_when(stop: asyncio.Event, conversation: Conversation) -> None:
    await stop.wait()
    complain("stopping; once more to leave")
    await conversation.stop()


async def _print_json(events: AsyncIterator[Mapping[str, Any]]) -> bool:
    kind = ""
    async for event in events:
        kind = event["kind"]
        print_json_line(event)
    return bool(kind == "run.completed")


async def print_text(
    events: AsyncIterator[Mapping[str, Any]], notice: Callable[[TurnView], None] | None = None
) -> bool:
    """Tell a turn as it comes, `notice` after each event how it stands; True if it completed."""
    from stratus.cli.telling import Teller

    teller = Teller()
    async for event in events:
        teller.tell(event)
        if notice is not None:
            notice(teller.view)
    return teller.view.state == "completed"
