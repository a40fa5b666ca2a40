"""What each chat command does. They never wait behind a running turn: they only touch rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import hexdigits
from uuid import UUID

from stratus.domain.approval import code_of
from stratus.domain.errors import Rejected
from stratus.domain.inbox import InboxState
from stratus.domain.routing import HELP, Obey, whoami
from stratus.ingress.assembly import Assembly
from stratus.store import agent, decision, session
from stratus.store.decision import Verdict
from stratus.store.inbox import ReadyEvent
from stratus.store.stop import stop_in

_ID_CHARACTERS = 32


@dataclass(frozen=True)
class Answer:
    """What the sender is told; `outcome` is kept with the event.

    `stopped` is the session whose running turn is to end, `resumed` one whose waiting turn may go on.
    """

    text: str
    outcome: Mapping[str, object] = field(default_factory=dict)
    stopped: str | None = None
    resumed: str | None = None


async def obey(assembly: Assembly, ready: ReadyEvent, command: Obey) -> Answer:
    """Carry out a command and answer in the chat."""
    act = _COMMANDS.get(command.name, _unknown)
    answer = await act(assembly, ready, command.arguments)
    assembly.settle(ready, InboxState.ROUTED, {"command": command.name, **answer.outcome})
    assembly.tell(ready, answer.text, key=f"command:{ready.id}")
    return answer


async def _new(assembly: Assembly, ready: ReadyEvent, agent_id: str) -> Answer:
    wanted = agent_id or assembly.channel.agent_id
    if not await agent.exists(assembly.connection, wanted):
        return Answer(f"There is no agent called {wanted}. /agents lists them.", {"refused": "agent_not_found"})
    bound = assembly.rotate(ready, wanted)
    outcome = {"session": bound.session_id, "revision": bound.revision}
    return Answer(f"A new conversation with {wanted} begins here.", outcome)


async def _agent(assembly: Assembly, ready: ReadyEvent, agent_id: str) -> Answer:
    return await (_new if agent_id else _agents)(assembly, ready, agent_id)


async def _agents(assembly: Assembly, _ready: ReadyEvent, _arguments: str) -> Answer:
    listed = "\n".join(f"- {agent_id}" for agent_id in await agent.ids(assembly.connection))
    return Answer(f"These can answer:\n{listed}\n/agent NAME starts a new conversation with one of them.")


async def _stop(assembly: Assembly, ready: ReadyEvent, _arguments: str) -> Answer:
    session_id = assembly.bound(ready).session_id
    by = f"{assembly.channel.platform}:{ready.event.sender.id}"
    stopped = await stop_in(assembly.connection, session_id, by, queued=True)
    outcome = {"running": stopped.running, "canceled": stopped.canceled}
    if not stopped.running and not stopped.canceled:
        return Answer("Nothing is running.", outcome)
    queued = stopped.canceled - stopped.waiting
    dropped = f" {queued} waiting message(s) dropped." if queued else ""
    ended = "Stopping." if stopped.running else "Stopped." if stopped.waiting else "Nothing was running."
    return Answer(ended + dropped, outcome, session_id)


async def _status(assembly: Assembly, ready: ReadyEvent, _arguments: str) -> Answer:
    bound = assembly.bound(ready)
    counts = await session.open_runs(assembly.connection, bound.session_id)
    doing = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing is going on"
    asked = _listed(await decision.open_in(assembly.connection, bound.session_id))
    return Answer(f"Agent {bound.agent_id}, conversation {bound.revision}: {doing}.{asked and f' I asked:{asked}'}")


async def _approve(assembly: Assembly, ready: ReadyEvent, arguments: str) -> Answer:
    return await _decide(assembly, ready, "approve", arguments)


async def _deny(assembly: Assembly, ready: ReadyEvent, arguments: str) -> Answer:
    return await _decide(assembly, ready, "deny", arguments)


async def _decide(assembly: Assembly, ready: ReadyEvent, verdict: Verdict, arguments: str) -> Answer:
    """By the code that was shown, by a button's whole id, or without either when one question is open."""
    pending = await decision.open_in(assembly.connection, assembly.bound(ready).session_id)
    code, _, note = arguments.partition(" ")
    approval = _named(code.lower(), [public_id for public_id, _ in pending])
    if approval is None:
        if not pending:
            return Answer("I have asked nothing that is still open.", {"refused": "nothing_open"})
        return Answer(f"Which one? These are open:{_listed(pending)}", {"refused": "unknown_code"})
    by = await assembly.decider(ready)
    try:
        decided = await decision.decide_in(assembly.connection, approval, verdict, by, note=note.strip() or None)
    except Rejected as error:
        return Answer(f"{str(error)[0].upper()}{str(error)[1:]}.", {"refused": error.code})
    outcome = {"approval": str(approval), "state": str(decided.state)}
    said = "allowed" if verdict == "approve" else "did not allow"
    return Answer(f"{decided.by or 'You'} {said} {decided.call}.", outcome, resumed=decided.session_id)


def _named(code: str, pending: Sequence[UUID]) -> UUID | None:
    if len(code) == _ID_CHARACTERS:
        return UUID(hex=code) if set(code) <= set(hexdigits) else None
    found = [one for one in pending if code and code_of(str(one)) == code] if code else list(pending)
    return found[0] if len(found) == 1 else None


def _listed(pending: Sequence[tuple[UUID, str]]) -> str:
    return "".join(f"\n- {code_of(str(public_id))}: {name}" for public_id, name in pending)


async def _whoami(assembly: Assembly, ready: ReadyEvent, _arguments: str) -> Answer:
    return Answer(whoami(ready.event, assembly.access, assembly.channel.agent_id))


async def _help(_assembly: Assembly, _ready: ReadyEvent, _arguments: str) -> Answer:
    return Answer(HELP)


async def _unknown(_assembly: Assembly, _ready: ReadyEvent, _arguments: str) -> Answer:
    return Answer("I do not know this command. /help lists what I know.")


_COMMANDS: Mapping[str, Callable[[Assembly, ReadyEvent, str], Awaitable[Answer]]] = {
    "new": _new,
    "agent": _agent,
    "agents": _agents,
    "stop": _stop,
    "status": _status,
    "approve": _approve,
    "deny": _deny,
    "whoami": _whoami,
    "help": _help,
    "start": _help,  # what Telegram's own button sends to a bot
}
