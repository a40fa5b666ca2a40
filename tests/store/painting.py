"""A channel with its owner and a run that answers on it, and short ways to draft, answer and end it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from stratus.channel.values import Limits
from stratus.domain.chain import reply_chain
from stratus.domain.draft import Step
from stratus.domain.run import RunEvent
from stratus.domain.values import ReplyTo, RunError
from stratus.store import draft
from stratus.store.database import Database
from stratus.store.draft import Drawing
from stratus.store.intent import Intent
from stratus.store.plan import NewOp, addressed, plan
from stratus.store.run import ClaimedRun, Ending, finish
from tests.store.test_outbox import Side
from tests.store.world import completion, make_channel, own, rows, running

OPS = """
SELECT kind, state, payload ->> 'text' AS text, payload ->> 'seq' AS seq FROM channel_outbox ORDER BY id
"""


class Painting(Side):
    """A channel with its owner, and a run that answers on it."""

    claimed: ClaimedRun
    seq = 10

    @property
    def to(self) -> ReplyTo:
        assert self.claimed.reply_to is not None
        return self.claimed.reply_to

    async def draw(self, shown: str, *, seq: int | None = None, interval: float = 0.0) -> Step | None:
        self.seq = seq or self.seq + 1
        lease = self.claimed.lease
        one = Drawing(lease.run_id, self.claimed.run, self.lease, self.to, self.seq, shown, interval)
        return (await draft.draw(self.db, [one])).get(lease.run_id)

    async def shown(self, text: str, message_id: str = "m1") -> None:
        """A draft that has been sent."""
        assert await self.draw(text) in (Step.SEND, Step.EDIT)
        assert await self.end(await self.begun(), "sent", detail={"message_id": message_id}) == "sent"

    async def answer(self, text: str = "the answer", **fields: Any) -> None:
        ops = addressed(
            reply_chain(text, [], self.to, Limits(text_max=4096), key="run"), self.to, self.claimed.lease.run_id
        )
        assert await finish(self.db, [completion(self.claimed, ops=fields.pop("ops", ops), **fields)]) == [True]

    async def one(self) -> Intent:
        [intent] = await self.intend()
        return intent

    async def ops(self) -> list[tuple[object, ...]]:
        return [(row["kind"], row["state"], row["text"]) for row in await rows(self.db, OPS)]

    async def ended(self, event: RunEvent, error: RunError | None = None, ops: list[NewOp] | None = None) -> None:
        lease, claimed = self.claimed.lease, self.claimed
        ending = Ending(lease, claimed.attempt, claimed.run_seq, event, uuid4(), error=error, ops=ops or [])
        assert await finish(self.db, [ending]) == [True]

    async def asks(self) -> None:
        """A question of the run's own, sent."""
        place = {"chat": self.to.chat, "thread": self.to.thread}
        run_id = self.claimed.lease.run_id
        op = NewOp(self.channel, self.to.lane(), "approval_prompt", place, {"text": "?"}, uuid4().hex, run_id=run_id)
        await self.db.transact(lambda c: plan(c, [op]))
        await self.end(await self.begun(), "sent", detail={"message_id": "m2"})

    async def say(self, text: str, kind: str = "notify") -> None:
        """Another op in the lane."""
        op = NewOp(self.channel, self.to.lane(), kind, {"chat": self.to.chat}, {"text": text}, uuid4().hex)
        await self.db.transact(lambda c: plan(c, [op]))


async def painted(db: Database) -> Painting:
    channel = await make_channel(db)
    made = Painting(db, channel, await own(db, channel))
    made.claimed = await running(db, channel_id=channel)
    return made


def edits(intent: Intent) -> tuple[object, object]:
    return intent.payload["text"], intent.payload.get("message_id")
