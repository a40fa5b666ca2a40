"""The `stratus` command: collects the nouns, and turns every expected fault into one line and an exit code.

Exit codes: 0 done, 1 refused or failed, 2 usage.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from stratus.cli import (
    agents,
    approvals,
    backlog,
    channels,
    chat,
    config,
    doctor,
    groups,
    notify,
    outbox,
    replicas,
    runs,
    schedules,
    serve,
    sessions,
    tokens,
    up,
)
from stratus.cli.output import complain
from stratus.domain.errors import Broken, StratusError

app = typer.Typer(
    name="stratus",
    help="A gateway between people and LLM agents, on any number of replicas and one PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its imports alone would take longer than most commands
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("stratus"))
        raise typer.Exit


@app.callback()
def _root(
    _shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Options of the command as a whole."""


app.command("up")(up.up)
app.command("serve")(serve.serve)
app.command("migrate")(serve.migrate)
app.command("doctor")(doctor.doctor)
app.command("config")(config.config)
app.command("chat")(chat.chat)
app.command("groups")(groups.groups)
app.command("notify")(notify.notify)
app.command("replicas")(replicas.replicas)
app.command("backlog")(backlog.backlog)
for _noun in (agents, channels, sessions, runs, approvals, schedules, outbox, tokens):
    app.add_typer(_noun.app)


def main() -> None:
    """Run the command line of this process."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception as error:
        cause = _only_cause(error)
        if isinstance(cause, BrokenPipeError):  # whoever read our output has gone, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        elif isinstance(cause, StratusError) and not isinstance(cause, Broken):
            complain(str(cause))
        else:
            _report(error)
        sys.exit(1)


def _only_cause(error: Exception) -> Exception:
    """What a task group raises around one error is that error."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _report(error: Exception) -> None:
    import structlog

    from stratus.telemetry import configure_logging

    configure_logging()
    structlog.get_logger(__name__).error("command.failed", exc_info=error)
    complain(f"unexpected {type(error).__name__}; the line above is for a bug report")
