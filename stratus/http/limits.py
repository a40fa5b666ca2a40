"""Takes requests in before anything parses them: bodies bounded in size and in time, addresses that PostgreSQL can store."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stratus.domain.errors import BadInput, TooLarge
from stratus.http.errors import answer, problem

BODY_MAX = 1_048_576
BODY_SECONDS = 30.0


class Limits:
    """ASGI middleware: 400 for a NUL in the address, 413 over BODY_MAX octets, 408 for a body that takes longer than BODY_SECONDS."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused: Response | None = None
        try:
            if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
                raise BadInput("an address holds no NUL")
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(scope, receive)
        except (BadInput, TooLarge) as error:
            refused = answer(error)
        except TimeoutError:
            refused = problem(408, "Too slow", "too_slow", f"the body did not arrive within {BODY_SECONDS:g} seconds")
        if refused is not None:
            refused.headers["Connection"] = "close"
            await refused(scope, receive, send)
        elif body is not None:
            await self._app(scope, _replay(body, receive), send)


async def _body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body; None when the client went away. Raises TooLarge, by the announced length before a byte is read."""
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if len(announced) > 10 or int(announced) > BODY_MAX:
        raise TooLarge(f"a request's body has at most {BODY_MAX} octets")
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > BODY_MAX:
            raise TooLarge(f"a request's body has at most {BODY_MAX} octets")
        if not message.get("more_body", False):
            return b"".join(pieces)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
