"""Pushes webhook requests in order, each again until it is answered 2xx: what platforms with webhooks do."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import httpx

_FIRST_DELAY_SECONDS = 0.05
_LAST_DELAY_SECONDS = 1.0


class Pusher:
    """One webhook. Retries wait 0.05 s doubling to 1 s, or as long as `Retry-After` says."""

    def __init__(
        self, url: str, headers: Mapping[str, str], on_reply: Callable[[Any, httpx.Response], None] | None = None
    ) -> None:
        self.url = url
        self.headers = dict(headers)
        self.pending: deque[Any] = deque()
        self.attempts = 0
        self.refusals = 0
        self._on_reply = on_reply
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, body: Any) -> None:
        """Push `body` (a JSON value, or bytes as they are) after all that wait already.

        Must be called in the event loop.
        """
        self.pending.append(body)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """End; what is pending stays in `pending`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            while True:
                self._wake.clear()
                if not self.pending:
                    await self._wake.wait()
                    continue
                await self._push(client, self.pending[0])
                self.pending.popleft()

    async def _push(self, client: httpx.AsyncClient, body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        delay = _FIRST_DELAY_SECONDS
        while True:
            self.attempts += 1
            wait: float | None = None
            try:
                reply = await client.post(
                    self.url, content=content, headers={"content-type": "application/json", **self.headers}
                )
                if reply.is_success:
                    if self._on_reply is not None:
                        self._on_reply(body, reply)
                    return
                wait = float(reply.headers.get("retry-after", 0)) or None
            except httpx.HTTPError:
                pass
            self.refusals += 1
            await asyncio.sleep(wait or delay)
            delay = min(delay * 2, _LAST_DELAY_SECONDS)
