"""The files of a conversation for one request to a model: history names them, the request carries the newest."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from stratus.agents.convert import shows
from stratus.domain.values import FilePart, Message, Part
from stratus.store import blob
from stratus.store.database import Database

# Providers refuse bodies from about 32 MB on (https://docs.anthropic.com/en/api/overview#request-size-limits), and base64 takes a third more.
REQUEST_FILE_BYTES_MAX = 20_000_000


async def with_files(db: Database, messages: Sequence[Message]) -> list[Message]:
    """The messages with the bytes of their files that a model can be shown, the newest first, up to the bound of a request.

    The others stay without bytes, and become a note where the request is made.
    """
    left = REQUEST_FILE_BYTES_MAX
    filled = list(messages)
    for at in range(len(filled) - 1, -1, -1):
        parts: list[Part] = list(filled[at].parts)
        for index, part in enumerate(parts):
            if not isinstance(part, FilePart) or part.sha256 is None or part.data or not shows(part.mime):
                continue
            if part.octets() > left:
                continue
            data = await blob.get(db, bytes.fromhex(part.sha256))
            if data is not None:
                left -= len(data)
                parts[index] = part.model_copy(update={"data": base64.b64encode(data).decode()})
                filled[at] = filled[at].model_copy(update={"parts": parts})
    return filled
