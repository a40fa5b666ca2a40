"""The fake model: Anthropic's and OpenAI's wires on one port, with scripted turns, gates, faults and a log of calls.

Run alone: `python -m testbed.fakes.model --port N`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from testbed.fakes.anthropic_messages import AnthropicMessages
from testbed.fakes.controls import Controls, Fault, Gate, Silence
from testbed.fakes.openai_chat import ChatCompletions
from testbed.fakes.openai_responses import Responses
from testbed.fakes.server import Reset, reset_client, run_alone
from testbed.fakes.turns import Call, Script, Turn
from testbed.fakes.wires import Answer, Frame, Wire

_TRICKLE_SECONDS = 0.5
_CHUNK = 16


@dataclass
class Logged:
    """A call that came in. `outcome`: open, answered, left (by the client), refused, or the fault that answered it."""

    number: int
    call: Call
    key: str
    outcome: str = "open"

    def summary(self) -> dict[str, Any]:
        """The entry as `GET /log` shows it."""
        call = self.call
        spoken = {"text": call.text, "system": call.system, "messages": call.messages, "tools": list(call.tools)}
        asked = {"n": self.number, "wire": call.wire, "model": call.model, "stream": call.stream, "key": self.key}
        return {**asked, **spoken, "outcome": self.outcome}


@dataclass(frozen=True)
class _Pace:
    """How an answer comes: characters in a delta, seconds before each, and what goes wrong on the way, and where.

    `at`: "open" (nothing is sent but the header), "start" (before the first delta), "middle", "end" (after the last delta).
    """

    chunk: int = _CHUNK
    delay: float = 0
    fault: str = ""
    at: str = ""
    status: int = 529

    @classmethod
    def broken(cls, fault: Fault) -> _Pace:
        """As the fault wants it: a cut comes in the middle, all else at the start, if it does not say."""
        detail = fault.detail
        if fault.answer == "trickle":
            return cls(1, float(detail.get("delay", _TRICKLE_SECONDS)))
        at = detail.get("at", "middle" if fault.answer == "cut" else "start")
        return cls(int(detail.get("chunk", _CHUNK)), 0, str(fault.answer), str(at), int(detail.get("status", 529)))


class FakeModel:
    """Every control endpoint is also a method; `app` is the ASGI face, `calls` the log. Without a script it echoes.

    `peak` is the most streams that were open at a time.
    """

    def __init__(self) -> None:
        self.calls: list[Logged] = []
        self.peak = 0
        self._open = 0
        self.scripts: list[Script] = []
        self.controls = Controls({})
        wires: dict[str, Wire] = {
            "/v1/messages": AnthropicMessages(),
            "/v1/chat/completions": ChatCompletions(),
            "/v1/responses": Responses(),
        }
        self.app = Starlette(
            routes=[
                *(Route(path, self._serving(wire), methods=["POST"]) for path, wire in wires.items()),
                Route("/control/script", self._post_script, methods=["POST"]),
                Route("/control/fault", self._post_fault, methods=["POST"]),
                Route("/control/gate", self._post_gate, methods=["POST"]),
                Route("/control/release", self._post_release, methods=["POST"]),
                Route("/log", self._get_log),
                *self.controls.routes(),
            ]
        )

    def script(self, *turns: Mapping[str, Any], match: str = "", chunk: int = _CHUNK, delay: float = 0) -> None:
        """Answers calls whose last user text contains `match` with these turns, in order; earlier scripts come first.

        `delay` is in seconds, before each delta of `chunk` characters. A repeated call gets its turn again.
        """
        self.scripts.append(Script(match, [Turn.read(turn) for turn in turns], chunk, delay))

    def fault(self, answer: int | str, match: str = "", **options: Any) -> Fault:
        """Answers the next `times` matching calls wrongly: a status, "context", "cut", "error", "trickle" or "silence".

        "cut" (the connection), "silence" and "error" (an event in the stream, `detail={"status": 529}`) come in the middle of the stream:
        `detail={"at": "open" | "start" | "middle" | "end"}`.
        """
        return self.controls.fault(_matching(match), answer, **options)

    def gate(self, name: str, match: str = "") -> Gate:
        """Holds matching calls; `.entered` of the answer counts them."""
        return self.controls.hold(name, _matching(match))

    def release(self, name: str) -> None:
        """Lets the calls at a gate go, and all later ones. Raises KeyError for an unknown name."""
        self.controls.release(name)

    def _serving(self, wire: Wire) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
            logged = Logged(len(self.calls) + 1, wire.read(await request.json()), key)
            self.calls.append(logged)
            fields = {"text": logged.call.text}
            await self.controls.pass_gates(fields, "before")
            fault = self.controls.take(fields)
            if (refusal := _refusal(wire, logged, fault)) is not None:
                return refusal
            return await self._answer(wire, logged, fault, request)

        return serve

    async def _answer(self, wire: Wire, logged: Logged, fault: Fault | None, request: Request) -> Response:
        turn, pace = self._turn(logged.call)
        if fault is not None:
            logged.outcome = str(fault.answer)
            pace = _Pace.broken(fault)
        answer = Answer(logged.call, turn, logged.number, pace.chunk)
        if logged.call.stream:
            frames = _spoiled(wire, answer, pace) if pace.fault else list(wire.frames(answer))
            return StreamingResponse(
                self._counted(_paced(frames, pace, logged, request)), media_type="text/event-stream"
            )
        if pace.fault:
            return Reset() if pace.fault == "cut" else Silence()
        await asyncio.sleep(pace.delay * sum(frame.delta for frame in wire.frames(answer)))
        logged.outcome = "answered"
        return JSONResponse(wire.whole(answer))

    async def _counted(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._open += 1
        self.peak = max(self.peak, self._open)
        try:
            async for data in stream:
                yield data
        finally:
            self._open -= 1

    def _turn(self, call: Call) -> tuple[Turn, _Pace]:
        for script in self.scripts:
            if (turn := script.take(call)) is not None:
                return turn, _Pace(script.chunk, script.delay)
        return Turn(text=f"echo: {call.text}"), _Pace()

    async def _post_script(self, request: Request) -> Response:
        body = await request.json()
        self.script(
            *body["turns"],
            match=body.get("match", {}).get("text", ""),
            chunk=body.get("chunk", _CHUNK),
            delay=body.get("delay", 0),
        )
        return JSONResponse({"ok": True})

    async def _post_fault(self, request: Request) -> Response:
        body = await request.json()
        match, answer = body.pop("match", {}).get("text", ""), body.pop("answer")
        options = {name: body.pop(name) for name in ("times", "retry_after") if name in body}
        self.fault(answer, match, **options, detail=body)
        return JSONResponse({"ok": True})

    async def _post_gate(self, request: Request) -> Response:
        body = await request.json()
        self.gate(body["name"], body.get("match", {}).get("text", ""))
        return JSONResponse({"ok": True})

    async def _post_release(self, request: Request) -> Response:
        name = (await request.json())["name"]
        if name not in self.controls.gates:
            return JSONResponse({"error": f"no gate {name!r}"}, 404)
        self.release(name)
        return JSONResponse({"ok": True})

    async def _get_log(self, _request: Request) -> Response:
        return JSONResponse([logged.summary() for logged in self.calls])


def _matching(text: str) -> dict[str, Any]:
    return {"text": {"contains": text}}


def _refusal(wire: Wire, logged: Logged, fault: Fault | None) -> Response | None:
    """The error that answers a call instead of a turn: a fault's, or what a real provider would say."""
    if fault is not None and (fault.answer == "context" or isinstance(fault.final, int)):
        logged.outcome = str(fault.answer)
        status = 400 if fault.answer == "context" else int(fault.final)
        headers = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
        message = str(fault.detail.get("message", "ordered by the test"))
        return JSONResponse(wire.error(status, fault.answer == "context", message), status, headers)
    if not logged.key:
        logged.outcome = "refused"
        return JSONResponse(wire.error(401, False, "no key"), 401)
    if logged.call.problem is not None:
        logged.outcome = "refused"
        return JSONResponse(wire.error(400, False, logged.call.problem), 400)
    return None


def _spoiled(wire: Wire, answer: Answer, pace: _Pace) -> list[Frame]:
    """The frames up to the fault, which an error event tells itself."""
    frames = list(wire.frames(answer))
    deltas = [index for index, frame in enumerate(frames) if frame.delta]
    places = {"open": 0, "start": deltas[0], "middle": deltas[len(deltas) // 2], "end": deltas[-1] + 1}
    return [
        *frames[: places[pace.at]],
        *([wire.failing(answer, pace.status, "ordered by the test")] if pace.fault == "error" else []),
    ]


async def _paced(frames: list[Frame], pace: _Pace, logged: Logged, request: Request) -> AsyncIterator[bytes]:
    logged.outcome = "left"
    try:
        for frame in frames:
            if frame.delta:
                await asyncio.sleep(pace.delay)
            yield frame.data
        if pace.fault == "cut":
            reset_client(request.scope)
        elif pace.fault == "silence":
            await asyncio.Event().wait()
        logged.outcome = "answered"
    finally:
        if pace.fault:
            logged.outcome = pace.fault


if __name__ == "__main__":
    run_alone(lambda: FakeModel().app)
