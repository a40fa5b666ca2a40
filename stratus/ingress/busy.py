"""What becomes of a batch's messages in sessions that are at work: queued, taken up by the turn, put in its place, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stratus.store import agent, session
from stratus.store.database import Connection
from stratus.store.inbox import ReadyEvent
from stratus.store.session import Enqueued, NewRun
from stratus.store.stop import Halt, halt, lock_leases

BUSY = "I am still busy with an earlier message, so I have not taken this one in. Wait for the answer, or send /stop to end it."

Message = tuple[ReadyEvent, NewRun]


@dataclass
class Admitted:
    """`queued` are the messages that became runs, `refused` those that did not, each with the run that was in the way.

    `interrupted` are the sessions whose turn was asked to end.
    """

    queued: list[tuple[ReadyEvent, Enqueued]] = field(default_factory=list)
    refused: list[tuple[ReadyEvent, int]] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)


async def admit(connection: Connection, messages: Sequence[Message]) -> Admitted:
    """Queue messages by their agents' policies, for a transaction that holds no session's row yet: the leases' rows come first."""
    policies = await agent.busy_policies(connection, [run.agent_id for _, run in messages])
    given = [(ready, replace(run, busy=policies.get(run.agent_id, run.busy))) for ready, run in messages]
    if interrupting := [run.session_id for _, run in given if run.busy == "interrupt"]:
        await lock_leases(connection, interrupting)
    taken, refused = await _sorted_out(connection, given)
    made = await session.enqueue(connection, [run for _, run in taken]) if taken else []
    in_the_way = {one.session_id: one.run_id for one in reversed(made)}
    admitted = Admitted(
        queued=[(ready, one) for (ready, _), one in zip(taken, made, strict=True)],
        refused=[(ready, head or in_the_way[run.session_id]) for (ready, run), head in refused],
    )
    halts = _halts([(ready, run, one) for (ready, run), one in zip(taken, made, strict=True)])
    if halts:
        await halt(connection, halts, queued=False)
        admitted.interrupted = [one.session_id for one in halts]
    return admitted


async def _sorted_out(
    connection: Connection, given: Sequence[Message]
) -> tuple[list[Message], list[tuple[Message, int | None]]]:
    """Those to be queued and those to be refused, with the open run of before; without one it is a message of this very batch."""
    if all(run.busy != "reject" for _, run in given):
        return list(given), []
    open_before: dict[str, int | None] = {**await session.heads(connection, [run.session_id for _, run in given])}
    taken: list[Message] = []
    refused: list[tuple[Message, int | None]] = []
    for ready, run in given:
        if run.busy == "reject" and run.session_id in open_before:
            refused.append(((ready, run), open_before[run.session_id]))
        else:
            taken.append((ready, run))
            open_before.setdefault(run.session_id, None)
    return taken, refused


def _halts(made: Sequence[tuple[ReadyEvent, NewRun, Enqueued]]) -> list[Halt]:
    """One for each session: its last message in the batch that interrupts says what comes before."""
    last = {
        run.session_id: Halt(run.session_id, f"{run.actor.platform}:{ready.event.sender.id}", before=one.turn)
        for ready, run, one in made
        if run.busy == "interrupt"
    }
    return [last[name] for name in sorted(last)]
