"""One bot at the fake Telegram: its queue of updates with the real offset rules, its webhook, and the messages it may
answer or edit.

Rules: https://core.telegram.org/bots/api#getting-updates; which of two pollers gets the 409: tdlib/telegram-bot-api.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.fakes.push import Pusher
from testbed.fakes.telegram_checks import Refused

_UNASKED = ("chat_member", "message_reaction", "message_reaction_count")
_IN_CHAT = ("message", "edited_message", "channel_post", "edited_channel_post")

Update = dict[str, Any]


class FakeBot:
    """A bot account. The first token seen for its id is the right one, until another is set."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.username = f"bot{number}_bot"
        self.token: str | None = None
        self.pending: list[Update] = []
        self.history: list[Update] = []
        self.confirmed = 0
        self.allowed: Sequence[str] | None = None
        self.webhook: Pusher | None = None
        self.messages: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.moved: dict[str, int] = {}
        self._again: list[Update] = []
        self._update_seq = 1000
        self._message_seq = 100
        self._poller = 0
        self._changed = asyncio.Condition()

    def next_message_id(self) -> int:
        """A fresh message id; incoming and sent messages share the row of numbers."""
        self._message_seq += 1
        return self._message_seq

    async def add(self, update: Update) -> Update:
        """Queue an update; see `filled` for what may be left out. One that the bot did not ask for is dropped."""
        made = self.filled(update)
        kind = next((name for name in made if name != "update_id"), "")
        self.history.append(made)
        if kind in self.allowed if self.allowed else kind not in _UNASKED:
            async with self._changed:
                self.pending.append(made)
                self._changed.notify_all()
            if self.webhook is not None:
                self.webhook.put(made)
        return made

    async def upgrade(self, old: int, new: int, *, tell: bool = True) -> None:
        """The group `old` becomes the supergroup `new`: calls for the old one are refused from now on, and both chats get
        the message that says so (https://core.telegram.org/bots/api#message), unless `tell` is False.
        """
        self.moved[str(old)] = new
        if tell:
            await self.add({"message": {"chat": {"id": old, "type": "group"}, "migrate_to_chat_id": new}})
            await self.add({"message": {"chat": {"id": new, "type": "supergroup"}, "migrate_from_chat_id": old}})

    async def redeliver(self, update_id: int | None) -> int:
        """Hand out again, once, what was handed out before (one update, or all); the count."""
        again = [update for update in self.history if update_id in (None, update.get("update_id"))]
        async with self._changed:
            self._again.extend(again)
            self._changed.notify_all()
        if self.webhook is not None:
            for update in again:
                self.webhook.put(update)
            self._again.clear()
        return len(again)

    def filled(self, update: Update) -> Update:
        """`update` with `update_id` and, in its message, `message_id`, `date`, `chat`, `from` and a command's entity
        where they are missing.

        With `"raw": true` it stays as it is.
        """
        if update.get("raw") is True:
            return {name: value for name, value in update.items() if name != "raw"}
        made = dict(update)
        if "update_id" not in made:
            self._update_seq += 1
            made["update_id"] = self._update_seq
        for name in _IN_CHAT:
            if isinstance(made.get(name), dict):
                made[name] = self._filled_message(made[name])
        if isinstance(made.get("callback_query"), dict):
            query = made["callback_query"]
            user = {"id": 7, "is_bot": False, "first_name": "Una"}
            message = self._filled_message({"from": {"id": self.id, "is_bot": True}, **query.get("message", {})})
            made["callback_query"] = {"id": f"q{made['update_id']}", "from": user, **query, "message": message}
        return made

    def _filled_message(self, message: dict[str, Any]) -> dict[str, Any]:
        user = {"id": 7, "is_bot": False, "first_name": "Una"}
        made = {"date": int(time.time()), "chat": {"id": 7, "type": "private"}, "from": user, **message}
        made.setdefault("message_id", self.next_message_id())
        text = made.get("text", "")
        if isinstance(text, str) and text.startswith("/") and "entities" not in made:
            word = text.split(maxsplit=1)[0]
            made["entities"] = [{"type": "bot_command", "offset": 0, "length": len(word)}]
        self.messages.setdefault((str(made["chat"]["id"]), made["message_id"]), made)
        return made

    async def get_updates(self, params: Mapping[str, Any]) -> list[Update]:
        """Confirm below `offset`, then wait for updates; a newer call ends this one with 409."""
        if self.webhook is not None:
            raise Refused(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook first")
        offset, limit = int(params.get("offset", 0)), int(params.get("limit", 100))
        if offset < 0:
            raise Refused(400, "Bad Request: this fake refuses negative offsets, which lose updates")
        self.allow(params)
        if offset:
            self.confirmed = offset
            self.pending = [update for update in self.pending if update.get("update_id", offset) >= offset]
        self._poller += 1
        mine = self._poller
        async with self._changed:
            self._changed.notify_all()
        wait = min(float(params.get("timeout", 0)), 50)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait), self._changed:
                await self._changed.wait_for(lambda: self._poller != mine or self.pending or self._again)
        if self._poller != mine:
            raise Refused(
                409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
            )
        again, self._again = self._again, []
        return [*again, *self.pending][:limit]

    def allow(self, params: Mapping[str, Any]) -> None:
        """Remember `allowed_updates`, which persists where a call leaves it out."""
        if "allowed_updates" in params:
            self.allowed = params["allowed_updates"]

    def set_webhook(self, params: Mapping[str, Any], answered: Callable[[Any, Any], None]) -> None:
        """Push from now on, what is pending first; `answered` sees each accepted push and its reply."""
        secret = str(params.get("secret_token", ""))
        if len(secret) > 256 or not secret.replace("-", "").replace("_", "").isalnum():
            raise Refused(400, "Bad Request: secret token contains unallowed characters")
        self.end_webhook(params)
        self.allow(params)
        self._poller += 1
        self.webhook = Pusher(str(params["url"]), {"X-Telegram-Bot-Api-Secret-Token": secret}, answered)
        for update in self.pending:
            self.webhook.put(update)

    def end_webhook(self, params: Mapping[str, Any]) -> None:
        """Poll again; pending updates stay unless they are to be dropped."""
        if self.webhook is not None:
            self.webhook.stop()
            self.webhook = None
        if str(params.get("drop_pending_updates", "")).lower() == "true":
            self.pending.clear()

    def pushed(self, update: Any) -> None:
        """An update was accepted by the webhook."""
        self.pending = [other for other in self.pending if other is not update]
