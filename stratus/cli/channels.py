"""`stratus channels`: the bots on chat platforms. Credentials are sealed here and never shown again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratus.cli.opened import Opened, on_database
from stratus.cli.output import Json, print_fields, print_rows
from stratus.cli.pairs import read_credentials, read_options

if TYPE_CHECKING:
    from uuid import UUID

    from stratus.channel import Adapter
    from stratus.config import Settings
    from stratus.store.channel import ChannelRow

CHECK_SECONDS = 20.0

app = typer.Typer(name="channels", help="Bots on chat platforms.", no_args_is_help=True)
ChannelKey = Annotated[str, typer.Argument(metavar="NAME", help="The channel's name or id.")]


@app.command()
def add(
    platform: Annotated[str, typer.Option(help="Such as telegram.")],
    name: Annotated[str, typer.Option(help="Yours to choose; unique.")],
    agent: Annotated[str, typer.Option(help="The agent that answers.")],
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Repeat it; VALUE may be JSON.")] = None,
    credential: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="KEY=- asks or reads a line of stdin, KEY=env:NAME reads a variable. Repeat it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a bot. A replica takes it up within seconds."""
    options = read_options(option or [])
    credentials = read_credentials(credential or [])

    async def work(opened: Opened) -> None:
        from stratus.cli.agents import required
        from stratus.domain.routing import Access
        from stratus.effects import Ids
        from stratus.store import channel, server
        from stratus.store.vault import Vault

        _refuse_test_platform(opened.settings, platform)
        Access.of(options)
        await required(opened, agent)
        public_id = Ids().uuid()
        _adapter(opened.settings, platform, public_id, name, options, credentials)
        vault = Vault([key.get_secret_value() for key in opened.settings.secret_key])
        sealed = vault.seal(public_id, credentials) if credentials else None
        row = await channel.create(opened.db, public_id, platform, name, agent, options, sealed)
        await server.hint(opened.db, "channels", "")
        print_fields({"id": row.public_id, "name": row.name, "platform": row.platform}, as_json=as_json)

    on_database(work)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the channels, how each does, and which replica runs it."""

    async def work(opened: Opened) -> None:
        from stratus.store import channel

        print_rows(
            [describe(row) for row in await channel.listing(opened.db)],
            ["name", "platform", "agent_id", "enabled", "state", "cause", "account_key", "replica", "last_error"],
            as_json=as_json,
            empty="no channels yet; add one with `stratus channels add`",
        )

    on_database(work)


def describe(row: ChannelRow) -> dict[str, Any]:
    """A channel for people and programs: everything but its credentials."""
    shown = {name: value for name, value in vars(row).items() if name not in {"id", "public_id", "credentials"}}
    return {
        "id": row.public_id,
        **shown,
        "state": row.health.get("state") if row.enabled else "disabled",
        "cause": row.health.get("cause"),
    }


@app.command()
def enable(key: ChannelKey, as_json: Json = False) -> None:
    """Let a channel run."""
    _switch(key, True, as_json)


@app.command()
def disable(key: ChannelKey, as_json: Json = False) -> None:
    """Stop a channel: nothing is received or sent, what waits stays."""
    _switch(key, False, as_json)


def _switch(key: str, enabled: bool, as_json: bool) -> None:
    async def work(opened: Opened) -> None:
        from stratus.store import channel, server

        row = await channel.get(opened.db, key)
        await channel.set_enabled(opened.db, row.id, enabled)
        await server.hint(opened.db, "channels", "")
        print_fields({"name": row.name, "enabled": enabled}, as_json=as_json)

    on_database(work)


@app.command()
def check(key: ChannelKey, as_json: Json = False) -> None:
    """Ask the platform who the bot is, with the stored credentials."""

    async def work(opened: Opened) -> None:
        from stratus.domain.errors import Conflict
        from stratus.store import channel
        from stratus.store.vault import CredentialsUnreadable, Vault

        row = await channel.get(opened.db, key)
        vault = Vault([one.get_secret_value() for one in opened.settings.secret_key])
        try:
            credentials = vault.open(row.public_id, row.credentials) if row.credentials else {}
        except CredentialsUnreadable as error:
            raise Conflict(f"{row.name}: {error}") from error
        adapter = _adapter(opened.settings, row.platform, row.public_id, row.name, row.config, credentials)
        account = await _ask(adapter, row.name)
        print_fields({"name": row.name, "account": account, **_standing(row)}, as_json=as_json)

    on_database(work)


def _standing(row: ChannelRow) -> dict[str, object]:
    return {name: value for name, value in describe(row).items() if name in {"enabled", "state", "cause", "replica"}}


async def _ask(adapter: Adapter, name: str) -> str:
    import asyncio

    from stratus.channel.errors import AccountStopped
    from stratus.domain.errors import Conflict

    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await adapter.account()
    except AccountStopped as error:
        raise Conflict(f"{name}: {error}") from error
    except ImportError as error:
        raise Conflict(f"{name}: the platform's extra is not installed ({error.name} is missing)") from error
    except Exception as error:  # an adapter may raise whatever its SDK does; its text may hold a URL with a token
        raise Conflict(f"{name}: the platform could not be asked ({type(error).__name__})") from error
    finally:
        await adapter.close()


@app.command()
def reseal(as_json: Json = False) -> None:
    """Encrypt all stored credentials by the first of the keys anew. Exit code 1 if some could not be opened: keep the older keys then."""

    async def work(opened: Opened) -> bool:
        from stratus.store import reseal as store
        from stratus.store.vault import Vault

        vault = Vault([one.get_secret_value() for one in opened.settings.secret_key])
        found = await store.reseal(opened.db, vault)
        shown: object = found.unreadable if as_json else ", ".join(found.unreadable)
        print_fields(
            {"resealed": found.resealed, "current": found.current, "unreadable": shown or ([] if as_json else "none")},
            as_json=as_json,
        )
        return not found.unreadable

    if not on_database(work):
        raise typer.Exit(1)


@app.command()
def remove(
    key: ChannelKey,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a channel: its credentials are deleted, what waits to be sent is canceled."""
    if not yes:
        typer.confirm(f"Remove channel {key}?", abort=True, err=True)

    async def work(opened: Opened) -> None:
        from stratus.store import channel, server

        row = await channel.get(opened.db, key)
        await channel.delete(opened.db, row.id)
        await server.hint(opened.db, "channels", "")
        print_fields({"removed": row.name}, as_json=as_json)

    on_database(work)


def _refuse_test_platform(settings: Settings, platform: str) -> None:
    from stratus.domain.errors import BadInput

    if platform == "testchan" and not settings.test_channels:
        raise BadInput("the platform testchan is for tests; set STRATUS_TEST_CHANNELS=on to allow it")


def _adapter(
    settings: Settings,
    platform: str,
    public_id: UUID,
    name: str,
    options: Mapping[str, Any],
    credentials: Mapping[str, str],
) -> Adapter:
    from pydantic import SecretStr

    from stratus.channel.errors import BadCredentials
    from stratus.channel.registry import UnknownPlatform, adapter_class
    from stratus.channel.values import ChannelConfig
    from stratus.domain.errors import BadInput

    config = ChannelConfig(
        channel_id=str(public_id),
        name=name,
        options=options,
        credentials={key: SecretStr(value) for key, value in credentials.items()},
        webhook_url=f"{settings.public_url}/hooks/{public_id}",
    )
    try:
        return adapter_class(platform)(config)
    except ImportError as error:
        raise BadInput(
            f"{platform} needs its extra: pip install 'stratus[{platform}]' ({error.name} is missing)"
        ) from error
    except (UnknownPlatform, BadCredentials) as error:
        raise BadInput(str(error)) from error
    except (ValueError, TypeError) as error:
        raise BadInput(f"an option of {platform} is not acceptable: {error}") from error
