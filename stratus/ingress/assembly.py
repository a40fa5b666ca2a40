"""Turns a batch of judged events into rows: runs, bindings, notices, and what became of each event, all in the router's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratus.channel.values import Event
from stratus.domain.chain import notice
from stratus.domain.group import HOLD_LOOK_SECONDS, spoken
from stratus.domain.inbox import InboxState
from stratus.domain.routing import Access, Hold, Ignore, Meaning, Refuse, Speak, refusal, session_id_for
from stratus.domain.values import Actor, ReplyTo, RunInput, TextPart
from stratus.ingress.busy import BUSY, Admitted, admit
from stratus.store import binding, inbox, session
from stratus.store.binding import Binding
from stratus.store.database import Connection
from stratus.store.decision import Decider
from stratus.store.inbox import ChannelFacts, ReadyEvent, Settled
from stratus.store.plan import NewOp, addressed, plan
from stratus.store.principal import by_id, identify
from stratus.store.session import NewRun

TITLE_CHARACTERS = 60


class Assembly:
    """Gathers a batch in order; `commit()` writes it with one statement for each kind of row, and says whose turns it `interrupted`."""

    def __init__(
        self, connection: Connection, channel: ChannelFacts, bindings: Mapping[tuple[str, str], Binding]
    ) -> None:
        self.connection = connection
        self.channel = channel
        self.access = Access.of(channel.config)
        self._bindings = dict(bindings)
        self._rotated: dict[tuple[str, str], tuple[Binding, int | None]] = {}
        self._principals: dict[str, int] = {}
        self._runs: list[tuple[ReadyEvent, NewRun]] = []
        self._settled: list[Settled] = []
        self._ops: list[NewOp] = []
        self._held: list[int] = []
        self.interrupted: Sequence[str] = ()

    async def learn_senders(self, judged: Sequence[tuple[ReadyEvent, Meaning]]) -> None:
        """Find, or make, the principals of everybody who may speak in this batch."""
        senders = {
            one.event.sender.id: one.event.sender.name
            for one, meant in judged
            if isinstance(meant, Speak) or self.access.allows(one.event)
        }
        if senders:
            self._principals = await identify(self.connection, self.channel.platform, sorted(senders.items()))

    def add(self, ready: ReadyEvent, meaning: Meaning, said_before: str = "") -> None:
        """Take up an event that is no command; the agent is told what was said before in the group."""
        if isinstance(meaning, Speak):
            self._speak(ready, said_before)
        elif isinstance(meaning, Hold):
            self._held.append(ready.id)
        elif isinstance(meaning, Refuse):
            self.settle(ready, InboxState.REJECTED, {"reason": meaning.reason})
            # One refusal an hour for each sender: the delivery key says which hour.
            hour = ready.received_at.strftime("%Y%m%d%H")
            self.tell(ready, refusal(ready.event), key=f"refused:{ready.event.sender.id}:{hour}")
        elif isinstance(meaning, Ignore):
            self.settle(ready, InboxState.IGNORED, {"reason": meaning.reason})
            if meaning.tell is not None:
                self.tell(ready, meaning.tell, key=f"told:{ready.id}")

    def bound(self, ready: ReadyEvent) -> Binding:
        """The binding of the event's chat or thread, made if it is the first."""
        place = (ready.event.chat, ready.event.thread)
        if place not in self._bindings:
            self.rotate(ready, self.channel.agent_id)
        return self._bindings[place]

    def rotate(self, ready: ReadyEvent, agent_id: str) -> Binding:
        """Bind the event's chat or thread to a new session."""
        place = (ready.event.chat, ready.event.thread)
        before = self._bindings.get(place)
        revision = 1 if before is None else before.revision + 1
        name = session_id_for(self.channel.public_id.hex[:12], *place, revision)
        made = Binding(*place, name, revision, agent_id)
        self._bindings[place] = made
        self._rotated[place] = (made, self.owner(ready))
        return made

    def owner(self, ready: ReadyEvent) -> int | None:
        """Who owns the chat's session: its one person, nobody in a group."""
        return self._principals.get(ready.event.sender.id) if ready.event.direct else None

    async def decider(self, ready: ReadyEvent) -> Decider:
        """The sender as one who decides."""
        sender = ready.event.sender
        found = await by_id(self.connection, self._principals[sender.id])
        return Decider(found.id, found.role, sender.name or found.name, knows=True)  # it stands in their chat

    def settle(self, ready: ReadyEvent, state: InboxState, outcome: Mapping[str, Any]) -> None:
        """Say what became of an event."""
        self._settled.append(Settled(ready.id, state, None, outcome))

    def tell(self, ready: ReadyEvent, text: str, *, key: str) -> None:
        """Answer the sender in the chat; a key that was used before says nothing again."""
        to = reply_to(self.channel, ready)
        self._ops += addressed([notice(text, to, key)], to)

    async def commit(self) -> list[str]:
        """Write it all. Returns the sessions that got a run."""
        for bound, owner in self._rotated.values():  # rarely more than one: a new chat, or a `/new`
            await session.make(self.connection, bound.session_id, bound.agent_id, owner)
        await binding.write(self.connection, self.channel.id, [bound for bound, _ in self._rotated.values()])
        admitted = await admit(self.connection, self._runs) if self._runs else Admitted()
        self.interrupted = admitted.interrupted
        for ready, run_id in admitted.refused:
            self.settle(ready, InboxState.REJECTED, {"reason": "busy", "behind": run_id})
            # Once for each turn that is in the way.
            self.tell(ready, BUSY, key=f"busy:{run_id}:{ready.event.sender.id}")
        routed = [
            Settled(ready.id, InboxState.ROUTED, run.run_id, {"session": run.session_id, "turn": run.turn})
            for ready, run in admitted.queued
        ]
        await inbox.settle(self.connection, [*self._settled, *routed])
        await inbox.defer(self.connection, self._held, HOLD_LOOK_SECONDS)
        await plan(self.connection, self._ops)
        return sorted({run.session_id for _, run in admitted.queued})

    def _speak(self, ready: ReadyEvent, said_before: str) -> None:
        event, bound = ready.event, self.bound(ready)
        principal = self._principals.get(event.sender.id)
        run = NewRun(
            session_id=bound.session_id,
            agent_id=bound.agent_id,
            owner_id=self.owner(ready),
            principal_id=principal,
            actor=Actor(
                principal=str(principal), name=event.sender.name, platform=self.channel.platform, sender=event.sender.id
            ),
            input=_input(event, said_before),
            title=event.text[:TITLE_CHARACTERS],
            reply_to=reply_to(self.channel, ready),
            inbox_id=ready.id,
        )
        self._runs.append((ready, run))


def _input(event: Event, said_before: str) -> RunInput:
    if event.direct:
        return RunInput.of(event.text, event.attachments)
    asked = RunInput.of(spoken(event.sender, event.text), event.attachments)
    if not said_before:
        return asked
    return asked.model_copy(update={"parts": [*asked.parts, TextPart(text=said_before)]})


def reply_to(channel: ChannelFacts, ready: ReadyEvent) -> ReplyTo:
    """Where answers to the event go."""
    return ReplyTo(
        channel_id=channel.id,
        platform=channel.platform,
        chat=ready.event.chat,
        thread=ready.event.thread,
        message_id=ready.event.message_id,
        account_key=ready.account_key,
        group=not ready.event.direct,
    )
