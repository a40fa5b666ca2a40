"""One gateway connection: greeting, heartbeats and frames, read at once and handed on in order through a queue.

It ends by an entry in that queue, so that what came before is stored first. It never closes with 1000 or 1001, which would
end the session for the next owner. Rules: https://discord.com/developers/docs/events/gateway, topics/opcodes-and-status-codes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stratus.channel import AccountStopped, Misconfigured

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACK = 0, 1, 2, 6, 7, 9, 10, 11

KEEP_SESSION_CODE = 4000
_HELLO_SECONDS = 15
_QUEUE_MAX = 5000
_NEW_SESSION_CODES = frozenset({4007, 4009})
_PORTAL = "https://discord.com/developers/applications, the bot's page"
_TERMINAL = {
    4010: "Discord refuses the shard that was asked for",
    4011: "the bot is in too many servers for one connection (sharding is required), which Stratus does not support",
    4012: "Discord no longer takes this version of its gateway: Stratus must be updated",
    4013: "Discord does not know the intents that were asked for: Stratus must be updated",
    4014: (
        "Discord refuses the intents: switch on MESSAGE CONTENT INTENT under Privileged Gateway Intents "
        f"({_PORTAL}), or set the option message_content=false, then disable and enable the channel"
    ),
}


class Ended(Exception):
    """The connection is over; the session may go on in another one, unless it is `lost`."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost


Entry = Mapping[str, Any] | Exception


class Gateway:
    """A connection over an open socket, whose heartbeats tell Discord of no more than what is `stored`."""

    def __init__(self, socket: ClientWebSocketResponse, stored: Callable[[], int]) -> None:
        self.queue: asyncio.Queue[Entry] = asyncio.Queue()
        self._socket = socket
        self._stored = stored
        self._acked = True

    async def hello(self) -> float:
        """Wait for the greeting; the heartbeat's interval in seconds. Raises Ended, TimeoutError, AccountStopped."""
        async with asyncio.timeout(_HELLO_SECONDS):
            frame = await self._frame()
        if frame.get("op") != HELLO:
            raise Ended("the gateway did not greet")
        return float(frame["d"]["heartbeat_interval"]) / 1000

    async def identify(self, token: str, intents: int) -> None:
        """Ask for a new session."""
        properties = {"os": "linux", "browser": "stratus", "device": "stratus"}
        await self._send(IDENTIFY, {"token": token, "intents": intents, "properties": properties, "compress": False})

    async def resume(self, token: str, session: str, seq: int) -> None:
        """Ask for the session to go on after `seq`."""
        await self._send(RESUME, {"token": token, "session_id": session, "seq": seq})

    async def read(self, seen: Callable[[Mapping[str, Any]], None]) -> None:
        """Take frames until the end; `seen` is told of each dispatch before anybody waits for a database."""
        try:
            while not await self._read_one(seen):
                pass
        except Exception as error:
            self.queue.put_nowait(error)

    async def beat(self, interval: float) -> None:
        """Heartbeats, each `interval` seconds, until one is not answered."""
        await pause(interval * int.from_bytes(os.urandom(2)) / 65536)
        while self._acked:
            self._acked = False
            try:
                await self._heartbeat()
            except ConnectionError:
                self.queue.put_nowait(Ended("the connection broke"))
                return
            await pause(interval)
        self.queue.put_nowait(Ended("a heartbeat was not answered"))

    async def close(self) -> None:
        """Leave, with the session kept."""
        await self._socket.close(code=KEEP_SESSION_CODE)

    async def _read_one(self, seen: Callable[[Mapping[str, Any]], None]) -> bool:
        """Take one frame; True when it was the last."""
        frame = await self._frame()
        op = frame.get("op")
        if op == DISPATCH:
            if self.queue.qsize() >= _QUEUE_MAX:
                raise Ended("more events wait than can be stored")
            seen(frame)
            self.queue.put_nowait(frame)
        elif op == ACK:
            self._acked = True
            self.queue.put_nowait(frame)
        elif op == HEARTBEAT:
            await self._heartbeat()
        elif op == RECONNECT:
            raise Ended("Discord asks for another connection")
        elif op == INVALID:
            raise Ended("the session is not valid", lost=frame.get("d") is not True)
        return False

    async def _heartbeat(self) -> None:
        await self._send(HEARTBEAT, self._stored() or None)

    async def _send(self, op: int, data: Any) -> None:
        await self._socket.send_str(json.dumps({"op": op, "d": data}))

    async def _frame(self) -> Mapping[str, Any]:
        import aiohttp

        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.TEXT:
            frame = json.loads(message.data)
            if isinstance(frame, dict):
                return frame
            raise Ended("the gateway sent something that is no frame")
        raise _closed(self._socket.close_code, str(message.extra or ""))


def _closed(code: int | None, reason: str) -> Exception:
    if code == 4004:
        return AccountStopped("Discord refuses the bot's token")
    if code in _TERMINAL:
        return Misconfigured(f"{_TERMINAL[code]} (close code {code})")
    return Ended(f"closed with {code} {reason[:80]}", lost=code in _NEW_SESSION_CODES)


async def pause(seconds: float) -> None:
    """Let so much time pass."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        pass
