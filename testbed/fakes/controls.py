"""What a test orders a fake platform to do: faults that answer matching calls, and gates that hold them.

A match is `{field: value or {"contains": text}}` against the fields of a call; `{}` matches every call that the fake
offers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

STORE_THEN = "store_then_"

Fields = Mapping[str, Any]


class Json(Response):
    """JSON in ASCII, which can carry what UTF-8 cannot: lone surrogates."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


class Silence(Response):
    """A response that never comes: the connection stays open until the client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@dataclass
class Fault:
    """Answers the next `times` matching calls (None: every one) with `answer`."""

    match: Fields
    answer: int | str
    times: int | None = 1
    retry_after: float | None = None
    detail: Fields = field(default_factory=dict)
    hits: int = 0

    @property
    def stores(self) -> bool:
        """Whether the call takes effect before it is answered wrongly."""
        return isinstance(self.answer, str) and self.answer.startswith(STORE_THEN)

    @property
    def final(self) -> int | str:
        """The answer without its `store_then_`; digits are a status code."""
        text = str(self.answer).removeprefix(STORE_THEN)
        return int(text) if text.isdigit() else text


@dataclass
class Gate:
    """Holds matching calls before or after they take effect, until it is released."""

    match: Fields
    point: str = "before"
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    entered: int = 0
    held: int = 0


class Controls:
    """Faults and gates of one fake, and their routes under `/control`."""

    def __init__(self, default_match: Fields) -> None:
        """`default_match` is what a match means that does not name the call: usually the sends, never the polls."""
        self.faults: list[Fault] = []
        self.gates: dict[str, Gate] = {}
        self._default = default_match

    def fault(self, match: Fields, answer: int | str, **options: Any) -> Fault:
        """Arm a fault; the oldest matching one with hits left answers a call."""
        made = Fault({**self._default, **match}, answer, **options)
        self.faults.append(made)
        return made

    def hold(self, name: str, match: Fields, point: str = "before") -> Gate:
        """Hold matching calls; `point` is "before" they take effect or "after"."""
        if point not in ("before", "after"):
            raise ValueError('point must be "before" or "after"')
        gate = Gate({**self._default, **match}, point)
        self.gates[name] = gate
        return gate

    def release(self, name: str) -> None:
        """Let the held calls go, and all later ones. Raises KeyError for an unknown name."""
        self.gates[name].opened.set()

    def take(self, fields: Fields) -> Fault | None:
        """The fault that answers this call, if any; one hit is used up."""
        for fault in self.faults:
            if (fault.times is None or fault.hits < fault.times) and matches(fault.match, fields):
                fault.hits += 1
                return fault
        return None

    async def pass_gates(self, fields: Fields, point: str) -> None:
        """Wait while a gate at `point` holds the call."""
        for gate in list(self.gates.values()):
            if gate.point == point and not gate.opened.is_set() and matches(gate.match, fields):
                gate.entered += 1
                gate.held += 1
                try:
                    await gate.opened.wait()
                finally:
                    gate.held -= 1

    def routes(self) -> list[Route]:
        """The HTTP face of this object."""
        return [
            Route("/control/fault", self._post_fault, methods=["POST"]),
            Route("/control/fault", self._delete_faults, methods=["DELETE"]),
            Route("/control/gate", self._post_gate, methods=["POST"]),
            Route("/control/gates", self._get_gates, methods=["GET"]),
        ]

    async def _post_fault(self, request: Request) -> Response:
        body = await request.json()
        match, answer = body.pop("match", {}), body.pop("answer")
        options = {name: body.pop(name) for name in ("times", "retry_after") if name in body}
        self.fault(match, answer, **options, detail=body)
        return Json({"ok": True, "armed": len(self.faults)})

    async def _delete_faults(self, _request: Request) -> Response:
        self.faults.clear()
        return Json({"ok": True})

    async def _post_gate(self, request: Request) -> Response:
        body = await request.json()
        name = str(body.get("name", "gate"))
        if body.get("action", "hold") == "release":
            if name not in self.gates:
                return Json({"error": f"no gate {name!r}"}, 404)
            self.release(name)
        else:
            self.hold(name, body.get("match", {}), body.get("point", "before"))
        return Json({"ok": True, "name": name})

    async def _get_gates(self, _request: Request) -> Response:
        return Json(
            {
                name: {"entered": gate.entered, "held": gate.held, "open": gate.opened.is_set()}
                for name, gate in self.gates.items()
            }
        )


def matches(match: Fields, fields: Fields) -> bool:
    """Whether each field of `match` equals the call's, is one of a list, or holds the `contains` text; numbers equal
    their text.
    """
    return all(_matches(wanted, fields.get(name)) for name, wanted in match.items())


def _matches(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        return found is not None and str(wanted["contains"]) in str(found)
    if isinstance(wanted, list):
        return any(_matches(item, found) for item in wanted)
    return bool(wanted == found) or (found is not None and str(wanted) == str(found))
