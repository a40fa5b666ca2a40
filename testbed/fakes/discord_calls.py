"""The fake Discord's REST calls, named as in its documentation: what each does to a bot, and what is refused."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from testbed.fakes.discord_bot import FakeBot
from testbed.fakes.discord_checks import Refused, check_message, pings
from testbed.fakes.telegram_checks import File

_FILE_BYTES_MAX = 10_485_760

Params = Mapping[str, Any]


class RestCalls:
    """The calls, with what they keep: files, the log of effects, and the rate limits that a test has set."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.log: list[dict[str, Any]] = []
        self.limits: dict[str, tuple[int, float]] = {}
        self._spent: dict[str, list[float]] = {}

    async def getMe(self, bot: FakeBot, _params: Params, _files: Mapping[str, File]) -> Any:
        return bot.user()

    async def getGateway(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        limit = {"total": 1000, "remaining": bot.starts_left, "reset_after": 14_400_000, "max_concurrency": 1}
        return {"url": f"ws://{params['host']}/gateway", "shards": 1, "session_start_limit": limit}

    async def createMessage(self, bot: FakeBot, params: Params, files: Mapping[str, File]) -> Any:
        chat = str(params["chat"])
        check_message(params, files)
        if params.get("enforce_nonce") and (before := bot.taken(params.get("nonce"), chat)) is not None:
            return before
        self._spend(chat)
        attachments = [self._kept(file, str(params["host"])) for file in files.values()]
        message = bot.message(str(params.get("content") or ""), chat, bot.id)
        message |= {"author": bot.user(), "components": params.get("components", []), "attachments": attachments}
        bot.messages.setdefault(chat, []).append(message)
        if params.get("nonce"):
            bot.nonces[(chat, str(params["nonce"]))] = (time.monotonic(), message)
        self._log(bot, "createMessage", params, message, attachments)
        bot.emit("MESSAGE_CREATE", {**message, "nonce": params.get("nonce")})
        return message

    async def editMessage(self, bot: FakeBot, params: Params, files: Mapping[str, File]) -> Any:
        message = self._own(bot, params)
        check_message({"content": message["content"], **params}, files)
        for name in ("content", "components"):
            if name in params:
                message[name] = params[name]
        self._log(bot, "editMessage", params, message, [], edit=True)
        return message

    async def deleteMessage(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        message = self._own(bot, params)
        bot.messages[str(params["chat"])].remove(message)

    async def getMessages(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        after, limit = int(params.get("after", 0)), int(params.get("limit", 50))
        if not 1 <= limit <= 100:
            raise Refused(400, 50035, "Invalid Form Body")
        found = [one for one in bot.messages.get(str(params["chat"]), ()) if int(one["id"]) > after][:limit]
        return [{name: value for name, value in one.items() if name != "guild_id"} for one in reversed(found)]

    async def getMessage(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        found = bot.find(str(params["chat"]), str(params["message"]))
        if found is None:
            raise Refused(404, 10008, "Unknown Message")
        return found

    async def addReaction(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        message = await self.getMessage(bot, params, {})
        mine = message.setdefault("reactions", [])
        if all(one["emoji"]["name"] != params["emoji"] for one in mine):
            mine.append({"emoji": {"id": None, "name": params["emoji"]}, "me": True, "count": 1})
        self._log(bot, "addReaction", params, {**message, "content": params["emoji"]}, [])

    async def removeReaction(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        message = await self.getMessage(bot, params, {})
        message["reactions"] = [one for one in message["reactions"] if one["emoji"]["name"] != params["emoji"]]
        self._log(bot, "removeReaction", params, {**message, "content": params["emoji"]}, [])

    async def typing(self, _bot: FakeBot, _params: Params, _files: Mapping[str, File]) -> Any:
        return None

    async def getCommands(self, bot: FakeBot, _params: Params, _files: Mapping[str, File]) -> Any:
        return bot.commands

    async def putCommands(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        bot.commands = [{**one, "id": bot.next_id(), "version": "1"} for one in params["list"]]
        return bot.commands

    async def answerInteraction(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        state = bot.interactions.get(str(params["interaction"]))
        if state is None or time.monotonic() - state["at"] > 3:
            raise Refused(404, 10062, "Unknown interaction")
        if state["type"] is not None:
            raise Refused(400, 40060, "Interaction has already been acknowledged.")
        state["type"], state["flags"] = params["type"], (params.get("data") or {}).get("flags", 0)

    async def deleteOriginal(self, bot: FakeBot, params: Params, _files: Mapping[str, File]) -> Any:
        state = bot.interactions[str(params["itoken"]).removeprefix("itoken")]
        if state["type"] != 5 or state["ended"]:
            raise Refused(404, 10008, "Unknown Message")
        state["ended"] = True

    # -- what the calls share --

    def _own(self, bot: FakeBot, params: Params) -> dict[str, Any]:
        found = bot.find(str(params["chat"]), str(params["message"]))
        if found is None:
            raise Refused(404, 10008, "Unknown Message")
        if found["author"]["id"] != bot.id:
            raise Refused(403, 50005, "Cannot edit a message authored by another user")
        return found

    def _spend(self, chat: str) -> None:
        """Take one of the chat's messages. Raises Refused with 429 when none is left."""
        if chat not in self.limits:
            return
        count, seconds = self.limits[chat]
        now = time.monotonic()
        spent = self._spent[chat] = [at for at in self._spent.get(chat, []) if now - at < seconds]
        if len(spent) >= count:
            raise Refused(
                429, 0, "You are being rate limited.", retry_after=seconds - (now - spent[0]), **{"global": False}
            )
        spent.append(now)

    def bucket(self, name: str, params: Params) -> dict[str, str]:
        """The headers that tell how much of the rate limit is left."""
        chat = str(params.get("chat", ""))
        count, seconds = self.limits.get(chat, (5000, 1.0))
        left = count - len(self._spent.get(chat, ())) if name == "createMessage" else 5000
        wait = seconds - (time.monotonic() - self._spent[chat][0]) if self._spent.get(chat) else seconds
        return {
            "X-RateLimit-Bucket": hashlib.sha256(name.encode()).hexdigest()[:16],
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset-After": f"{wait:.3f}",
        }

    def _kept(self, file: File, host: str) -> dict[str, Any]:
        if len(file.data) > _FILE_BYTES_MAX:
            raise Refused(413, 40005, "Request entity too large")
        number = self.add_file(file)
        url = f"http://{host}/files/{number}/{file.name}"
        return {"id": number, "filename": file.name, "size": len(file.data), "content_type": file.mime, "url": url}

    def add_file(self, file: File) -> str:
        """Keep a file for download; its number in `/files/{number}/{name}`."""
        number = str(len(self.files) + 1)
        self.files[number] = file
        return number

    def _log(
        self, bot: FakeBot, method: str, params: Params, message: Params, attachments: Any, *, edit: bool = False
    ) -> None:
        rows = message.get("components") or []
        reference = params.get("message_reference") or {}
        known = [
            {**one, "sha256": hashlib.sha256(self.files[one["id"]].data).hexdigest(), "name": one["filename"]}
            for one in attachments
        ]
        self.log.append(
            {
                "n": len(self.log) + 1,
                "method": method,
                "bot": bot.id,
                "chat": str(params["chat"]),
                "message_id": message["id"],
                "text": message["content"],
                "reply_to": reference.get("message_id"),
                "buttons": [[one["label"], one["custom_id"]] for row in rows for one in row["components"]],
                "attachment": known[0] if known else None,
                "nonce": params.get("nonce"),
                "pings": pings(params, message) if "Message" in method else [],
                "edit": edit,
            }
        )
