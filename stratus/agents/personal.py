"""Tools that reach the person who asked: a file with the answer, a message before it."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field

from stratus.agents.tools import Notice, ProducedFile, ToolOutcome, tool

FILE_LIMIT_BYTES = 10_000_000
TEXT_LIMIT_CHARACTERS = 4_000
_NAME_CHARACTERS = 120
_EMOJI_CHARACTERS = 16
_MIME = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]{0,99}")


@tool(effect="idempotent")
async def send_file(
    name: Annotated[str, Field(min_length=1, description="Such as report.csv")],
    content: Annotated[str | None, Field(description="The file's text")] = None,
    base64: Annotated[str | None, Field(description="Its bytes instead, in base64")] = None,
    mime: Annotated[str | None, Field(description="Such as text/csv; else told from the name")] = None,
) -> ToolOutcome:
    """Give the person a file, together with the answer. Give either content or base64, at most 10 MB."""
    if (content is None) == (base64 is None):
        raise ValueError("give either content or base64")
    data = _decoded(base64) if base64 is not None else (content or "").encode("utf-8", "replace")
    if len(data) > FILE_LIMIT_BYTES:
        raise ValueError(f"the file has {len(data)} bytes, at most {FILE_LIMIT_BYTES} can be sent")
    shown = _file_name(name)
    kind = mime or mimetypes.guess_type(shown)[0] or ("text/plain" if base64 is None else "application/octet-stream")
    if not _MIME.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a MIME type such as text/csv")
    return ToolOutcome(
        f"{shown} ({len(data)} bytes) goes out with the answer.", files=[ProducedFile(shown, kind, data)]
    )


@tool(effect="idempotent")
async def notify(
    text: Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT_CHARACTERS)],
    channel: Annotated[str | None, Field(description="The name of another channel on which to tell them")] = None,
    key: Annotated[
        str | None, Field(min_length=1, max_length=200, description="Names the news: it is told once a day at most")
    ] = None,
) -> ToolOutcome:
    """Send the person a message at once, before the answer: for news during long work."""
    if not text.strip():
        raise ValueError("the text is empty")
    return ToolOutcome("The message goes out now.", notices=[Notice(text, channel, key)])


@tool(effect="idempotent")
async def react(
    emoji: Annotated[str, Field(min_length=1, max_length=_EMOJI_CHARACTERS, description="One emoji, such as 👍")],
) -> ToolOutcome:
    """React to the person's message with an emoji. In a group an empty answer after it says nothing more."""
    if not emoji.strip() or any(sign.isspace() or sign.isalnum() for sign in emoji):
        raise ValueError(f"{emoji!r} is not an emoji")
    return ToolOutcome("The reaction goes out now.", notices=[Notice(emoji, reaction=True)])


def _decoded(text: str) -> bytes:
    # What is too long is not decoded first: base64 has four characters for three bytes.
    if len(text) > FILE_LIMIT_BYTES * 2:
        raise ValueError(f"the file is too large, at most {FILE_LIMIT_BYTES} bytes can be sent")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError("this is not base64") from error


def _file_name(name: str) -> str:
    """The last part of it, without signs that are not seen or turn the reading direction around."""
    last = PurePosixPath(name.replace("\\", "/")).name
    seen = "".join(sign for sign in last if unicodedata.category(sign)[0] != "C").strip().lstrip(".")
    if not seen:
        raise ValueError(f"{name!r} is not the name of a file")
    stem, dot, ending = seen.rpartition(".")
    if len(seen) <= _NAME_CHARACTERS:
        return seen
    return f"{stem[: _NAME_CHARACTERS - 20]}{dot}{ending[:19]}" if stem else seen[:_NAME_CHARACTERS]
