"""The fake Discord's gateway: greeting, identify, resume with replay, heartbeats, close codes.

Rules: https://discord.com/developers/docs/events/gateway, topics/opcodes-and-status-codes#gateway.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from testbed.fakes.discord_bot import FakeBot, Session

_MESSAGE_CONTENT = 1 << 15
_ENDS_SESSION = (1000, 1001)

Find = Callable[[str], FakeBot | None]


class Closed(Exception):
    """The connection is to be closed with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class Connection:
    """One socket. `find` gives the bot of a token."""

    def __init__(self, socket: WebSocket, find: Find, beat_seconds: float) -> None:
        self._socket = socket
        self._find = find
        self._beat_seconds = beat_seconds
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._bot: FakeBot | None = None
        self._session: Session | None = None

    async def serve(self) -> None:
        """Until one side ends it."""
        await self._socket.accept()
        self._outgoing.put_nowait({"op": 10, "d": {"heartbeat_interval": int(self._beat_seconds * 1000)}})
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write())
                await self._read()
                writer.cancel()
        except* WebSocketDisconnect as errors:
            self._left(errors.exceptions[0].code)  # type: ignore[union-attr]
        except* Closed as errors:
            code = errors.exceptions[0].code  # type: ignore[union-attr]
            self._left(None)
            await self._socket.close(code)
        finally:
            if self._session is not None and self._session.outgoing is self._outgoing:
                self._session.outgoing = None

    async def _write(self) -> None:
        while True:
            frame = await self._outgoing.get()
            if "close" in frame:
                raise Closed(frame["close"])
            await self._socket.send_text(json.dumps(frame))

    async def _read(self) -> None:
        while True:
            frame = json.loads(await self._socket.receive_text())
            op, data = frame.get("op"), frame.get("d")
            if op == 1:
                self._beaten(data)
            elif op == 2:
                self._identify(data)
            elif op == 6:
                self._resume(data)
            else:
                raise Closed(4001)

    def _beaten(self, stored: int | None) -> None:
        if self._session is not None:
            self._session.beats += 1
        if self._session is not None and stored is not None:
            self._session.acked = max(self._session.acked, stored)
        if self._bot is None or self._bot.acks:
            self._outgoing.put_nowait({"op": 11})

    def _identify(self, data: dict[str, Any]) -> None:
        bot = self._known(data)
        bot.gateway_log.append({"what": "identify", "intents": data["intents"]})
        bot.starts_left -= 1
        if bot.close_codes:
            raise Closed(bot.close_codes.pop(0))
        if data["intents"] & _MESSAGE_CONTENT and not bot.message_content:
            raise Closed(4014)
        session = Session(f"session{len(bot.gateway_log)}x{bot.next_id()}")
        bot.sessions[session.id] = session
        self._attach(bot, session)
        host = self._socket.headers["host"]
        session.emit(
            "READY",
            {
                "v": 10,
                "user": bot.user(),
                "guilds": [{"id": guild["id"], "unavailable": True} for guild in bot.guilds],
                "session_id": session.id,
                "resume_gateway_url": f"ws://{host}/gateway",
                "application": {"id": bot.id, "flags": 0},
            },
        )
        for guild in bot.guilds:
            session.emit("GUILD_CREATE", guild)
        if bot.on_identify is not None:
            bot.on_identify(session)

    def _resume(self, data: dict[str, Any]) -> None:
        bot = self._known(data)
        session, seq = bot.sessions.get(data["session_id"]), int(data["seq"])
        bot.gateway_log.append({"what": "resume", "seq": seq, "known": session is not None})
        if bot.close_codes:
            raise Closed(bot.close_codes.pop(0))
        if session is None:
            self._outgoing.put_nowait({"op": 9, "d": False})
            return
        if seq > len(session.events):
            raise Closed(4007)
        session.acked = max(session.acked, seq)
        for frame in session.events[seq:]:
            self._outgoing.put_nowait(frame)
        self._attach(bot, session)
        session.emit("RESUMED", {})

    def _known(self, data: dict[str, Any]) -> FakeBot:
        bot = self._find(re.sub("^Bot ", "", str(data.get("token"))))
        if bot is None:
            raise Closed(4004)
        return bot

    def _attach(self, bot: FakeBot, session: Session) -> None:
        self._bot, self._session = bot, session
        session.outgoing = self._outgoing

    def _left(self, code: int | None) -> None:
        if self._bot is None:
            return
        self._bot.gateway_log.append({"what": "left", "code": code})
        if self._session is not None and code in _ENDS_SESSION:
            self._bot.sessions.pop(self._session.id, None)
