"""One session over HTTP: sends a message once, whatever breaks, and follows its turn from replica to replica."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

import orjson

from stratus.cli.sse import ServerEvent, events
from stratus.domain.errors import CursorExpired, NotFound, Rejected, Temporary, Unauthenticated
from stratus.domain.run import TERMINAL_EVENT, TERMINAL_EVENTS, RunState
from stratus.domain.transcript import Approval
from stratus.effects import Chance, Clock, Ids

if TYPE_CHECKING:
    import httpx

GIVE_UP_SECONDS = 60.0
FIRST_SECONDS = 5.0  # nothing was ever there: say so soon
SILENCE_SECONDS = 45.0  # three missed keep-alives
CONNECT_SECONDS = 5.0
RETRY_MS = 500
MERGED = TERMINAL_EVENT[RunState.MERGED]
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_REFUSALS: Mapping[int, type[Rejected]] = {401: Unauthenticated, 404: NotFound}


class _Elsewhere(Exception):
    """This replica cannot answer now; another one, or this one later, can."""


class _StartOver(Exception):
    """The place is of no use any more: the message's own request finds its turn, live or finished, from its start."""


class Conversation:
    """`urls` are replicas of one gateway; the next one is tried whenever one does not answer."""

    def __init__(self, urls: Sequence[str], token: str, session: str) -> None:
        self.session = session
        self._urls = list(urls)
        self._token = token
        self._clock = Clock()
        self._chance = Chance()
        self._retry_ms = RETRY_MS
        self._met = False

    async def ask(self, agent: str | None, text: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Send a message and give the events of its turn, each once, up to the terminal one. A session that exists knows its agent.

        When a running turn takes the message up, that one's events follow, from there to its end.

        Raises Unauthenticated, NotFound or Rejected with what the gateway says, and Temporary when none answers, after a minute if one ever did.
        """
        body = orjson.dumps({"agent": agent, "text": text} if agent else {"text": text})
        key = str(Ids().uuid())
        place, seen, joined = "", 0, False
        heard_at = self._clock.monotonic()
        while True:
            try:
                async with aclosing(self._listen(body, key, place)) as heard:
                    async for event in heard:
                        heard_at = self._clock.monotonic()
                        content = orjson.loads(event.data)
                        if content["seq"] <= seen:
                            continue
                        place, seen = event.id or place, content["seq"]
                        yield content
                        if content["kind"] == MERGED:
                            place, joined = f"{content['into']}:{seen}", True
                            break
                        if content["kind"] in TERMINAL_EVENTS:
                            return
                    else:
                        raise _Elsewhere("the stream ended early")
            except _StartOver:
                if joined:
                    raise CursorExpired(
                        "what the running answer made of the message is no longer kept as events"
                    ) from None
                place = ""
            except _Elsewhere as error:
                await self._go_elsewhere(heard_at, str(error))

    async def stop(self) -> None:
        """End the turn that is running. Raises as `ask` does."""
        await self._call("POST", f"/sessions/{quote(self.session, safe='')}/stop", b"{}")

    async def decide(self, approval: Approval, decision: Literal["approve", "deny"], note: str = "") -> None:
        """Answer an approval for the arguments that were shown. Raises as `ask` does: Rejected also where somebody else was first."""
        body = {"decision": decision, "note": note, "args_hash": approval.args_hash}
        given = orjson.dumps({name: value for name, value in body.items() if value})
        await self._call("POST", f"/approvals/{quote(approval.approval, safe='')}", given)

    async def agents(self) -> list[str]:
        """The ids of the gateway's agents. Raises as `ask` does."""
        return [str(one["id"]) for one in (await self._call("GET", "/agents"))["agents"]]

    async def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        import httpx

        started_at = self._clock.monotonic()
        while True:
            try:
                async with self._client() as client:
                    response = await client.request(method, path, content=body, headers=_TYPE if body else {})
                    await _refuse(response)
                    self._met = True
                    return response.json()
            except (httpx.TransportError, _Elsewhere) as error:
                cause = _said(error)
            await self._go_elsewhere(started_at, cause)

    async def _go_elsewhere(self, quiet_since: float, cause: str) -> None:
        patience = GIVE_UP_SECONDS if self._met else FIRST_SECONDS
        if self._clock.monotonic() - quiet_since > patience:
            raise Temporary(f"no gateway answers at {', '.join(self._urls)}: {cause}")
        self._urls.append(self._urls.pop(0))
        await self._clock.sleep(self._chance.spread(self._retry_ms / 1000))

    async def _listen(self, body: bytes, key: str, place: str) -> AsyncGenerator[ServerEvent, None]:
        import httpx

        try:
            async with self._client() as client, self._request(client, body, key, place) as response:
                if place and response.status_code in (httpx.codes.NO_CONTENT, httpx.codes.CONFLICT):
                    raise _StartOver
                await _refuse(response)
                self._met = True
                async for event in events(response.aiter_bytes()):
                    self._retry_ms = event.retry_ms or self._retry_ms
                    if event.data:
                        yield event
        except httpx.TransportError as error:
            raise _Elsewhere(_said(error)) from error

    def _request(
        self, client: httpx.AsyncClient, body: bytes, key: str, place: str
    ) -> AbstractAsyncContextManager[httpx.Response]:
        path = f"/sessions/{quote(self.session, safe='')}/messages"
        stream = {"Accept": "text/event-stream"}
        if place:
            return client.stream("GET", path, headers={**stream, "Last-Event-ID": place})
        return client.stream("POST", path, content=body, headers={**stream, **_TYPE, "Idempotency-Key": key})

    def _client(self) -> httpx.AsyncClient:
        import httpx

        url = self._urls[0]
        return httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=httpx.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS),
            trust_env=not is_local(url),  # a proxy is no way to this machine itself
        )


_TYPE = {"Content-Type": "application/json"}


def is_local(url: str) -> bool:
    """Whether the address is this machine's own."""
    return urlsplit(url).hostname in _LOOPBACK


async def _refuse(response: httpx.Response) -> None:
    if response.status_code < 400:
        return
    text = _problem(await response.aread()) or f"status {response.status_code}"
    if response.status_code == 429 or response.status_code >= 500:
        raise _Elsewhere(text)
    raise _REFUSALS.get(response.status_code, Rejected)(text)


def _problem(body: bytes) -> str:
    try:
        problem = orjson.loads(body)
        return str(problem.get("detail") or problem["title"])
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return ""


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
