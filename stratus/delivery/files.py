"""The bytes of files about to be sent: read from the store when their turn has come, a few at a time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.values import Attachment, Limits, Op
from stratus.store import blob
from stratus.store.database import Database

# A file is in memory about three times while it is sent: its bytes, their base64, the request's body.
FILES_IN_HAND = 2


class Files:
    """Fills in what an op's payload only names. One for each channel."""

    def __init__(self, db: Database, limits: Limits) -> None:
        self._db = db
        self._limits = limits
        self._room = asyncio.Semaphore(FILES_IN_HAND)

    @contextlib.asynccontextmanager
    async def holding(self, op: Op, seconds: float) -> AsyncIterator[Op]:
        """The op with its file's bytes, for the time of its call; loading them may take `seconds`.

        Raises SendError where they can never be sent, TimeoutError or DatabaseAway where another time may do. Ops without a stored file
        pass as they are.
        """
        file = op.attachment
        if file is None or file.sha256 is None or file.data is not None:
            yield op
            return
        async with contextlib.AsyncExitStack() as held:
            async with asyncio.timeout(seconds):
                await held.enter_async_context(self._room)
                filled = op.model_copy(update={"attachment": await self._filled(file, file.sha256)})
            yield filled

    async def _filled(self, file: Attachment, sha256: str) -> Attachment:
        if (file.size or 0) > self._limits.attachment_bytes_max:
            raise SendError(SendFailure.PERMANENT, "too_large", f"{file.size} bytes are more than the platform takes")
        data = await blob.get(self._db, bytes.fromhex(sha256))
        if data is None:
            raise SendError(SendFailure.PERMANENT, "file_gone", "the file's bytes are no longer stored")
        return file.model_copy(update={"data": base64.b64encode(data).decode()})
