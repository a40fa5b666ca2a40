"""The HTTP client for tool servers: bounded in time and size, and deaf to proxies and passwords of the environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

# One answer as JSON, and one event of a stream.
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
_CONNECT_SECONDS = 10.0
# A stream may be silent while a tool works; the call's own limit ends it.
_READ_SECONDS = 3600.0


class TooMuch(httpx2.RequestError):
    """An answer is larger than we take."""


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > ANSWER_LIMIT_BYTES:
                raise TooMuch(f"the answer has more than {ANSWER_LIMIT_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Bounded(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        if not streams and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Counted(response.stream)
        return response


@asynccontextmanager
async def http_transport(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Talk to the server at `url`, which gets `headers` with each request. Redirects are followed within its origin only."""
    async with httpx2.AsyncClient(
        # Uncompressed, so that what is counted is what is kept.
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS),
        transport=_Bounded(),
        trust_env=False,
    ) as client:
        opened = streamable_http_client(url, http_client=client, max_sse_event_size=ANSWER_LIMIT_BYTES)
        async with opened as streams:
            yield streams
