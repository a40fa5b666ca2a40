"""A whole replica whose COMMITs are lost, unanswered or late, one arrow of the pipeline after the other: each message is answered once."""

from __future__ import annotations

import pytest

from testbed.invariants import sends_out_of_order, sent_twice, violations
from testbed.pgproxy import Action
from testbed.replicas import Replica, eventually
from testbed.stage import Stage

# The COMMIT of the transaction that ran this text; or, with None, the statement itself, which is its own transaction.
ARROWS = {
    "intake": ("COMMIT", "INSERT INTO channel_inbox"),
    "route": ("COMMIT", "INSERT INTO agent_run"),
    "claim": ("COMMIT", "INSERT INTO session_execution"),
    "append": ("WITH given AS", None),
    "step": ("COMMIT", "INSERT INTO tool_call"),
    "finish": ("COMMIT", "DELETE FROM session_execution x USING ended"),
    "intent": ("COMMIT", "INSERT INTO outbox_attempt"),
    "receipt": ("COMMIT", "UPDATE outbox_attempt a SET outcome"),
}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["drop_before", "lose_ack_rst", "lose_ack_silent", "delay"])
async def test_no_arrow_loses_or_doubles_a_message(stage: Stage, fault: Action) -> None:
    await stage.add_agent(tools=["current_time"])
    await stage.add_channel()
    # Leases of twice the testbed's time: what is shown is the outcome of each COMMIT, not a race of the machine against a TTL.
    async with stage.replicas(1, settings={"STRATUS_LEASE_TTL": "6s", "STRATUS_CHANNEL_TTL": "6s"}) as [replica]:
        await stage.say("hello")
        await stage.answered(1)
        for n, (arrow, (match, within)) in enumerate(ARROWS.items(), 1):
            await replica.database_proxy.arm(match, fault, within=within)
            # The answer takes long enough to be written in pieces, so that each kind of write is made.
            await stage.say("tool slow 1 please", chat=f"chat of {arrow}")
            await replica.database_proxy.wait_hit(n)
            if fault == "delay":
                await release_when_doubted(replica, n)
            await stage.answered(n + 1, timeout=30)
        await eventually(lambda: at_rest(stage), timeout=30, what="everything comes to rest")
    assert sent_twice(stage.platform.log) == []
    assert await stage.run_states() == ["completed"] * (len(ARROWS) + 1)
    assert len(stage.platform.log) == len(ARROWS) + 1
    lanes = {
        row["id"]: (row["lane"], row["lane_seq"])
        for row in await stage.rows("SELECT id, lane, lane_seq FROM channel_outbox")
    }
    assert sends_out_of_order(stage.platform.log, lanes) == []


async def release_when_doubted(replica: Replica, n: int) -> None:
    """Let the held COMMIT go on after its client has given up on it."""
    await eventually(lambda: replica.log_text().count("commit.in_doubt") >= n, timeout=20, what="the replica doubts")
    await replica.database_proxy.release()


async def at_rest(stage: Stage) -> bool:
    return not await violations(stage.db, at_rest=True)
