"""`stratus chat`: talk to an agent in the terminal, over the same HTTP interface that programs use."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratus.cli.output import complain, print_json_line, printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratus.cli.conversation import Conversation
    from stratus.config import Settings

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
    """Talk to an agent. Ctrl-C stops the answer, Ctrl-D ends.

    The access token is read from STRATUS_TOKEN; without it one is made for twelve hours, where this machine can reach the database.
    """
    from stratus.cli.conversation import Conversation
    from stratus.cli.opened import quiet
    from stratus.config import load
    from stratus.effects import Ids

    quiet()
    settings = load()
    urls = url or [settings.public_url]
    conversation = Conversation(urls, _token(settings, urls), session or f"cli-{Ids().uuid()}")
    chosen = agent if agent or session else asyncio.run(_first_agent(conversation))
    if once is not None:
        raise typer.Exit(0 if asyncio.run(_turn(conversation, chosen, once, as_json)) else 1)
    if sys.stdin.isatty() and not as_json:
        typer.echo(f"session {conversation.session}")
    for text in _said_by_person(prompt=sys.stdin.isatty() and not as_json):
        asyncio.run(_turn(conversation, chosen, text, as_json))


def _said_by_person(prompt: bool) -> Iterator[str]:
    if prompt:
        import readline  # noqa: F401  # its import gives `input` line editing and a history
    while True:
        try:
            text = input("> " if prompt else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if text:
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


async def _turn(conversation: Conversation, agent: str | None, text: str, as_json: bool) -> bool:
    """Whether the turn completed."""
    stop = asyncio.Event()
    with _interrupts(stop):
        async with asyncio.TaskGroup() as group:
            stopper = group.create_task(_stop_when(stop, conversation))
            try:
                async with aclosing(conversation.ask(agent, text)) as events:
                    return await (_print_json(events) if as_json else print_text(events))
            finally:
                stopper.cancel()


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


async def print_text(events: AsyncIterator[Mapping[str, Any]]) -> bool:
    """Print text as it streams; True if the turn completed.

    What was streamed and what is completed later is the same text, so only the rest is printed then.
    """
    streamed = completed = kind = ""
    async for event in events:
        kind = event["kind"]
        if kind == "text.delta":
            streamed += event["text"]
            _write(event["text"])
        elif kind == "text.completed":
            completed += event["text"]
            if not streamed.startswith(completed):
                _write(completed.removeprefix(streamed))
                streamed = completed
        elif kind in {"message.assistant", "run.resumed"}:
            _write("\n" if streamed else "")
            streamed = completed = ""
        elif kind == "tool.started":
            complain(f"uses {event['name']}")
    if kind != "run.completed":
        complain(_why(kind, event.get("error")))
    return bool(kind == "run.completed")


def _why(kind: str, error: Mapping[str, Any] | None) -> str:
    what = kind.removeprefix("run.")
    return f"{what}: {error['message']}" if error else what


def _write(text: str) -> None:
    sys.stdout.write(printable_lines(text))
    sys.stdout.flush()
