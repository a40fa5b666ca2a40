"""What the Bot API checks of a call before it takes it: lengths, HTML, keyboards.

Each check raises Refused as Telegram would answer.

Rules: https://core.telegram.org/bots/api#html-style, #sendmessage, #inlinekeyboardbutton.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

TEXT_MAX = 4096
CAPTION_MAX = 1024

_TAGS = frozenset("b strong i em u ins s strike del code pre a blockquote tg-spoiler span".split())
_SERIALIZED = {"allowed_updates", "link_preview_options", "reaction", "reply_markup", "reply_parameters"}
_TAG = re.compile(r"<(/?)([a-zA-Z-]+)([^<>]*)>")


@dataclass(frozen=True)
class File:
    """A file that came with a call."""

    name: str
    mime: str
    data: bytes


class Refused(Exception):
    """The call is answered with this status and description."""

    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters


def visible_text(text: str, parse_mode: str | None, most: int = TEXT_MAX) -> str:
    """What people will read. Raises Refused for broken HTML, for too long a text, and for a NUL in it."""
    if "\x00" in text:
        raise Refused(400, "Bad Request: strings must not contain NUL")
    seen = text if parse_mode is None else _without_tags(text)
    if len(seen.encode("utf-16-le", "surrogatepass")) // 2 > most:
        name = "message is too long" if most == TEXT_MAX else "message caption is too long"
        raise Refused(400, f"Bad Request: {name}")
    return seen


def check_keyboard(markup: Any) -> None:
    """Raises Refused for a button whose data has not 1 to 64 bytes."""
    for row in (markup or {}).get("inline_keyboard", []):
        for button in row:
            if not 1 <= len(str(button.get("callback_data", "x")).encode()) <= 64:
                raise Refused(400, "Bad Request: BUTTON_DATA_INVALID")


def _without_tags(text: str) -> str:
    opened: list[str] = []
    out, at = [], 0
    while (start := text.find("<", at)) != -1:
        tag = _TAG.match(text, start)
        if tag is None or tag[2].lower() not in _TAGS:
            raise Refused(400, f"Bad Request: can't parse entities: unsupported start tag at byte offset {start}")
        if not tag[1]:
            opened.append(tag[2])
        elif not opened or opened.pop() != tag[2]:
            raise Refused(400, f"Bad Request: can't parse entities: unexpected end tag at byte offset {start}")
        out.append(html.unescape(text[at:start]))
        at = tag.end()
    if opened:
        raise Refused(400, f"Bad Request: can't parse entities: can't find end tag of start tag {opened[-1]}")
    return "".join(out) + html.unescape(text[at:])


def parameters(content_type: str, query: str, body: bytes) -> tuple[dict[str, Any], dict[str, File]]:
    """A call's parameters and files, from the query, a form, JSON or multipart; what the API calls JSON-serialized is
    decoded.
    """
    found: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    files: dict[str, File] = {}
    if content_type.startswith("application/json"):
        found |= json.loads(body or b"{}")
    elif content_type.startswith("multipart/"):
        for name, filename, mime, data in _parts(content_type, body):
            if filename is None:
                found[name] = data.decode()
            else:
                files[name] = File(filename, mime, data)
    else:
        found |= dict(parse_qsl(body.decode(), keep_blank_values=True))
    for name in _SERIALIZED & found.keys():
        if isinstance(found[name], str):
            found[name] = json.loads(found[name])
    return found, files


def _parts(content_type: str, body: bytes) -> Iterator[tuple[str, str | None, str, bytes]]:
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        headers = head.decode()
        name = re.search(r'[ ;]name="([^"]*)"', headers)
        filename = re.search(r'filename="([^"]*)"', headers)
        mime = re.search(r"(?i)content-type: *([^\r\n;]+)", headers)
        yield (
            name[1] if name else "",
            filename[1] if filename else None,
            mime[1] if mime else "application/octet-stream",
            data.removesuffix(b"\r\n"),
        )


def number(fields: Mapping[str, Any], name: str) -> int:
    """A required id. Raises Refused when it is missing or none."""
    try:
        return int(fields[name])
    except (KeyError, TypeError, ValueError):
        raise Refused(400, f"Bad Request: {name} is not specified") from None
