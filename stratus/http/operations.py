"""For operators and their machines: whether the process lives, whether it is ready, its numbers, its replicas and its backlog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from stratus import telemetry
from stratus.domain.errors import DatabaseAway
from stratus.http.auth import Admin
from stratus.http.services import Here, Services
from stratus.store import channel, replica, view
from stratus.store.channel import ChannelRow
from stratus.store.view import Waiting

_SAMPLE_SECONDS = 5.0
# Else a sum over the replicas, which is what one writes first, counts everything as often as there are replicas.
_SCOPE = "of the whole database, the same from each replica"
_QUEUES = {
    "inbox": (telemetry.INBOX, f"Platform events that wait to be routed; {_SCOPE}"),
    "runs": (telemetry.RUNS, f"Runs that are not ended; {_SCOPE}"),
    "outbox": (telemetry.OUTBOX, f"Ops that are not settled; {_SCOPE}"),
    "approvals": (telemetry.APPROVALS, f"Questions that nobody has answered; {_SCOPE}"),
}

router = APIRouter(tags=["operations"])


class Metrics:
    """What `/metrics` answers. The backlog is counted at most every 5 s, however often and by whomever it is scraped."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: list[Waiting] = []
        self._channels: list[ChannelRow] = []
        self._up = False
        self._due = services.clock.monotonic()
        self._registry = telemetry.process_registry()
        self._registry.register(telemetry.LoopMetrics(services.loops, services.clock.monotonic))
        self._registry.register(self)

    async def text(self) -> bytes:
        """The exposition; without the backlog and the channels while the database is away."""
        now = self._services.clock.monotonic()
        if now >= self._due:
            self._due = now + _SAMPLE_SECONDS
            try:
                self._waiting = await view.backlog(self._services.db)
                self._channels, self._up = await channel.listing(self._services.db), True
            except DatabaseAway:
                self._waiting, self._channels, self._up = [], [], False
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The gauges of the last sample."""
        yield GaugeMetricFamily(telemetry.DATABASE_UP, "Whether the database answered", value=float(self._up))
        for queue, (name, meaning) in _QUEUES.items():
            totals = {one.state: float(one.total) for one in self._waiting if one.queue == queue}
            yield _gauge(name, meaning, "state", totals)
        oldest = {f"{one.queue}.{one.state}": one.oldest for one in self._waiting}
        yield _gauge(telemetry.OLDEST_AGE, f"Age of the oldest entry, by queue and state; {_SCOPE}", "queue", oldest)
        yield self._health()

    def _health(self) -> Metric:
        """One sample a channel. A channel that nobody runs says `unowned`: what its last owner told of it is not so any more."""
        family = GaugeMetricFamily(
            telemetry.CHANNEL_HEALTH,
            f"1 for each enabled channel, with its state and cause; {_SCOPE}",
            labels=["channel", "platform", "state", "cause"],
        )
        for row in self._channels:
            if row.enabled:
                told = ("unowned", "") if row.replica is None else (row.health.get("state"), row.health.get("cause"))
                family.add_metric([row.name, row.platform, *(str(value or "") for value in told)], 1.0)
        return family


def _gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


@router.get("/healthz")
async def healthz() -> dict[str, Any]:
    """The process answers."""
    return {"ok": True}


@router.get("/readyz")
async def readyz(here: Here) -> Response:
    """Whether to send requests here, and if not, why."""
    reasons = [*here.health(), *(["draining"] if here.draining.is_set() else [])]
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    numbers: Metrics = request.app.state.metrics
    return Response(await numbers.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/replicas")
async def replicas(here: Here, me: Admin) -> dict[str, Any]:
    """The replicas of the last day."""
    return {"replicas": [asdict(row) for row in await replica.listing(here.db)]}


@router.get("/backlog")
async def backlog(here: Here, me: Admin) -> dict[str, Any]:
    """What waits, by queue and state, with the age of its oldest entry in seconds."""
    return {"backlog": [asdict(one) for one in await view.backlog(here.db)]}
