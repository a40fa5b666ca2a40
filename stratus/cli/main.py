"""The `stratus` command: collects the nouns, and turns every expected fault into one line and an exit code.

Exit codes: 0 done, 1 refused or failed, 2 usage.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stratus.cli import (
    agents,
    channels,
    chat,
    config,
    doctor,
    outbox,
    replicas,
    runs,
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
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("stratus"))
        raise typer.Exit


@app.callback()
def _root(
    _shown: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")] = False,
) -> None:
    """Options of the command as a whole."""


app.command("up")(up.up)
app.command("serve")(serve.serve)
app.command("migrate")(serve.migrate)
app.command("doctor")(doctor.doctor)
app.command("config")(config.config)
app.command("chat")(chat.chat)
app.command("replicas")(replicas.replicas)
for _noun in (agents, channels, sessions, runs, outbox, tokens):
    app.add_typer(_noun.app)


def main() -> None:
    """Run the command line of this process."""
    try:
        app()
    except (Broken, ExceptionGroup) as error:
        _unexpected(error)
    except StratusError as error:
        complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception as error:
        _unexpected(error)


def _unexpected(error: Exception) -> None:
    import structlog

    from stratus.telemetry import configure_logging

    configure_logging()
    structlog.get_logger(__name__).error("command.failed", exc_info=error)
    complain(f"unexpected {type(error).__name__}; the lines above are for a bug report")
    sys.exit(1)
