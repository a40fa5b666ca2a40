"""Receiving: sessions one after another, what they bring stored with the cursor that covers it, and gaps filled from the history.

A sequence is told to Discord only once its events have committed; so is it resumed from, by whichever replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from adapters.discord import interactions
from adapters.discord.convert import Me, event_from_dispatch, event_from_history
from adapters.discord.failures import send_error
from adapters.discord.gateway import ACK, Ended, Gateway, pause
from adapters.discord.rest import Refused, Rest
from adapters.discord.standing import Standing
from stratus.channel import AccountStopped, Budget, Deliver, Event, SendError, SendFailure, StartRefused

BATCH_MAX = 200
PAGES_MAX = 5
_PAGE = 100
_SPARE_SESSIONS = 20
_OVERLAP_MS = 5000  # messages of one chat may come a little out of the order of their ids
_QUICK_MAX = 5
_BACKFILL_WAIT_MAX = 30.0


@dataclass(frozen=True)
class Account:
    """Who receives, and how."""

    id: str
    token: str
    intents: int
    budget: Budget


class Receiving:
    """One call of `receive`."""

    def __init__(self, rest: Rest, account: Account, standing: Standing, deliver: Deliver) -> None:
        self._rest = rest
        self._account = account
        self._standing = standing  # what is stored
        self._deliver = deliver
        self._stored_cursor = standing.cursor()
        self._deferred: dict[str, asyncio.Task[None]] = {}
        self._courtesies: set[asyncio.Task[None]] = set()
        self._quick = 0
        self._registered = False

    async def run(self) -> None:
        """Until cancelled, or until the caller should judge: what it raises is for `Adapter.receive`."""
        while True:
            try:
                await self._session()
            except Ended as error:
                begun = self._standing.session is not None
                if error.lost:
                    self._standing = self._standing.without_session()
                self._quick += 1
                if self._quick > _QUICK_MAX or not begun:
                    raise ConnectionError(str(error)) from error

    async def _session(self) -> None:
        """One connection. Raises Ended, or what ends the receiving."""
        url = self._standing.url or await self._gateway_url()
        try:
            socket = await self._rest.socket(f"{url.rstrip('/')}/?v=10&encoding=json")
        except (OSError, aiohttp.ClientError) as error:
            self._standing = replace(self._standing, url="")  # any gateway takes a resume, and says so if not
            raise ConnectionError("the gateway cannot be reached") from error
        gateway = Gateway(socket, lambda: self._standing.seq)
        try:
            interval = await gateway.hello()
            await self._introduce(gateway)
            async with asyncio.TaskGroup() as group:
                group.create_task(gateway.beat(interval))
                group.create_task(gateway.read(lambda frame: self._defer(group, frame)))
                group.create_task(self._store(gateway, group))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await gateway.close()

    async def _gateway_url(self) -> str:
        """Where to connect. Raises StartRefused when Discord would not take a new session."""
        from discord.http import Route

        try:
            told = await self._rest.request(Route("GET", "/gateway/bot"))
        except Refused as error:
            raise receive_error(error) from error
        limit = told.get("session_start_limit") or {}
        if self._standing.session is None and int(limit.get("remaining", _SPARE_SESSIONS)) < _SPARE_SESSIONS:
            wait = max(float(limit.get("reset_after", 0)) / 1000, 60.0)
            raise StartRefused("Discord says that hardly any new sessions are left for today", wait)
        return str(told["url"])

    async def _introduce(self, gateway: Gateway) -> None:
        standing, account = self._standing, self._account
        if standing.session is not None:
            await gateway.resume(account.token, standing.session, standing.seq)
            return
        await account.budget()
        await gateway.identify(account.token, account.intents)

    # -- storing --

    async def _store(self, gateway: Gateway, group: asyncio.TaskGroup) -> None:
        while True:
            entries = [await gateway.queue.get()]
            while not gateway.queue.empty() and len(entries) < BATCH_MAX:
                entries.append(gateway.queue.get_nowait())
            frames = [entry for entry in entries if isinstance(entry, Mapping)]
            if frames:
                await self._store_frames(frames, group)
            for entry in entries:
                if isinstance(entry, Exception):
                    if self._courtesies:
                        await asyncio.wait(self._courtesies)
                    raise entry

    async def _store_frames(self, frames: Sequence[Mapping[str, Any]], group: asyncio.TaskGroup) -> None:
        dispatches = [frame for frame in frames if frame.get("op") != ACK]
        if len(dispatches) < len(frames):
            self._quick = 0
        if dispatches and dispatches[0].get("t") == "READY":
            await self._commit([], self._standing.begun(dispatches[0]["d"], int(dispatches[0]["s"])))
            dispatches = dispatches[1:]
        if self._standing.session is not None:
            await self._fill_gap()
        if not self._registered and self._standing.application:
            self._registered = True
            group.create_task(interactions.register(self._rest, self._standing.application))
        standing, events = self._standing, []
        for frame in dispatches:
            standing, event = self._taken(standing, frame)
            if event is not None:
                events.append(event)
        await self._commit(events, standing)
        self._end_thinking(dispatches, group)

    def _taken(self, standing: Standing, frame: Mapping[str, Any]) -> tuple[Standing, Event | None]:
        name, data = str(frame.get("t")), frame.get("d")
        if name == "GUILD_CREATE":
            standing = standing.with_roles(_our_roles(data, self._account.id))
        event = event_from_dispatch(name, data, Me(self._account.id, standing.roles))
        if name == "INTERACTION_CREATE":
            event = interactions.event_from_interaction(data)
        seq = frame.get("s")
        return replace(standing.seen(event), seq=seq if isinstance(seq, int) else standing.seq), event

    async def _commit(self, events: Sequence[Event], standing: Standing) -> None:
        cursor = standing.cursor()
        await self._deliver(events, cursor if cursor != self._stored_cursor else None)
        self._standing, self._stored_cursor = standing, cursor

    # -- the gap after a lost session --

    async def _fill_gap(self) -> None:
        """Fetch what came to the known chats since their last stored message; a crash in between does it again."""
        if not self._standing.gap:
            return
        for chat in list(self._standing.last):
            await self._fill_chat(chat)
        await self._commit([], replace(self._standing, gap=False))

    async def _fill_chat(self, chat: str) -> None:
        number, guild = self._standing.last[chat]
        after = max(int(number) - (_OVERLAP_MS << 22), 0)
        for _ in range(PAGES_MAX):
            try:
                page = await self._page(chat, after)
            except Refused as error:
                if error.status not in (403, 404):
                    raise receive_error(error) from error
                self._standing = self._standing.without_chat(chat)
                return
            page.sort(key=lambda message: int(message["id"]))
            me = Me(self._account.id, self._standing.roles)
            events = [event for one in page if (event := event_from_history(one, me, guild)) is not None]
            standing = self._standing
            for event in events:
                standing = standing.seen(event)
            if events:
                await self._commit(events, standing)
            if len(page) < _PAGE:
                return
            after = int(page[-1]["id"])

    async def _page(self, chat: str, after: int) -> list[Any]:
        try:
            return list(await self._rest.logs_from(int(chat), _PAGE, after=after))
        except Refused as error:
            if error.retry_after is None or error.retry_after > _BACKFILL_WAIT_MAX:
                raise
            await pause(error.retry_after)
        return list(await self._rest.logs_from(int(chat), _PAGE, after=after))

    # -- interactions --

    def _defer(self, group: asyncio.TaskGroup, frame: Mapping[str, Any]) -> None:
        """At once when it is read: Discord waits 3 seconds, a database may take longer."""
        data = frame.get("d")
        if frame.get("t") == "INTERACTION_CREATE" and isinstance(data, Mapping):
            self._deferred[str(data.get("id"))] = group.create_task(interactions.defer(self._rest, data))

    def _end_thinking(self, stored: Sequence[Mapping[str, Any]], group: asyncio.TaskGroup) -> None:
        for frame in stored:
            data = frame.get("d")
            deferred = self._deferred.pop(str(data.get("id")), None) if isinstance(data, Mapping) else None
            if deferred is not None:
                ending = interactions.end_thinking(self._rest, self._standing.application, data, deferred)
                task = group.create_task(ending)
                self._courtesies.add(task)
                task.add_done_callback(self._courtesies.discard)


def receive_error(error: Refused) -> Exception:
    """What a refused call outside of a send means for `receive`."""
    if error.status == 401:
        return AccountStopped("Discord refuses the bot's token")
    made = send_error(error)
    if made.retry_after is not None:
        return made
    return SendError(SendFailure.UNKNOWN, made.code, str(made))


def _our_roles(guild: Any, me: str) -> frozenset[str]:
    roles = guild.get("roles") if isinstance(guild, Mapping) else None
    return frozenset(
        str(role["id"])
        for role in roles or ()
        if isinstance(role, Mapping) and (role.get("tags") or {}).get("bot_id") == me
    )
