"""How many requests to models are in flight in one replica: a limit for all, one for each agent that has its own, places in order of arrival."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Self


class Admission:
    """Gives permits in order of arrival. An agent at its own limit holds up nobody else."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._in_flight: Counter[str] = Counter()
        self._waiting: list[Ticket] = []

    def ticket(self, agent_id: str, limit: int | None) -> Ticket:
        """A place in the queue; `limit` is the agent's own."""
        return Ticket(self, agent_id, limit)

    @property
    def in_flight(self) -> int:
        """Permits that are out."""
        return self._in_flight.total()

    @property
    def waiting(self) -> int:
        """Tickets that wait for one."""
        return len(self._waiting)

    def _enter(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)
        self._admit()

    def _leave(self, ticket: Ticket) -> None:
        if ticket.permit.done():
            self._in_flight -= Counter([ticket.agent_id])
            self._admit()
        else:
            self._waiting.remove(ticket)

    def _admit(self) -> None:
        for ticket in list(self._waiting):
            if self.in_flight >= self._total:
                return
            if ticket.limit is None or self._in_flight[ticket.agent_id] < ticket.limit:
                self._waiting.remove(ticket)
                self._in_flight[ticket.agent_id] += 1
                ticket.permit.set_result(None)


class Ticket:
    """A place in the queue from the begin of its `with` block, then a permit; the end of the block gives back either."""

    def __init__(self, admission: Admission, agent_id: str, limit: int | None) -> None:
        self.agent_id = agent_id
        self.limit = limit
        self.permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._admission = admission

    def __enter__(self) -> Self:
        self._admission._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission._leave(self)

    async def admitted(self, seconds: float) -> bool:
        """Wait up to `seconds` for the permit; whether it has been given."""
        await asyncio.wait([self.permit], timeout=seconds)
        return self.permit.done()
