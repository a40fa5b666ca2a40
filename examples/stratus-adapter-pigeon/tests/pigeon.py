"""Pigeon itself: the server that the adapter is tested against, with faults to order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

from stratus.channel import RawRequest
from stratus.channel.driver import RETRY_AFTER_SECONDS, Fault

TOKEN = "a-token"
REFUSALS = {
    Fault.REFUSED: {"error": "no_such_chat"},
    Fault.UNFORMATTED: {"error": "no_such_chat"},
    Fault.UNAUTHORIZED: {"error": "unauthorized"},
    Fault.RATE_LIMITED: {"error": "slow_down", "after": RETRY_AFTER_SECONDS},
}


class Pigeon:
    """The server, and the driver of the conformance suite."""

    chat = "loft"

    def __init__(self) -> None:
        self.port = 0
        self.events: list[dict[str, Any]] = []
        self.messages: dict[str, dict[str, Any]] = {}
        self._calls = 0
        self._taken = 0
        self._faults: list[Fault] = []
        self._revoked = False
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def inject(self, text: str) -> None:
        async with self._changed:
            self.events.append({"n": len(self.events) + 1, "chat": self.chat, "from": "u1", "text": text})
            self._changed.notify_all()

    async def redeliver(self) -> None:
        self._taken = 0

    async def acknowledged(self) -> int:
        return self._taken

    async def arm(self, fault: Fault) -> None:
        self._faults.append(fault)

    async def sent(self) -> Sequence[str]:
        return [message["text"] for message in self.messages.values()]

    async def send_calls(self) -> int:
        return self._calls

    async def revoke(self) -> None:
        self._revoked = True
        async with self._changed:
            self._changed.notify_all()

    async def pushed(self, text: str) -> RawRequest | None:
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = json.loads(await reader.readline())
            answer = await self._answer(call)
            if answer is Fault.SILENCE:
                await reader.read()
            elif answer is not Fault.LOST:
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    async def _answer(self, call: dict[str, Any]) -> Any:
        if self._revoked or call["token"] != TOKEN:
            self._calls += call["call"] == "send"
            return {"error": "unauthorized"}
        if call["call"] == "account":
            return {"account": "pigeon-bot"}
        return await self._poll(call) if call["call"] == "poll" else self._send(call)

    async def _poll(self, call: dict[str, Any]) -> Any:
        self._taken = max(self._taken, call["after"])

        def news() -> list[dict[str, Any]]:
            return [event for event in self.events if event["n"] > call["after"]]

        try:
            async with asyncio.timeout(call["wait"]), self._changed:
                await self._changed.wait_for(lambda: news() or self._revoked)
        except TimeoutError:
            pass
        return {"error": "unauthorized"} if self._revoked else {"events": news()}

    def _send(self, call: dict[str, Any]) -> Any:
        self._calls += 1
        fault = self._faults.pop(0) if self._faults else None
        if fault in REFUSALS:
            return REFUSALS[fault]
        message = self.messages.setdefault(call["key"], {**call, "id": f"m{len(self.messages) + 1}"})
        if fault is Fault.SERVER_ERROR:
            return {"error": "internal"}
        return fault or {"id": message["id"]}
