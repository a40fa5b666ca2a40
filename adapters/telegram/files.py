"""Which files a Telegram message carries, as Attachments whose `ref` is the file id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stratus.channel import Attachment
from stratus.channel.text import clean

# field of Message: kind, MIME type where Telegram names none, ending of a made-up name (https://core.telegram.org/bots/api#message)
_FILES = {
    "voice": ("voice", "audio/ogg", "ogg"),
    "audio": ("audio", "audio/mpeg", "mp3"),
    "video": ("video", "video/mp4", "mp4"),
    "video_note": ("video", "video/mp4", "mp4"),
    "animation": ("video", "video/mp4", "mp4"),
    "document": ("document", "application/octet-stream", "bin"),
}


def attachments(message: Mapping[str, Any]) -> list[Attachment]:
    """The message's files; of a photo only its largest size, of an animation not the document that repeats it."""
    found = []
    if sizes := message.get("photo"):
        largest = max(sizes, key=lambda size: int(size["width"]) * int(size["height"]))
        found.append(_attachment(largest, ("image", "image/jpeg", "jpg"), "photo"))
    found.extend(_attachment(message[name], _FILES[name], name) for name in _names(message))
    return found


def _names(message: Mapping[str, Any]) -> Iterator[str]:
    for name in _FILES:
        if message.get(name) and not (name == "document" and "animation" in message):
            yield name


def _attachment(file: Mapping[str, Any], known: tuple[str, str, str], label: str) -> Attachment:
    kind, mime, ending = known
    return Attachment.model_validate(
        {
            "kind": kind,
            "name": clean(str(file.get("file_name") or f"{label}.{ending}")),
            "mime": clean(str(file.get("mime_type") or mime)),
            "size": file.get("file_size"),
            "ref": str(file["file_id"]),
        }
    )
