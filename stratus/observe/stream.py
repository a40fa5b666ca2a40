"""One reader's stream of server-sent events: its scope of a watch, kept alive while nothing happens, with an end that says what to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from stratus.domain.errors import DatabaseAway
from stratus.domain.event import StoredEvent
from stratus.effects import Chance, Clock
from stratus.observe import sse
from stratus.observe.attach import Scope
from stratus.observe.watch import Watch

RETRY_MS = 2_000
KEEP_ALIVE_SECONDS = 15.0
RESUME_MS = 500
ALLOWED_SECONDS = 30.0

Allowed = Callable[[], Awaitable[bool]]


async def frames(
    watch: Watch, scope: Scope, allowed: Allowed, clock: Clock, chance: Chance
) -> AsyncGenerator[bytes, None]:
    """Bytes to send, each piece as many events as had come.

    Ends after the terminal event of a run's own stream. When the watch ends first (drain, a reader too slow, access withdrawn, as
    `allowed` says every 30 s) the last thing said is a short `retry:`, so that the client resumes at once.
    """
    sent_at = asked_at = clock.monotonic()
    yield sse.retry(RETRY_MS)
    while (events := await watch.take(KEEP_ALIVE_SECONDS)) is not None:
        mine, ended = _pick(events, scope)
        # Also while only other runs' events come: the client must hear something.
        if mine or clock.monotonic() - sent_at >= KEEP_ALIVE_SECONDS:
            sent_at = clock.monotonic()
            yield b"".join(map(sse.encode, mine)) or sse.KEEP_ALIVE
        if ended:
            return
        if clock.monotonic() - asked_at >= ALLOWED_SECONDS:
            asked_at = clock.monotonic()
            if not await _still(allowed):
                break
    yield sse.retry(round(chance.spread(RESUME_MS)))


def _pick(events: list[StoredEvent], scope: Scope) -> tuple[list[StoredEvent], bool]:
    mine: list[StoredEvent] = []
    for event in events:
        if scope.takes(event):
            mine.append(event)
            if scope.ends_with(event):
                return mine, True
    return mine, False


async def _still(allowed: Allowed) -> bool:
    try:
        return await allowed()
    except DatabaseAway:
        return True  # what was granted stays granted until somebody who knows says otherwise
