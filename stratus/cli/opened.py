"""Opens what a command works on: the settings, the database that they name or the embedded one, checked and closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stratus.config import Settings
    from stratus.embedded import EmbeddedPostgres
    from stratus.store.database import Database

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """A database in reach, and the complete settings that lead to it."""

    settings: Settings
    db: Database


def on_database(work: Callable[[Opened], Awaitable[T]]) -> T:
    """Run `work` on the migrated database of this process's settings. Raises BadSetting, DatabaseAway, EmbeddedError and what `work` raises."""
    import asyncio

    from stratus.config import load

    quiet()

    async def run() -> T:
        async with server(load()) as (settings, _):
            await require_current(settings)
            async with database(settings) as db:
                return await work(Opened(settings, db))

    return asyncio.run(run())


def quiet() -> None:
    """Only warnings on stderr: a command's own output is its report."""
    import logging

    from stratus.telemetry import configure_logging

    configure_logging(logging.WARNING)


@asynccontextmanager
async def server(settings: Settings) -> AsyncIterator[tuple[Settings, EmbeddedPostgres | None]]:
    """Settings with a database and a key in them; without STRATUS_DATABASE_URL the embedded server runs meanwhile.

    Raises EmbeddedError, BadSetting.
    """
    if settings.database_url is not None:
        yield settings, None
        return
    import asyncio

    from pydantic import SecretStr

    from stratus.config import ensure_secret_key
    from stratus.embedded import EmbeddedPostgres

    embedded = EmbeddedPostgres(settings.home / "postgres")
    await asyncio.to_thread(embedded.start)
    try:
        await embedded.ensure_database()
        # Not the other way round: the server's start makes the home with the modes that its account needs.
        complete = ensure_secret_key(settings)
        yield complete.model_copy(update={"database_url": SecretStr(embedded.dsn())}), embedded
    finally:
        await asyncio.to_thread(embedded.close)


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[Database]:
    """A small connected Database. Raises DatabaseAway or BadSetting, naming the address without its password."""
    from stratus.store.database import Database

    db = Database(settings.dsn, application_name="stratus-cli", main_size=2, ingress_size=1)
    with _naming(settings.dsn):
        await db.open()
    try:
        yield db
    finally:
        await db.close()


async def reach(settings: Settings) -> None:
    """Whether the database answers, migrated or not. Raises as `database` does."""
    from stratus.store import migrate

    with _naming(settings.dsn):
        await migrate.reach(settings.dsn)


@contextmanager
def _naming(dsn: str) -> Iterator[None]:
    from stratus.config import without_password
    from stratus.domain.errors import BadSetting, Broken, DatabaseAway

    where = without_password(dsn)
    try:
        yield
    except DatabaseAway as error:
        raise DatabaseAway(f"{error}, at {where}; check STRATUS_DATABASE_URL and that the server runs") from error
    except (Broken, ValueError) as error:
        raise BadSetting(f"STRATUS_DATABASE_URL: {where} refuses us: {error}") from error


async def require_current(settings: Settings) -> None:
    """Raises BadSetting when the database was not migrated to this release, else as `database` does."""
    from stratus.store import migrate

    with _naming(settings.dsn):
        await migrate.require_current(settings.dsn)


def operator() -> str:
    """Who acts, for the record: the account on this machine."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "cli"
