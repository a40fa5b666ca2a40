"""What a replica says of itself: JSON log lines on stderr, and the names and objects of its metrics."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

LOOP_STEPS = "stratus_loop_steps"
LOOP_ERRORS = "stratus_loop_errors"
LOOP_FAILING = "stratus_loop_failing_seconds"
LOOP_RUNNING = "stratus_loop_running"
INBOX = "stratus_inbox"
RUNS = "stratus_runs"
OUTBOX = "stratus_outbox"
APPROVALS = "stratus_approvals"
OLDEST_AGE = "stratus_oldest_age_seconds"
DATABASE_UP = "stratus_database_up"
CHANNEL_HEALTH = "stratus_channel_health"

# Counted where they happen; a process is one replica, so each of its registries shows the same.
SENDS = Counter(
    "stratus_sends",
    "Ends of attempts to send, as this replica saw them; a receipt that comes late counts once more, as sent",
    ["platform", "outcome"],
    registry=None,
)
ADOPTED = Counter(
    "stratus_adopted_ops",
    "Ops that an earlier owner of a channel left in the midst of a send, by what became of them at the takeover",
    ["platform", "state"],
    registry=None,
)

# These log whole URLs at INFO, and a bot's token is part of the Telegram Bot API's URLs (https://core.telegram.org/bots/api#making-requests).
_TALKATIVE = ("httpx", "httpcore", "httpx2", "httpcore2", "telegram", "alembic", "uvicorn.access", "asyncio", "mcp")


class LoopState(Protocol):
    """What is counted of a loop; `stratus.effects.LoopHealth` has it. `failing_since` is monotonic seconds."""

    name: str
    steps: int
    errors: int
    failing_since: float | None
    running: bool


class LoopMetrics:
    """A collector that reads the loops' health when it is scraped, so that a step pays nothing for being counted."""

    def __init__(self, loops: Callable[[], Iterable[LoopState]], monotonic: Callable[[], float]) -> None:
        self._loops = loops
        self._monotonic = monotonic

    def collect(self) -> Iterator[Metric]:
        """The families, one sample a loop."""
        steps = CounterMetricFamily(LOOP_STEPS, "Steps that a loop has done", labels=["loop"])
        errors = CounterMetricFamily(LOOP_ERRORS, "Steps of a loop that failed", labels=["loop"])
        failing = GaugeMetricFamily(LOOP_FAILING, "Seconds since a loop's steps began to fail", labels=["loop"])
        running = GaugeMetricFamily(LOOP_RUNNING, "Whether a loop is running", labels=["loop"])
        for loop in self._loops():
            since = loop.failing_since
            steps.add_metric([loop.name], loop.steps)
            errors.add_metric([loop.name], loop.errors)
            failing.add_metric([loop.name], 0.0 if since is None else self._monotonic() - since)
            running.add_metric([loop.name], float(loop.running))
        yield from (steps, errors, failing, running)


def process_registry() -> CollectorRegistry:
    """A registry of its own for one replica, with the process's memory, CPU, descriptors, garbage collection and sends in it."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(SENDS)
    registry.register(ADOPTED)
    return registry


def configure_logging(level: int = logging.INFO) -> None:
    """One JSON object a line on stderr, ours and the libraries' alike; tracebacks without local variables, which may hold secrets."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
