"""Makes received events ready: completes albums, fetches files from the platform, and says honestly what could not be had.

An event that waits here holds up its own chat only. Tries and their times are rows: the next owner of the channel goes on with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.protocol import Adapter
from stratus.channel.values import Attachment, Event
from stratus.delivery.tenure import Tenure
from stratus.delivery.terms import Doors, Spawn, Terms
from stratus.domain.chain import PlannedOp, notice
from stratus.domain.errors import BadInput, LeaseLost, StratusError
from stratus.domain.media import ALBUM_SECONDS, FETCH_SECONDS, FETCH_TRIES, FILE_BYTES_MAX, kept, too_large, wanted
from stratus.domain.retry import delay_seconds
from stratus.domain.routing import Access, Speak, meaning
from stratus.domain.values import ReplyTo
from stratus.effects import Loop
from stratus.store import media
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.media import Received

log = structlog.get_logger(__name__)

# Each holds one file at a time in memory.
EVENTS_IN_HAND = 4
_LOOK = 32
_POLLS = 20
_PAUSE_MAX_SECONDS = 60.0
_REFUSED = "the platform does not hand it out"
_NOT_IN_TIME = "the platform did not hand it out in time"


class Fetcher:
    """For one channel, while it is owned. `on_ready` is told when the router, and the dispatcher, have something to do."""

    def __init__(
        self,
        db: Database,
        row: ChannelRow,
        tenure: Tenure,
        adapter: Adapter,
        terms: Terms,
        doors: Doors,
        spawn: Spawn,
        on_ready: Callable[[], None],
    ) -> None:
        self._db = db
        self._row = row
        self._tenure = tenure
        self._adapter = adapter
        self._clock, self._chance, self._failpoints = doors.clock, doors.chance, doors.failpoints
        self._spawn = spawn
        self._on_ready = on_ready
        self._in_hand: dict[int, asyncio.Task[None]] = {}
        self._heard_at: float | None = None
        self._seconds = min(FETCH_SECONDS, terms.send_budget)
        poll = terms.poll * _POLLS
        self.loop = Loop(f"media.{row.id}", self.step, poll, doors.clock, doors.chance)

    def heard(self) -> None:
        """A poll has been completed: what was on its way to an earlier owner has come, or is coming now."""
        if self._heard_at is None:
            self._heard_at = self._clock.monotonic()
            self.loop.wake()

    async def step(self) -> bool:
        """Take up what is due; the loop comes back when the next is."""
        if not self._tenure.valid() or len(self._in_hand) >= EVENTS_IN_HAND:
            return False
        found = await media.received(self._db, self._row.id, self._in_hand, _LOOK)
        waits = {one.id: max(one.wait, self._album_wait(one)) for one in found}
        due = [one for one in found if waits[one.id] <= 0]
        for one in due[: EVENTS_IN_HAND - len(self._in_hand)]:
            self._in_hand[one.id] = self._spawn(self._take_up(one))
        later = [wait for wait in waits.values() if wait > 0]
        if later:
            self.loop.wake_within(min(later))
        return False

    async def end(self) -> None:
        """Stop what is under way: all of it can be done again. `loop` has ended before."""
        tasks = list(self._in_hand.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _album_wait(self, one: Received) -> float:
        """After a takeover the platform repeats what the earlier owner had not stored: a part of the same album may be in it."""
        if one.event is None or one.event.album is None:
            return 0.0
        if self._heard_at is None:
            return ALBUM_SECONDS
        return self._heard_at + ALBUM_SECONDS - self._clock.monotonic()

    async def _take_up(self, one: Received) -> None:
        try:
            async with self._tenure.held():
                await self._make_ready(one)
        except LeaseLost:
            pass  # the new owner goes on with it
        except Exception as error:
            log.warning("media.put_off", channel=self._row.id, inbox=one.id, error=type(error).__name__)
            await self._put_off(one)
        finally:
            del self._in_hand[one.id]
            self.loop.wake()

    async def _put_off(self, one: Received) -> None:
        """What cannot be made ready, the router must judge as it is."""
        with contextlib.suppress(
            StratusError
        ):  # the database is away, or the lease: what is stored says how it goes on
            if one.attempts >= FETCH_TRIES:
                await media.ready(self._db, self._tenure.lease, one.id, None)
                self._on_ready()
            else:
                await media.put_off(self._db, self._tenure.lease, one.id, seconds=1.0, tries=1)

    async def _make_ready(self, one: Received) -> None:
        event = one.event
        if event is not None and event.album is not None:
            event = await media.gather(self._db, self._tenure.lease, one.id)
            if event is None:
                return
        if event is None or not self._is_for_the_agent(event):
            await media.ready(self._db, self._tenure.lease, one.id, event)
        else:
            fetched = await self._fetched(one, event)
            if fetched is None:
                return
            told, to = self._told(one, fetched)
            await media.ready(self._db, self._tenure.lease, one.id, fetched, told, to)
        self._on_ready()

    def _is_for_the_agent(self, event: Event) -> bool:
        """Strangers' files, and those of talk that is not meant for the bot, are left where they are."""
        try:
            return isinstance(meaning(event, Access.of(self._row.config)), Speak)
        except BadInput:
            return False

    async def _fetched(self, one: Received, event: Event) -> Event | None:
        """The event with all that could be had; None when it is to be tried again later."""
        if any(map(wanted, event.attachments)):
            await media.put_off(self._db, self._tenure.lease, one.id, tries=1)
        for index, file in enumerate(event.attachments):
            if not wanted(file):
                continue
            try:
                got, data = await self._fetch(file)
            except Exception as error:
                if one.attempts + 1 < FETCH_TRIES:
                    pause = self._pause(one.attempts + 1, error)
                    log.info("media.again", channel=self._row.id, inbox=one.id, error=type(error).__name__)
                    await media.put_off(self._db, self._tenure.lease, one.id, seconds=pause)
                    return None
                got, data = _without(file, _NOT_IN_TIME), None
            event = _with_file(event, index, got)
            if data is not None:
                await media.keep(self._db, self._tenure.lease, one.id, event, data)
        return event

    async def _fetch(self, file: Attachment) -> tuple[Attachment, bytes | None]:
        """The file with its bytes, or with why it has none. Raises what may pass."""
        if (file.size or 0) > FILE_BYTES_MAX:
            return _without(file, too_large(file.size or 0)), None
        assert file.ref is not None
        await self._failpoints.hit("media.before_fetch")
        try:
            async with asyncio.timeout(self._seconds):
                blob = await self._adapter.fetch(file.ref)
        except SendError as error:
            if error.kind is not SendFailure.PERMANENT:
                raise
            return _without(file, _REFUSED), None
        if len(blob.data) > FILE_BYTES_MAX:
            return _without(file, too_large(len(blob.data))), None
        return kept(file, blob.data), blob.data

    def _pause(self, tries: int, error: Exception) -> float:
        wait = delay_seconds(tries, self._chance.spread(0.5, 1.0))
        demanded = error.retry_after if isinstance(error, SendError) else None
        return min(max(wait, demanded or 0.0), _PAUSE_MAX_SECONDS)

    def _told(self, one: Received, event: Event) -> tuple[list[PlannedOp], ReplyTo | None]:
        """What its sender is told: once, by the key."""
        missing = [file for file in event.attachments if file.missing is not None]
        if not missing:
            return [], None
        to = ReplyTo(
            channel_id=self._row.id,
            platform=self._row.platform,
            chat=event.chat,
            thread=event.thread,
            message_id=event.message_id,
            account_key=one.account_key,
        )
        names = "; ".join(f"{file.name or file.kind}: {file.missing}" for file in missing)
        return [notice(f"I could not take in what you sent. {names}."[:1000], to, f"media:{one.id}")], to


def _without(file: Attachment, why: str) -> Attachment:
    return file.model_copy(update={"missing": why})


def _with_file(event: Event, index: int, file: Attachment) -> Event:
    files = list(event.attachments)
    files[index] = file
    return event.model_copy(update={"attachments": files})
