"""discord.py's REST routes with another way to make the call: once, at once, and with a verdict instead of a sleep.

The library's own request() waits for rate limits and repeats after 429 and 5xx by itself: docs/decisions/0016-discord.md says why not.
Imported inside functions only: the library takes a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiohttp
from discord.file import File
from discord.http import HTTPClient, Route

_CONNECT_SECONDS = 5
_CALL_SECONDS = 15
_CLOSE_SECONDS = 0.5
_TEXT_MAX = 200
_BUCKETS_MAX = 500
_FALLBACK_RETRY_SECONDS = 1.0
_PROXY_RETRY_SECONDS = 30.0  # it bans those who keep asking, and does not always say for how long


class Refused(Exception):
    """Discord answered, and not with a 2xx.

    `code` is Discord's own (https://discord.com/developers/docs/topics/opcodes-and-status-codes#json), 0 where it gave
    none. `retry_after` in seconds comes with a 429; `everywhere` says that the whole bot must wait. With `unsent` the
    call was not even made: the answer before it said that its bucket is empty.
    """

    def __init__(
        self,
        status: int,
        code: int,
        text: str,
        *,
        retry_after: float | None = None,
        everywhere: bool = False,
        unsent: bool = False,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.everywhere = everywhere
        self.unsent = unsent


class Rest(HTTPClient):
    """One bot's calls to `base` (with its version). Made inside the running event loop; `close()` ends it."""

    def __init__(self, token: str, base: str, *, trust_env: bool) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop)
        self.token = token
        self._base = base
        self._client = aiohttp.ClientSession(
            trust_env=trust_env,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS, sock_connect=_CONNECT_SECONDS),
        )
        self._free_at: dict[str, float] = {}  # by bucket and major parameter, in the loop's time
        self._bucket_of: dict[str, str] = {}
        self._all_free_at = 0.0

    async def request(
        self,
        route: Route,
        *,
        files: Sequence[File] | None = None,
        form: Iterable[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """One call: the decoded answer, None for 204. Raises Refused, or aiohttp's errors when there is no answer."""
        self._ask_buckets(route)
        kwargs.pop("reason", None)
        if form is not None:
            kwargs["data"] = _form(form)
        headers = {"Authorization": f"Bot {self.token}", "User-Agent": self.user_agent}
        url = self._base + route.url.removeprefix(Route.BASE)
        async with self._client.request(
            route.method, url, headers=headers, allow_redirects=False, **kwargs
        ) as response:
            body = await response.read()
            self._learn(route, response.headers)
            if 200 <= response.status < 300:
                return json.loads(body) if body else None
            raise self._refusal(response.status, response.headers, body)

    async def download(self, url: str, most: int) -> tuple[bytes, str]:
        """A file's bytes and MIME type, without our token. Raises Refused; status 413 for one of more than `most`."""
        async with self._client.get(url, headers={"User-Agent": self.user_agent}, allow_redirects=False) as response:
            if response.status != 200:
                raise Refused(response.status, 0, "the file is not there, or its link has run out")
            found = bytearray()
            async for chunk in response.content.iter_chunked(65536):
                found += chunk
                if len(found) > most:
                    raise Refused(413, 0, f"the file has more than {most} bytes")
            return bytes(found), response.content_type

    async def socket(self, url: str) -> aiohttp.ClientWebSocketResponse:
        """A gateway connection: it never closes by itself, since 1000 would end the session."""
        return await self._client.ws_connect(
            url,
            autoclose=False,
            max_msg_size=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
            headers={"User-Agent": self.user_agent},
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _ask_buckets(self, route: Route) -> None:
        now = self.loop.time()
        bucket = self._bucket_of.get(route.key, "")
        wait = max(self._all_free_at, self._free_at.get(f"{bucket}:{route.major_parameters}", 0.0)) - now
        if wait > 0:
            everywhere = self._all_free_at > now
            raise Refused(429, 0, "the rate limit is used up", retry_after=wait, everywhere=everywhere, unsent=True)

    def _learn(self, route: Route, headers: Mapping[str, str]) -> None:
        bucket = headers.get("X-RateLimit-Bucket")
        if bucket is None:
            return
        self._bucket_of[route.key] = bucket
        if headers.get("X-RateLimit-Remaining") == "0":
            wait = _seconds(headers.get("X-RateLimit-Reset-After"))
            if wait is not None:
                if len(self._free_at) >= _BUCKETS_MAX:
                    now = self.loop.time()
                    self._free_at = {key: at for key, at in self._free_at.items() if at > now}
                self._free_at[f"{bucket}:{route.major_parameters}"] = self.loop.time() + wait

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refused:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        told = found if isinstance(found, dict) else {}
        code = told.get("code")
        text = str(told.get("message") or f"HTTP {status}")[:_TEXT_MAX]
        retry_after, everywhere = None, False
        if status == 429:
            retry_after = _seconds(told.get("retry_after")) or _seconds(headers.get("Retry-After"))
            if retry_after is None:
                retry_after = _FALLBACK_RETRY_SECONDS if told else _PROXY_RETRY_SECONDS
            # Without Discord's own words it is the proxy before it, which refuses the address from which all calls come.
            everywhere = not told or told.get("global") is True or headers.get("X-RateLimit-Scope") == "global"
            if everywhere:
                self._all_free_at = self.loop.time() + retry_after
        return Refused(
            status, code if isinstance(code, int) else 0, text, retry_after=retry_after, everywhere=everywhere
        )


def _form(fields: Iterable[dict[str, Any]]) -> aiohttp.FormData:
    made = aiohttp.FormData(quote_fields=False)  # Discord wants the brackets of files[0] as they are
    for field in fields:
        made.add_field(**field)
    return made


def _seconds(value: Any) -> float | None:
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return None
