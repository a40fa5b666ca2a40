"""`stratus agents`: stores agent files, and shows what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_json, print_rows, printable_lines

if TYPE_CHECKING:
    from stratus.domain.agent import AgentDefinition
    from stratus.store.agent import AgentRow

app = typer.Typer(name="agents", help="Agents: stored from files, shown as files.", no_args_is_help=True)


@app.command()
def apply(
    path: Annotated[Path, typer.Argument(help="An agent file, or a folder of *.md files.", exists=True, readable=True)],
    as_json: Json = False,
) -> None:
    """Store agents. Existing sessions use the new definition from their next turn on."""
    definitions = _read(path)

    async def work(opened: Opened) -> None:
        from stratus.store import agent

        applied = await agent.apply(opened.db, definitions)
        print_rows(applied, ["id", "revision", "changed"], as_json=as_json, empty=f"there is no *.md file in {path}")

    on_database(work)


def _read(path: Path) -> list[AgentDefinition]:
    from stratus.agents import souls
    from stratus.domain.errors import BadInput

    if path.is_dir():
        return souls.read_folder(path)
    try:
        return [souls.parse(path.read_text(encoding="utf-8"), source=str(path))]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text: {error}") from error


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the agents."""

    async def work(opened: Opened) -> None:
        from stratus.store import agent

        rows = await agent.listing(opened.db)
        lines = [{**vars(row), "name": row.definition.name, "model": row.definition.model} for row in rows]
        print_rows(
            rows if as_json else lines,
            ["id", "name", "model", "revision", "updated_at"],
            as_json=as_json,
            empty="no agents yet; store some with `stratus agents apply PATH`",
        )

    on_database(work)


@app.command()
def show(agent_id: Annotated[str, typer.Argument(metavar="ID")], as_json: Json = False) -> None:
    """Print one agent as its file."""

    async def work(opened: Opened) -> None:
        from stratus.agents import souls

        row = await required(opened, agent_id)
        if as_json:
            print_json(row)
        else:
            typer.echo(printable_lines(souls.render(row.definition)), nl=False)

    on_database(work)


async def required(opened: Opened, agent_id: str) -> AgentRow:
    """The agent. Raises NotFound."""
    from stratus.domain.errors import NotFound
    from stratus.store import agent

    row = await agent.get(opened.db, agent_id)
    if row is None:
        raise NotFound(f"there is no agent {agent_id!r}; `stratus agents list` shows them")
    return row
