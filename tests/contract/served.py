"""What the drivers of the platforms' fakes share: the fake behind a server of its own, and how it answers each fault of the suite."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from starlette.applications import Starlette

from stratus.channel.driver import RETRY_AFTER_SECONDS, Fault
from testbed.fakes.server import FakeServer

ANSWERS: dict[Fault, dict[str, Any]] = {
    Fault.REFUSED: {"answer": 400},
    Fault.RATE_LIMITED: {"answer": 429, "retry_after": RETRY_AFTER_SECONDS},
    Fault.UNAUTHORIZED: {"answer": 401},
    Fault.UNFORMATTED: {"answer": 400},
    Fault.SERVER_ERROR: {"answer": "store_then_502html"},
    Fault.LOST: {"answer": "store_then_reset"},
    Fault.SILENCE: {"answer": "store_then_hang"},
}


class Served:
    """A fake that is served as long as this is entered."""

    def __init__(self, app: Starlette) -> None:
        self._server = FakeServer(app)

    @property
    def url(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)
