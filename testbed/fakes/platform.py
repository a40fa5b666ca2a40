"""The test platform: the HTTP server that the `testchan` adapter talks to, as a chat platform with polling, webhooks
and sends.

Run alone: `python -m testbed.fakes.platform --port N`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from testbed.fakes.controls import Controls, Fault, Json, Silence
from testbed.fakes.push import Pusher
from testbed.fakes.server import Reset, run_alone

_MENTION = re.compile(r"@([\w-]+)")
_REQUIRED = ("op", "attempt", "replica", "kind", "chat", "key")


class FakePlatform:
    """Events, sends, faults and gates of one platform with any number of bots. `app` is its ASGI face.

    `log` holds what was accepted, `calls` every send that reached it.
    """

    def __init__(self) -> None:
        self.controls = Controls({"call": "send"})
        self.events: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self.acknowledged: dict[str, int] = {}
        self.send_calls = 0
        self.calls: list[dict[str, Any]] = []
        self.polls: list[dict[str, Any]] = []
        self.same_key_seconds = 0.0
        self.bots_hear = False
        self._authors: dict[str, str] = {}
        self._pushers: dict[str, Pusher] = {}
        self._taken: dict[tuple[str, str], tuple[float, str]] = {}
        self._changed = asyncio.Condition()
        self.app = Starlette(routes=self._routes(), lifespan=self._lifespan)

    async def add_event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Offer an event to its `bot` (without one: to every bot).

        Missing fields are filled in; a given `id` may repeat. One with `group` is of a group: a bot is meant that its text
        mentions as `@bot`, or whose message it answers. With `bots_hear`, bots see there what other bots send.
        """
        number = len(self.events) + 1
        sender = {"id": "u1", "name": "Una"}
        made = {"kind": "message", "chat": "c1", "id": f"e{number}", "sender": sender, **event, "n": number}
        async with self._changed:
            self.events.append(made)
            self._changed.notify_all()
        for bot, pusher in self._pushers.items():
            if made.get("bot", bot) == bot:
                pusher.put({"events": [self._public(made, bot)]})
        return made

    def set_webhook(self, url: str, secret: str, bot: str = "bot") -> None:
        """Push the bot's events from now on, beginning with those not yet acknowledged; an empty `url` ends that."""
        if bot in self._pushers:
            self._pushers.pop(bot).stop()
        if url:
            pusher = self._pushers[bot] = Pusher(url, {"X-Testchan-Secret": secret})
            for event in self._after(bot, self.acknowledged.get(bot, 0)):
                pusher.put({"events": [self._public(event, bot)]})

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        for pusher in self._pushers.values():
            pusher.stop()

    def _routes(self) -> list[Route]:
        return [
            Route("/poll", self._poll, methods=["GET"]),
            Route("/send", self._send, methods=["POST"]),
            Route("/account", self._account, methods=["GET"]),
            Route("/log", self._get_log, methods=["GET"]),
            Route("/control/event", self._post_event, methods=["POST"]),
            Route("/control/webhook", self._post_webhook, methods=["POST"]),
            Route("/control/idempotent", self._post_idempotent, methods=["POST"]),
            Route("/control/state", self._get_state, methods=["GET"]),
            *self.controls.routes(),
        ]

    def _after(self, bot: str, after: int) -> list[dict[str, Any]]:
        seen = self.events[max(after, 0) :]
        return [event for event in seen if event.get("bot", bot) == bot and event.get("by") != bot]

    async def _poll(self, request: Request) -> Response:
        query = request.query_params
        bot, after, wait = query.get("bot", ""), int(query.get("after", 0)), float(query.get("wait", 0))
        self.polls.append({"bot": bot, "after": after, "wait": wait})
        self.acknowledged[bot] = max(after, self.acknowledged.get(bot, 0))
        fields = {"call": "poll", "bot": bot, "after": after}
        await self.controls.pass_gates(fields, "before")
        if (fault := self.controls.take(fields)) is not None:
            return _answer(fault)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait), self._changed:
                await self._changed.wait_for(lambda: self._after(bot, after))
        found = self._after(bot, after)
        return Json(
            {"events": [self._public(event, bot) for event in found], "next": found[-1]["n"] if found else after}
        )

    async def _send(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        self.send_calls += 1
        self.calls.append(body)
        missing = [name for name in _REQUIRED if body.get(name) in (None, "")]
        if missing:
            return Json({"error": f"missing: {', '.join(missing)}"}, 400)
        fields = {**body, "call": "send"}
        await self.controls.pass_gates(fields, "before")
        fault = self.controls.take(fields)
        if fault is not None and not fault.stores:
            return _answer(fault)
        message_id = self._store(body)
        await self._let_hear(body, message_id)
        await self.controls.pass_gates(fields, "after")
        return Json({"message_id": message_id}) if fault is None else _answer(fault)

    def _store(self, body: dict[str, Any]) -> str:
        now = time.monotonic()
        lane = (str(body["chat"]), str(body["key"]))
        taken = self._taken.get(lane)
        if taken is not None and now - taken[0] < self.same_key_seconds:
            return taken[1]
        number = len(self.log) + 1
        edited = body.get("message_id")
        message_id = str(edited or f"m{number}")
        self._taken[lane] = (now, message_id)
        self.log.append({**body, "n": number, "message_id": message_id, "edit": bool(edited)})
        return message_id

    async def _let_hear(self, body: dict[str, Any], message_id: str) -> None:
        bot = str(body.get("bot", ""))
        self._authors[message_id] = bot
        if self.bots_hear and body.get("text") and body["kind"] != "reaction":
            sender = {"id": bot, "name": bot, "is_bot": True}
            shown = ("chat", "thread", "text", "reply_to")
            heard: dict[str, Any] = {name: body[name] for name in shown if name in body}
            await self.add_event({**heard, "id": message_id, "sender": sender, "group": True, "by": bot})

    def _public(self, event: dict[str, Any], bot: str) -> dict[str, Any]:
        shown = {name: value for name, value in event.items() if name not in ("bot", "by", "group")}
        if not event.get("group"):
            return shown
        mentions = _MENTION.findall(event.get("text", ""))
        answered = self._authors.get(str(event.get("reply_to")))
        meant = [*mentions, *([answered] if answered else [])]
        return {"direct": False, "addressed": bot in meant, "mentions": meant, **shown}

    async def _account(self, request: Request) -> Response:
        bot = request.query_params.get("bot", "")
        fault = self.controls.take({"call": "account", "bot": bot})
        return Json({"account": bot}) if fault is None else _answer(fault)

    async def _get_log(self, _request: Request) -> Response:
        return Json(self.log)

    async def _get_state(self, _request: Request) -> Response:
        webhooks = {
            bot: {"pending": len(pusher.pending), "attempts": pusher.attempts, "refusals": pusher.refusals}
            for bot, pusher in self._pushers.items()
        }
        return Json(
            {
                "acknowledged": self.acknowledged,
                "polls": len(self.polls),
                "send_calls": self.send_calls,
                "webhooks": webhooks,
            }
        )

    async def _post_event(self, request: Request) -> Response:
        return Json(await self.add_event(await request.json()))

    async def _post_webhook(self, request: Request) -> Response:
        body = await request.json()
        self.set_webhook(body.get("url", ""), body.get("secret", ""), body.get("bot", "bot"))
        return Json({"ok": True})

    async def _post_idempotent(self, request: Request) -> Response:
        self.same_key_seconds = float((await request.json())["seconds"])
        return Json({"ok": True})


def _answer(fault: Fault) -> Response:
    final = fault.final
    if final == "hang":
        return Silence()
    if final == "reset":
        return Reset()
    if not isinstance(final, int):
        return Json({"error": f"unknown fault answer {fault.answer!r}"}, 400)
    body: dict[str, Any] = {"error": f"fault {final}"}
    headers = {}
    if fault.retry_after is not None:
        body["retry_after"] = fault.retry_after
        headers["retry-after"] = str(fault.retry_after)
    return Json(body, final, headers)


def app() -> Starlette:
    """The platform as an ASGI app."""
    return FakePlatform().app


if __name__ == "__main__":
    run_alone(app)
