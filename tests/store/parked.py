"""A turn that has parked with a question, made through the store as execution does it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

from stratus.domain.approval import Approvers
from stratus.domain.values import Message, ToolCallPart
from stratus.store.approval import NewApproval
from stratus.store.database import Database
from stratus.store.decision import Decider
from stratus.store.execution import Step, commit_step
from stratus.store.park import Ask, Parking, park
from stratus.store.run import ClaimedRun
from stratus.store.tool_call import NewCall
from tests.store.world import rows, running

OWNER = Decider(1, "owner", "Olga", knows=True)
ASKER = Decider(7, "guest", "Ann")
STRANGER = Decider(8, "guest", "Bob")
CALLS = ("a", "b")


@dataclass(frozen=True)
class Parked:
    """The run as it was claimed, and the approvals of its calls in order."""

    claimed: ClaimedRun
    approvals: list[UUID]


async def asking(db: Database, session: str = "s1", *, channel_id: int | None = None) -> tuple[ClaimedRun, int]:
    """A running turn whose model has proposed the two calls; with its number of events."""
    claimed = await running(db, session, channel_id=channel_id)
    calls = [ToolCallPart(call_id=one, name="charge", args='{"what": "plum"}') for one in CALLS]
    step = Step(
        claimed.lease,
        claimed.run_seq,
        claimed.attempt,
        1,
        messages=[Message(role="assistant", parts=calls)],
        proposed=[NewCall(one.call_id, one.name, one.args, "once") for one in calls],
    )
    await commit_step(db, step)
    return claimed, claimed.run_seq


def parking(claimed: ClaimedRun, run_seq: int, *, seconds: float = 3600.0, calls: int = 2) -> Parking:
    """The park that asks about the first `calls` of them, for `seconds`."""
    return Parking(
        lease=claimed.lease,
        token=uuid4(),
        reply_to=claimed.reply_to,
        run_seq=run_seq,
        attempt=claimed.attempt,
        asks=[
            Ask(
                ToolCallPart(call_id=one, name="charge", args='{"what": "plum"}'),
                NewApproval(one, Approvers(principals=[ASKER.principal_id]), seconds),
            )
            for one in CALLS[:calls]
        ],
    )


async def parked(
    db: Database, session: str = "s1", *, seconds: float = 3600.0, channel_id: int | None = None, calls: int = 2
) -> Parked:
    """A turn that waits for the answers to its questions."""
    claimed, run_seq = await asking(db, session, channel_id=channel_id)
    await park(db, parking(claimed, run_seq, seconds=seconds, calls=calls))
    found = await rows(db, "SELECT public_id FROM approval WHERE run_id = $1 ORDER BY id", claimed.lease.run_id)
    return Parked(claimed, [UUID(str(row["public_id"])) for row in found])
