"""`stratus tokens`: access tokens of the HTTP API. A secret is shown once, when it is made."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_fields, print_json, print_rows
from stratus.cli.signin import signin_link

app = typer.Typer(name="tokens", help="Access tokens of the HTTP API.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    ttl: Annotated[str | None, typer.Option(help="How long it is valid, such as 8h; for ever without it.")] = None,
    as_json: Json = False,
) -> None:
    """Make a token of the owner. Its secret is printed now and never again."""
    from stratus.config import seconds

    try:
        lifetime = None if ttl is None else seconds(ttl)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ttl") from error

    async def work(opened: Opened) -> None:
        from stratus.store import principal

        owner = await principal.ensure_owner(opened.db)
        made = await principal.create_token(opened.db, owner.id, "api", name=name, ttl=lifetime)
        if as_json:
            print_json({"id": made.public_id, "name": name, "secret": made.secret, "expires_at": made.expires_at})
        else:
            typer.echo(made.secret)
            typer.echo(f"token {made.public_id}: the line above is its secret, and is not shown again", err=True)

    on_database(work)


@app.command()
def signin(as_json: Json = False) -> None:
    """Print a link that signs the owner in to the console, once, within 15 minutes."""

    async def work(opened: Opened) -> None:
        link = await signin_link(opened.db, opened.settings.public_url, "stratus tokens signin")
        print_json({"link": link}) if as_json else typer.echo(link)

    on_database(work)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the valid tokens, API tokens and browser sessions."""

    async def work(opened: Opened) -> None:
        from stratus.store import principal

        print_rows(
            await principal.listing(opened.db, None),
            ["id", "kind", "name", "principal_name", "created_at", "expires_at"],
            as_json=as_json,
            empty="no tokens; make one with `stratus tokens create`",
        )

    on_database(work)


@app.command()
def revoke(token: Annotated[UUID, typer.Argument(metavar="ID")], as_json: Json = False) -> None:
    """End a token at once."""

    async def work(opened: Opened) -> None:
        from stratus.domain.errors import NotFound
        from stratus.store import principal

        if not await principal.revoke(opened.db, token, None):
            raise NotFound(f"there is no token {token}; `stratus tokens list` shows them")
        print_fields({"revoked": token}, as_json=as_json)

    on_database(work)
