"""The fake Discord: the REST calls and the gateway that Stratus uses, checked as Discord checks them, with controls for tests.

Run alone: `python -m testbed.fakes.discord --port N`; a bot's `api_base` is then its address with `/api/v10`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from testbed.fakes.controls import Controls, Fault, Json, Silence
from testbed.fakes.discord_bot import FakeBot
from testbed.fakes.discord_calls import RestCalls
from testbed.fakes.discord_checks import Refused
from testbed.fakes.discord_gateway import Connection
from testbed.fakes.server import Reset, run_alone
from testbed.fakes.telegram_checks import File, parameters

_EFFECTS = ("createMessage", "editMessage", "addReaction", "removeReaction")
_TEXTS = {
    400: (50035, "Invalid Form Body"),
    401: (0, "401: Unauthorized"),
    403: (50013, "Missing Permissions"),
    404: (10003, "Unknown Channel"),
    413: (40005, "Request entity too large"),
    429: (0, "You are being rate limited."),
    500: (0, "500: Internal Server Error"),
    502: (0, "502: Bad Gateway"),
}

Params = Mapping[str, Any]
Method = Callable[[FakeBot, Params, Mapping[str, File]], Awaitable[Any]]
_ROUTES = (
    ("GET", "/users/@me", "getMe"),
    ("GET", "/gateway/bot", "getGateway"),
    ("POST", "/channels/{chat}/messages", "createMessage"),
    ("GET", "/channels/{chat}/messages", "getMessages"),
    ("GET", "/channels/{chat}/messages/{message}", "getMessage"),
    ("PATCH", "/channels/{chat}/messages/{message}", "editMessage"),
    ("DELETE", "/channels/{chat}/messages/{message}", "deleteMessage"),
    ("PUT", "/channels/{chat}/messages/{message}/reactions/{emoji}/@me", "addReaction"),
    ("DELETE", "/channels/{chat}/messages/{message}/reactions/{emoji}/@me", "removeReaction"),
    ("POST", "/channels/{chat}/typing", "typing"),
    ("GET", "/applications/{application}/commands", "getCommands"),
    ("PUT", "/applications/{application}/commands", "putCommands"),
    ("POST", "/interactions/{interaction}/{itoken}/callback", "answerInteraction"),
    ("DELETE", "/webhooks/{application}/{itoken}/messages/@original", "deleteOriginal"),
)
_NO_TOKEN = ("answerInteraction", "deleteOriginal")


class FakeDiscord(RestCalls):
    """Any number of bots, told apart by the first part of their token. `log` holds every effect in order, `calls` every call.

    `limits` gives a chat so many messages in so many seconds. `app` is the ASGI face.
    """

    def __init__(self) -> None:
        super().__init__()
        self.controls = Controls({"method": list(_EFFECTS)})
        self.bots: dict[str, FakeBot] = {}
        self.calls: list[dict[str, Any]] = []
        self.app = Starlette(routes=self._routes())

    def bot(self, number: str | None = None) -> FakeBot:
        """The bot of this id, made when it is new; without an id the first bot ("42" where there is none)."""
        wanted = number if number is not None else next(iter(self.bots), "42")
        return self.bots.setdefault(wanted, FakeBot(wanted))

    def bot_of(self, token: str) -> FakeBot | None:
        """The bot whose token this is; the first token of a new bot becomes its own."""
        try:
            number = base64.b64decode(token.partition(".")[0] + "==", altchars=b"-_").decode()
        except ValueError:
            return None
        bot = self.bot(number)
        bot.token = bot.token or token
        return bot if bot.token == token else None

    def _routes(self) -> list[Any]:
        rest = [
            Route(f"/api/v10{path}", self._endpoint(name), methods=[verb], name=f"{verb} {path}")
            for verb, path, name in _ROUTES
        ]
        return [
            *rest,
            WebSocketRoute("/gateway", self._gateway),
            WebSocketRoute("/gateway/", self._gateway),
            Route("/files/{file}/{name:path}", self._download, methods=["GET"]),
            Route("/log", self._get_log, methods=["GET"]),
            Route("/control/calls", self._get_calls, methods=["GET"]),
            Route("/control/state", self._get_state, methods=["GET"]),
            Route("/control/bot", self._post_bot, methods=["POST"]),
            Route("/control/message", self._post_message, methods=["POST"]),
            Route("/control/interaction", self._post_interaction, methods=["POST"]),
            Route("/control/close", self._post_close, methods=["POST"]),
            *self.controls.routes(),
        ]

    # -- REST --

    def _endpoint(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            return await self._call(name, request)

        return call

    async def _call(self, name: str, request: Request) -> Response:
        params, files = _parameters(request, await request.body())
        fields = {**params, "method": name, "text": params.get("content")}
        record = {"method": name, "params": params, "status": None, "port": request.client and request.client.port}
        self.calls.append(record)
        await self.controls.pass_gates(fields, "before")
        fault = self.controls.take(fields)
        if fault is not None and not fault.stores:
            record["status"] = fault.answer
            return _faulty(fault)
        try:
            result = await self._result(name, request, params, files)
        except Refused as refused:
            record["status"] = refused.status
            return _error(refused.status, refused.code, str(refused), refused.more)
        await self.controls.pass_gates(fields, "after")
        record["status"] = 200 if fault is None else fault.answer
        if fault is not None:
            return _faulty(fault)
        made: Response = Response(status_code=204) if result is None else Json(result)
        made.headers.update(self.bucket(name, params))
        return made

    async def _result(self, name: str, request: Request, params: Params, files: Mapping[str, File]) -> Any:
        if name in _NO_TOKEN:
            bot = self._bot_of_interaction(params)
        else:
            given = request.headers.get("authorization", "").removeprefix("Bot ")
            found = self.bot_of(given)
            if found is None:
                raise Refused(401, 0, "401: Unauthorized")
            bot = found
        made: Method = getattr(self, name)
        return await made(bot, {**params, "host": request.headers["host"]}, files)

    def _bot_of_interaction(self, params: Params) -> FakeBot:
        number = str(params["itoken"]).removeprefix("itoken")
        for bot in self.bots.values():
            if number in bot.interactions:
                return bot
        raise Refused(404, 10062, "Unknown interaction")

    async def _download(self, request: Request) -> Response:
        file = self.files.get(request.path_params["file"])
        return Response(status_code=404) if file is None else Response(file.data, media_type=file.mime)

    async def _gateway(self, socket: WebSocket) -> None:
        beat = min((bot.beat_seconds for bot in self.bots.values()), default=5.0)
        await Connection(socket, self.bot_of, beat).serve()

    # -- the controls --

    async def _get_log(self, _request: Request) -> Response:
        return Json(self.log)

    async def _get_calls(self, _request: Request) -> Response:
        return Json(self.calls)

    async def _get_state(self, _request: Request) -> Response:
        return Json(
            {
                bot.id: {
                    "gateway": bot.gateway_log,
                    "acknowledged": len(bot.acknowledged()),
                    "commands": [one["name"] for one in bot.commands],
                    "interactions": bot.interactions,
                }
                for bot in self.bots.values()
            }
        )

    async def _post_bot(self, request: Request) -> Response:
        body = await request.json()
        bot = self.bot(body.pop("id", None))
        for name in ("token", "message_content", "starts_left", "beat_seconds", "acks", "guilds", "close_codes"):
            if name in body:
                setattr(bot, name, body[name])
        return Json({"ok": True, "id": bot.id})

    async def _post_message(self, request: Request) -> Response:
        body = await request.json()
        bot = self.bot(body.pop("bot", None))
        return Json(bot.say(body.pop("text", ""), **body))

    async def _post_interaction(self, request: Request) -> Response:
        body = await request.json()
        bot = self.bot(body.pop("bot", None))
        return Json(bot.interact(body.pop("data"), **body))

    async def _post_close(self, request: Request) -> Response:
        """End the connections with a `code`, or an `op` 7 or 9; with `"forget": true` the sessions are gone too."""
        body = await request.json()
        self.end(self.bot(body.pop("bot", None)), **body)
        return Json({"ok": True})

    def end(self, bot: FakeBot, *, code: int | None = None, op: int | None = None, forget: bool = False) -> None:
        """See `/control/close`."""
        for session in list(bot.sessions.values()):
            if session.outgoing is not None:
                frame = {"op": op, "d": False} if op is not None else {"close": code or 4000}
                session.outgoing.put_nowait(frame)
            if forget:
                del bot.sessions[session.id]


def _parameters(request: Request, body: bytes) -> tuple[dict[str, Any], dict[str, File]]:
    content_type = request.headers.get("content-type", "")
    params: dict[str, Any]
    files: dict[str, File] = {}
    if content_type.startswith("application/json"):
        found = json.loads(body or b"{}")
        params = found if isinstance(found, dict) else {"list": found}
    else:
        params, files = parameters(content_type, "", body if content_type else b"")
        if "payload_json" in params:
            params = json.loads(params["payload_json"])
    return {**dict(request.query_params), **params, **request.path_params}, files


def _error(status: int, code: int, text: str, more: Params) -> Response:
    return Json({"message": text, "code": code, **more}, status)


def _faulty(fault: Fault) -> Response:
    final = fault.final
    named: dict[int | str, Callable[[], Response]] = {
        "hang": Silence,
        "reset": Reset,
        "502html": lambda: Response("<html><h1>502 Bad Gateway</h1></html>", 502, media_type="text/html"),
        "429html": lambda: Response("error code: 1015", 429, media_type="text/html"),
        "blocked": lambda: _error(403, 50007, "Cannot send messages to this user", {}),
    }
    if final in named:
        return named[final]()
    status = int(final)
    code, text = _TEXTS.get(status, (0, f"HTTP {status}"))
    more = {"retry_after": fault.retry_after or 1.0, "global": bool(fault.detail.get("global"))}
    return _error(status, code, text, more if status == 429 else {})


if __name__ == "__main__":
    run_alone(lambda: FakeDiscord().app)
