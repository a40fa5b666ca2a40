"""Files on their way in: what is taken, what an event still waits for, and albums, whose parts are one message. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from stratus.channel.values import Attachment, Event
from stratus.domain.values import FilePart, Part

# The least of what the platforms hand out to a bot: Telegram's 20 MB (https://core.telegram.org/bots/api#getfile).
FILE_BYTES_MAX = 20_000_000
FETCH_TRIES = 5
FETCH_SECONDS = 20.0
# An album's parts arrive one by one. This long after the last it is complete, and never later than so long after its first.
ALBUM_SECONDS = 1.5
ALBUM_SECONDS_MAX = 10.0


def waits(event: Event) -> bool:
    """Whether the event is not ready as it has come: bytes must be fetched, or it may be a part of an album."""
    return event.kind == "message" and (event.album is not None or any(map(wanted, event.attachments)))


def wanted(file: Attachment) -> bool:
    """Whether the file's bytes must still be fetched."""
    return file.ref is not None and file.sha256 is None and file.data is None and file.missing is None


def kept(file: Attachment, data: bytes) -> Attachment:
    """The file with its bytes stored elsewhere, under their digest."""
    digest = hashlib.sha256(data).hexdigest()
    return file.model_copy(update={"data": None, "sha256": digest, "size": len(data)})


def too_large(size: int) -> str:
    """Why a file of so many bytes is not taken."""
    return f"it has {size} bytes, and I take at most {FILE_BYTES_MAX}"


def lifted(files: Sequence[Attachment]) -> tuple[list[Attachment], list[bytes]]:
    """Files that came with their bytes, without them, and the bytes to store."""
    light: list[Attachment] = []
    blobs: list[bytes] = []
    for file in files:
        if file.data is None:
            light.append(file)
            continue
        data, missing = _decoded(file.data)
        if missing is None:
            light.append(kept(file, data))
            blobs.append(data)
        else:
            light.append(file.model_copy(update={"data": None, "missing": missing}))
    return light, blobs


def lifted_parts(parts: Sequence[Part]) -> tuple[list[Part], list[bytes]]:
    """The same of a message's parts."""
    light: list[Part] = []
    blobs: list[bytes] = []
    for part in parts:
        data = _bytes_of(part)
        if data is not None and isinstance(part, FilePart):
            digest = hashlib.sha256(data).hexdigest()
            light.append(part.model_copy(update={"data": "", "sha256": digest, "size": len(data)}))
            blobs.append(data)
        else:
            light.append(part)
    return light, blobs


def album_of(parts: Sequence[Event]) -> Event:
    """The message that an album's parts are, in their order; it counts as addressed if one of them is."""
    first = parts[0]
    return first.model_copy(
        update={
            "album": None,
            "text": "\n".join(part.text for part in parts if part.text.strip()),
            "attachments": [file for part in parts for file in part.attachments],
            "addressed": any(part.addressed for part in parts),
            "mentions": list(dict.fromkeys(name for part in parts for name in part.mentions)),
        }
    )


def _decoded(data: str) -> tuple[bytes, str | None]:
    try:
        found = base64.b64decode(data, validate=True)
    except ValueError:  # no base64
        return b"", "its bytes could not be read"
    return (found, None) if len(found) <= FILE_BYTES_MAX else (b"", too_large(len(found)))


def _bytes_of(part: Part) -> bytes | None:
    if not isinstance(part, FilePart) or part.sha256 is not None:
        return None
    try:
        return base64.b64decode(part.data, validate=True)
    except ValueError:  # no base64
        return None
