"""The values that cross between the gateway and an adapter.

All are immutable and versioned by `v` where they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

EventKind = Literal["message", "edit", "command", "callback", "member", "migrate", "other"]
OpKind = Literal[
    "send_reply",
    "send_text",
    "send_attachment",
    "draft_update",
    "send_group_reply",
    "reaction",
    "approval_prompt",
    "edit_prompt",
    "notify",
]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TextUnit(StrEnum):
    """How a platform counts text."""

    UTF16 = "utf16"
    CODEPOINTS = "codepoints"
    BYTES = "bytes"


class Limits(_Value):
    """A platform's numbers: lengths in `text_unit`, sizes in bytes, intervals in seconds, rates in messages a second.

    `group_rate` is for chats whose id begins with `group_prefix` (None: as `chat_rate`). `burst` messages may go at once
    after a pause. `rate_by` says whether each thread has a rate of its own (`lane`), or all threads of a chat share one.
    """

    text_max: int
    text_unit: TextUnit = TextUnit.UTF16
    caption_max: int = 1024
    attachment_bytes_max: int = 50_000_000
    edit_interval_seconds: float = 1.0
    chat_rate: float = 1.0
    bot_rate: float = 30.0
    group_rate: float | None = None
    group_prefix: str = ""
    burst: int = 4
    rate_by: Literal["lane", "chat"] = "lane"


class Sender(_Value):
    """Who wrote an event. `id` is the platform's own immutable id; names are for people only and never identify."""

    id: str
    name: str = ""
    username: str = ""
    is_bot: bool = False


class Attachment(_Value):
    """A file that came with an event, or that an op sends.

    `ref` is what `Adapter.fetch` takes; `data` is set when the bytes are at hand (base64: they came along with the event,
    or are about to be sent). `sha256` (hexadecimal) names bytes that the gateway keeps, `missing` says why it has none:
    adapters leave both alone.
    """

    kind: Literal["image", "audio", "voice", "video", "document"] = "document"
    name: str = ""
    mime: str = "application/octet-stream"
    size: int | None = None
    ref: str | None = None
    data: str | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    missing: str | None = None


class Event(_Value):
    """One platform event.

    `key` is the platform's stable identity of the event, scoped by chat and thread; polling and webhook make the same.
    `chat` and `thread` address the conversation (`thread` is "" where there is none). `command` is set only for a real
    slash command addressed to us, without the slash and lower-case; `text` then holds its arguments. `direct` says that
    the chat is one-to-one; `addressed` that the bot is meant (always in a direct chat, by mention or reply in a group).
    `mentions` are the platform's ids of all who are meant by a message in a group, in order; `shared_id` says that
    `message_id` is the same for every bot in the chat. Events with the same `album` are parts of one message. `echo` is
    the key of an op of ours: the platform shows us what it made of it, as `message_id`. A `migrate` says that `chat` is
    now called `text`. `version` is the shape of `payload`, which keeps what the platform sent.
    """

    key: str = Field(max_length=512)
    kind: EventKind
    chat: str = Field(max_length=200)
    thread: str = Field(default="", max_length=200)
    sender: Sender
    text: str = ""
    command: str | None = None
    message_id: str | None = None
    reply_to: str | None = None
    callback: str | None = None
    album: str | None = None
    echo: str | None = None
    direct: bool = True
    addressed: bool = True
    mentions: Sequence[str] = ()
    shared_id: bool = False
    attachments: Sequence[Attachment] = ()
    version: int = 1
    payload: Mapping[str, Any] = Field(default_factory=dict)


class Op(_Value):
    """One call to make. `key` is the delivery key: stable over every try of this op, at most 25 characters of [0-9a-z].

    `markdown` says that `text` is Markdown to be rendered; an adapter falls back to plain text behind a second
    `guard()`. `attempt` counts tries from 1; `owner` names the replica, for platforms that log it.
    """

    id: int
    kind: OpKind
    chat: str
    thread: str = ""
    text: str = ""
    markdown: bool = False
    reply_to: str | None = None
    message_id: str | None = None
    buttons: Sequence[tuple[str, str]] = ()
    attachment: Attachment | None = None
    key: str
    attempt: int = 1
    owner: str = ""


class Receipt(_Value):
    """The platform's proof that it took an op."""

    message_id: str | None = None
    detail: Mapping[str, Any] = Field(default_factory=dict)


class Blob(_Value):
    """A file's bytes with what is known of them."""

    name: str
    mime: str
    data: bytes


class RawRequest(_Value):
    """A webhook request, untouched: header names are lower-case, the body is the raw bytes that signatures are checked
    on.
    """

    method: str
    headers: Mapping[str, str]
    body: bytes


class WebhookReply(_Value):
    """What a webhook is answered once its events are committed.

    `status` other than 2xx with no events means: refused, nothing stored.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    events: Sequence[Event] = ()


class ChannelConfig(_Value):
    """What an adapter is made from: the operator's options, the credentials, and where webhooks reach us (None while
    polling).
    """

    channel_id: str
    name: str
    options: Mapping[str, Any] = Field(default_factory=dict)
    credentials: Mapping[str, SecretStr] = Field(default_factory=dict)
    webhook_url: str | None = None
