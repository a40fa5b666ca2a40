"""The fake Telegram: the calls of the Bot API that Stratus makes, checked as Telegram checks them, with controls for
tests.

Run alone: `python -m testbed.fakes.telegram --port N`; a bot's `api_base` is then its address.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from testbed.fakes.controls import Controls, Fault, Json, Silence
from testbed.fakes.server import Reset, run_alone
from testbed.fakes.telegram_bot import FakeBot
from testbed.fakes.telegram_checks import CAPTION_MAX, File, Refused, check_keyboard, number, parameters, visible_text

_EFFECTS = (
    "sendMessage",
    "sendPhoto",
    "sendDocument",
    "editMessageText",
    "editMessageReplyMarkup",
    "setMessageReaction",
)
_DOWNLOAD_BYTES_MAX = 20_000_000
_DESCRIPTIONS = {
    400: "Bad Request: chat not found",
    401: "Unauthorized",
    403: "Forbidden: bot was blocked by the user",
    404: "Not Found",
    409: "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
    413: "Request Entity Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
}

Params = Mapping[str, Any]
Files = Mapping[str, File]
Method = Callable[[FakeBot, Params, Files], Awaitable[Any]]


class FakeTelegram:
    """Any number of bots. `log` holds every effect in order, `calls` every call with its answer's status.

    `app` is the ASGI face.
    """

    def __init__(self) -> None:
        self.controls = Controls({"method": list(_EFFECTS)})
        self.bots: dict[int, FakeBot] = {}
        self.files: dict[str, File] = {}
        self.log: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.methods: dict[str, Method] = {
            "getMe": self._get_me,
            "getUpdates": self._get_updates,
            "setWebhook": self._set_webhook,
            "deleteWebhook": self._delete_webhook,
            "getWebhookInfo": self._get_webhook_info,
            "getFile": self._get_file,
            "sendMessage": self._send_message,
            "sendDocument": self._send_file,
            "sendPhoto": self._send_file,
            "editMessageText": self._edit,
            "editMessageReplyMarkup": self._edit,
            "setMessageReaction": self._react,
            "sendChatAction": self._nothing,
            "answerCallbackQuery": self._nothing,
        }
        self.app = Starlette(routes=self._routes(), lifespan=self._lifespan)

    def bot(self, number: int | None = None) -> FakeBot:
        """The bot of this id, made when it is new; without an id the first bot (1 where there is none)."""
        wanted = number if number is not None else next(iter(self.bots), 1)
        return self.bots.setdefault(wanted, FakeBot(wanted))

    def add_file(self, file: File) -> str:
        """Keep a file for download; its file id."""
        file_id = f"file{len(self.files) + 1}"
        self.files[file_id] = file
        return file_id

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        for bot in self.bots.values():
            bot.end_webhook({})

    def _routes(self) -> list[Route]:
        return [
            Route("/bot{token}/{method}", self._call, methods=["GET", "POST"]),
            Route("/file/bot{token}/{file}/{name:path}", self._download, methods=["GET"]),
            Route("/log", self._get_log, methods=["GET"]),
            Route("/control/calls", self._get_calls, methods=["GET"]),
            Route("/control/state", self._get_state, methods=["GET"]),
            Route("/control/bot", self._post_bot, methods=["POST"]),
            Route("/control/file", self._post_file, methods=["POST"]),
            Route("/control/update", self._post_update, methods=["POST"]),
            Route("/control/redeliver", self._post_redeliver, methods=["POST"]),
            *self.controls.routes(),
        ]

    # -- the Bot API --

    async def _call(self, request: Request) -> Response:
        method = request.path_params["method"]
        content_type = request.headers.get("content-type", "")
        params, files = parameters(content_type, request.url.query, await request.body())
        fields = {**params, "method": method, "chat": params.get("chat_id")}
        record: dict[str, Any] = {
            "method": method,
            "params": params,
            "status": None,
            "port": request.client and request.client.port,
        }
        self.calls.append(record)
        await self.controls.pass_gates(fields, "before")
        fault = self.controls.take(fields)
        if fault is not None and not fault.stores:
            record["status"] = fault.answer
            return _faulty(fault)
        try:
            result = await self._result(request.path_params["token"], method, params, files)
        except Refused as refused:
            record["status"] = refused.status
            return _error(refused.status, refused.description, refused.parameters)
        await self.controls.pass_gates(fields, "after")
        record["status"] = 200 if fault is None else fault.answer
        return Json({"ok": True, "result": result}) if fault is None else _faulty(fault)

    async def _result(self, token: str, method: str, params: Params, files: Files) -> Any:
        bot = self._authorised(token)
        if method not in self.methods:
            raise Refused(404, "Not Found: method not found")
        if (moved := bot.moved.get(str(params.get("chat_id")))) is not None:
            described = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refused(400, described, migrate_to_chat_id=moved)
        return await self.methods[method](bot, {**params, "method": method}, files)

    def _authorised(self, token: str) -> FakeBot:
        digits = token.partition(":")[0]
        if not digits.isdigit() or ":" not in token:
            raise Refused(404, "Not Found")
        bot = self.bot(int(digits))
        bot.token = bot.token or token
        if bot.token != token:
            raise Refused(401, "Unauthorized")
        return bot

    async def _get_me(self, bot: FakeBot, _params: Params, _files: Files) -> Any:
        return {"id": bot.id, "is_bot": True, "first_name": bot.username, "username": bot.username}

    async def _get_updates(self, bot: FakeBot, params: Params, _files: Files) -> Any:
        return await bot.get_updates(params)

    async def _set_webhook(self, bot: FakeBot, params: Params, _files: Files) -> Any:
        def answered(update: Any, reply: Any) -> None:
            bot.pushed(update)
            if reply.content and "method" in (called := reply.json()):
                self.calls.append({"method": called.pop("method"), "params": called, "status": 200, "reply": True})

        bot.set_webhook(params, answered)
        return True

    async def _delete_webhook(self, bot: FakeBot, params: Params, _files: Files) -> Any:
        bot.end_webhook(params)
        return True

    async def _get_webhook_info(self, bot: FakeBot, _params: Params, _files: Files) -> Any:
        url = bot.webhook.url if bot.webhook else ""
        return {"url": url, "has_custom_certificate": False, "pending_update_count": len(bot.pending)}

    async def _get_file(self, _bot: FakeBot, params: Params, _files: Files) -> Any:
        file_id = params.get("file_id", "")
        file = self.files.get(file_id)
        if file is None:
            raise Refused(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        if len(file.data) > _DOWNLOAD_BYTES_MAX:
            raise Refused(400, "Bad Request: file is too big")
        path = f"{file_id}/{file.name}"
        return {"file_id": file_id, "file_unique_id": file_id, "file_size": len(file.data), "file_path": path}

    async def _nothing(self, _bot: FakeBot, _params: Params, _files: Files) -> Any:
        return True

    async def _send_message(self, bot: FakeBot, params: Params, _files: Files) -> Any:
        text = visible_text(str(params.get("text", "")), params.get("parse_mode"))
        if not text.strip():
            raise Refused(400, "Bad Request: message text is empty")
        return self._stored(bot, params, {"text": text}, {})

    async def _send_file(self, bot: FakeBot, params: Params, files: Files) -> Any:
        name = "photo" if params["method"] == "sendPhoto" else "document"
        if name not in files:
            raise Refused(400, f"Bad Request: there is no {name} in the request")
        file = files[name]
        caption = visible_text(str(params.get("caption", "")), params.get("parse_mode"), CAPTION_MAX)
        file_id = self.add_file(file)
        sent = {"file_id": file_id, "file_unique_id": file_id, "file_size": len(file.data), "file_name": file.name}
        digest = hashlib.sha256(file.data).hexdigest()
        known = {"name": file.name, "mime": file.mime, "size": len(file.data), "sha256": digest, "file_id": file_id}
        shown: Any = [{**sent, "width": 1, "height": 1}] if name == "photo" else sent
        return self._stored(bot, params, {"caption": caption, name: shown}, {"text": caption, "attachment": known})

    async def _edit(self, bot: FakeBot, params: Params, _files: Files) -> Any:
        chat, message_id = number(params, "chat_id"), number(params, "message_id")
        old = bot.messages.get((str(chat), message_id))
        if old is None or not old.get("ours"):
            raise Refused(400, "Bad Request: message to edit not found")
        text = old.get("text", "")
        if "text" in params:
            text = visible_text(str(params["text"]), params.get("parse_mode"))
        if (text, params.get("reply_markup")) == (old.get("text"), old.get("markup")):
            raise Refused(
                400, "Bad Request: message is not modified: specified new message content is exactly the same"
            )
        return self._stored(bot, {**params, "message_id": message_id}, {"text": text}, {"edit": True})

    async def _react(self, bot: FakeBot, params: Params, _files: Files) -> Any:
        chat, message_id = number(params, "chat_id"), number(params, "message_id")
        if (str(chat), message_id) not in bot.messages:
            raise Refused(400, "Bad Request: message to react not found")
        emoji = "".join(str(item.get("emoji", "")) for item in params.get("reaction", []))
        self._log(bot, params, {"text": emoji, "message_id": message_id})
        return True

    def _stored(self, bot: FakeBot, params: Params, content: Params, extra: Params) -> Any:
        chat = number(params, "chat_id")
        check_keyboard(params.get("reply_markup"))
        if str(params.get("message_thread_id", "")) == "1":
            raise Refused(400, "Bad Request: message thread not found")
        reply = params.get("reply_parameters") or {}
        target = (str(chat), int(reply.get("message_id", 0)))
        if reply and not reply.get("allow_sending_without_reply") and target not in bot.messages:
            raise Refused(400, "Bad Request: message to be replied not found")
        message_id = int(params.get("message_id") or bot.next_message_id())
        markup = params.get("reply_markup")
        bot.messages[(str(chat), message_id)] = {"text": content.get("text"), "markup": markup, "ours": True}
        self._log(bot, params, {"text": content.get("text"), "message_id": message_id, **extra})
        kind = "private" if chat > 0 else "supergroup"
        message = {"message_id": message_id, "date": int(time.time()), "chat": {"id": chat, "type": kind}}
        return {**message, **content}

    def _log(self, bot: FakeBot, params: Params, fields: Params) -> None:
        rows = (params.get("reply_markup") or {}).get("inline_keyboard", [])
        entry = {
            "n": len(self.log) + 1,
            "method": params["method"],
            "bot": bot.id,
            "chat": str(params["chat_id"]),
            "thread": str(params.get("message_thread_id", "")),
            "raw": params.get("text", params.get("caption")),
            "parse_mode": params.get("parse_mode"),
            "reply_to": (params.get("reply_parameters") or {}).get("message_id"),
            "buttons": [[button["text"], button.get("callback_data")] for row in rows for button in row],
            "edit": False,
        }
        self.log.append({**entry, **fields})

    async def _download(self, request: Request) -> Response:
        self._authorised(request.path_params["token"])
        file = self.files.get(request.path_params["file"])
        return _error(404, "Not Found", {}) if file is None else Response(file.data, media_type=file.mime)

    # -- the controls --

    async def _get_log(self, _request: Request) -> Response:
        return Json(self.log)

    async def _get_calls(self, _request: Request) -> Response:
        return Json(self.calls)

    async def _get_state(self, _request: Request) -> Response:
        return Json(
            {
                str(bot.id): {
                    "username": bot.username,
                    "confirmed": bot.confirmed,
                    "pending": len(bot.pending),
                    "webhook": bot.webhook.url if bot.webhook else "",
                    "refusals": bot.webhook.refusals if bot.webhook else 0,
                }
                for bot in self.bots.values()
            }
        )

    async def _post_bot(self, request: Request) -> Response:
        body = await request.json()
        bot = self.bot(body.get("id"))
        bot.token = body.get("token", bot.token)
        bot.username = body.get("username", bot.username)
        return Json({"ok": True, "id": bot.id})

    async def _post_file(self, request: Request) -> Response:
        body = await request.json()
        file = File(body.get("name", "file.bin"), body.get("mime", ""), base64.b64decode(body.get("base64", "")))
        return Json({"file_id": self.add_file(file), "size": len(file.data)})

    async def _post_update(self, request: Request) -> Response:
        body = await request.json()
        number = body.pop("bot", None)
        return Json(await self.bot(number).add(body.get("update", body)))

    async def _post_redeliver(self, request: Request) -> Response:
        body = await request.json()
        return Json({"count": await self.bot(body.get("bot")).redeliver(body.get("update_id"))})


def _error(status: int, description: str, parameters: Params) -> Response:
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": description}
    return Json(body | ({"parameters": parameters} if parameters else {}), status)


def _faulty(fault: Fault) -> Response:
    final = fault.final
    named: dict[int | str, Callable[[], Response]] = {
        "hang": Silence,
        "reset": Reset,
        "502html": lambda: Response("<html><h1>502 Bad Gateway</h1></html>", 502, media_type="text/html"),
        "parse": lambda: _error(400, "Bad Request: can't parse entities: refused by a fault", {}),
        "blocked": lambda: _error(403, _DESCRIPTIONS[403], {}),
        "migrate": lambda: _error(
            400,
            "Bad Request: group chat was upgraded to a supergroup chat",
            {"migrate_to_chat_id": fault.detail.get("to", -1001)},
        ),
    }
    if final in named:
        return named[final]()
    if final == 429:
        wait = 3 if fault.retry_after is None else fault.retry_after
        return _error(429, f"Too Many Requests: retry after {wait}", {"retry_after": wait})
    if isinstance(final, int):
        description = str(fault.detail.get("description") or _DESCRIPTIONS.get(final, "Error"))
        return _error(final, description, {})
    return _error(400, f"Bad Request: unknown fault answer {fault.answer!r}", {})


def app() -> Starlette:
    """The fake as an ASGI app."""
    return FakeTelegram().app


if __name__ == "__main__":
    run_alone(app)
