"""A case of delivery: ops that are planned into a lane itself, so that it is the same on every platform, and that real replicas send."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from stratus.store.database import Database
from stratus.store.plan import NewOp, plan
from testbed.replicas import eventually
from testbed.sides import FILE, Side, add_side
from testbed.stage import Stage

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

OPS = """
SELECT id, state, attempts, attempt_seq, error ->> 'code' AS code, sent_message_id
  FROM channel_outbox WHERE channel_id = $1 ORDER BY id
"""


class Case:
    """A side's channel in the database, and its outbox."""

    def __init__(self, db: Database, side: Side, channel_id: int) -> None:
        self.db = db
        self.side = side
        self.channel_id = channel_id
        self.chat = side.chat(1)

    async def put(self, *texts: str, chat: str | None = None, chained: bool = True, markdown: bool = False) -> None:
        """A chain of texts into the chat's lane; FILE stands for a file."""
        file = {"attachment": {"kind": "image", "name": "dot.png", "mime": "image/png", "data": PNG}}
        payloads = [file if text == FILE else {"text": text, "markdown": markdown} for text in texts]
        lane = chat or self.chat
        ops = [
            NewOp(
                self.channel_id,
                lane,
                "send_attachment" if "attachment" in payload else "send_text",
                {"chat": lane, "thread": ""},
                payload,
                uuid4().hex,
                after=number - 1 if chained and number else None,
            )
            for number, payload in enumerate(payloads)
        ]
        await self.db.transact(lambda c: plan(c, ops))

    async def ops(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.db.read(lambda c: c.fetch(OPS, self.channel_id))]

    async def states(self, *wanted: str, timeout: float = 20) -> list[dict[str, Any]]:
        """Wait until the channel's ops are in these states, in order."""

        async def reached() -> bool:
            return [op["state"] for op in await self.ops()] == list(wanted)

        await eventually(reached, timeout, f"ops of {self.side.name} to be {wanted}")
        return await self.ops()

    async def sent(self, *texts: str, timeout: float = 20) -> None:
        """Wait until the platform has taken exactly these."""
        await eventually(
            lambda: len(self.side.sent(self.chat)) >= len(texts), timeout, f"{texts} to be sent by {self.side.name}"
        )
        assert self.side.sent(self.chat) == list(texts)


async def open_case(stage: Stage, side: Side, **options: Any) -> Case:
    """Add the side's channel for the agent `demo`."""
    return Case(stage.db, side, await add_side(stage, side, **options))
