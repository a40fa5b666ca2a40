"""What each chat command does. They never wait behind a running turn: they only touch rows."""

from __future__ import annotations

from stratus.domain.inbox import InboxState
from stratus.domain.routing import HELP, Obey, whoami
from stratus.ingress.assembly import Assembly
from stratus.store import session
from stratus.store.agent import exists
from stratus.store.inbox import ReadyEvent
from stratus.store.stop import stop_in


async def obey(assembly: Assembly, ready: ReadyEvent, command: Obey) -> str | None:
    """Carry out a command and answer in the chat. Returns the session whose running turn is to end, if any."""
    canceled = None
    if command.name == "new":
        answer, outcome = await _new(assembly, ready, command.arguments)
    elif command.name == "stop":
        canceled = assembly.bound(ready).session_id
        answer, outcome = await _stop(assembly, ready, canceled)
    elif command.name == "status":
        answer, outcome = await _status(assembly, ready), {}
    elif command.name == "whoami":
        answer, outcome = whoami(ready.event, assembly.access, assembly.channel.agent_id), {}
    elif command.name in ("help", "start"):  # `start` is what Telegram's own button sends to a bot
        answer, outcome = HELP, {}
    else:
        answer, outcome = f"I do not know /{command.name}. /help lists what I know.", {}
    assembly.settle(ready, InboxState.ROUTED, {"command": command.name, **outcome})
    assembly.tell(ready, answer, key=f"command:{ready.id}")
    return canceled


async def _new(assembly: Assembly, ready: ReadyEvent, agent_id: str) -> tuple[str, dict[str, object]]:
    wanted = agent_id or assembly.channel.agent_id
    if not await exists(assembly.connection, wanted):
        return f"There is no agent called {wanted}.", {"refused": "agent_not_found"}
    bound = assembly.rotate(ready, wanted)
    return f"A new conversation with {wanted} begins here.", {"session": bound.session_id, "revision": bound.revision}


async def _stop(assembly: Assembly, ready: ReadyEvent, session_id: str) -> tuple[str, dict[str, object]]:
    stopped = await stop_in(
        assembly.connection, session_id, f"{assembly.channel.platform}:{ready.event.sender.id}", queued=True
    )
    outcome: dict[str, object] = {"running": stopped.running, "canceled": stopped.canceled}
    if not stopped.running and not stopped.canceled:
        return "Nothing is running.", outcome
    dropped = f" {stopped.canceled} waiting message(s) dropped." if stopped.canceled else ""
    return ("Stopping." if stopped.running else "Nothing was running.") + dropped, outcome


async def _status(assembly: Assembly, ready: ReadyEvent) -> str:
    bound = assembly.bound(ready)
    counts = await session.open_runs(assembly.connection, bound.session_id)
    doing = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing is going on"
    return f"Agent {bound.agent_id}, conversation {bound.revision}: {doing}."
