"""The demo model: deterministic, no account, no network. It shows every path that a real model takes.

Directives stand at the start of the last user message and may follow one another (`think slow 5 hello`): `slow N`
spreads the answer over N seconds; `think` reasons first; `call NAME {…}` calls a tool, `then` parts calls into several
messages, `tool` is `call current_time`; `fail` fails; `long N` answers with N characters; `markdown` with a sample.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence, Set
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from stratus.agents.model import (
    ModelDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)
from stratus.domain.values import (
    Message,
    Part,
    ResultOutcome,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from stratus.effects import Clock

_MAX_SECONDS = 3600
_MAX_CHARACTERS = 1_000_000
_TOOL = "current_time"
_DIRECTIVE = re.compile(r"\s*(?:(slow|long)\s+([0-9]{1,9})|(think|fail|markdown|tool|then))(?=\s|$)", re.IGNORECASE)
_CALL = re.compile(r"\s*call\s+([^\s{}]+)\s*", re.IGNORECASE)
_WORDS = re.compile(r"\S+\s*|\s+")
_SENTENCE = "The demo model writes this paragraph so that a long answer can be seen on its way. "
_MARKDOWN = """# A sample

Some *emphasis*, some **strong words**, `code`, and a [link](https://example.org).

- first
- second
  1. nested

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"
```

> A quotation, and then the end."""


@dataclass(frozen=True)
class _Call:
    name: str
    args: str = "{}"


@dataclass(frozen=True)
class _Directives:
    seconds: int = 0
    characters: int = 0
    words: frozenset[str] = frozenset()
    rest: str = ""
    rounds: tuple[tuple[_Call, ...], ...] = ()


class DemoModel:
    """Answers from the request alone: the same request gives the same events."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """See Model.stream."""
        async with aclosing(self._events(request)) as events:
            yield events

    async def _events(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        directives = _read(_last_text(request), {tool.name for tool in request.tools})
        if "fail" in directives.words:
            raise ModelError("rejected", "The demo model was told to fail, and it did.")
        parts = _answer(request, directives)
        pieces = [(index, piece) for index, part in enumerate(parts) for piece in _pieces(part)]
        for index, piece in pieces:
            if directives.seconds:
                await self._clock.sleep(directives.seconds / len(pieces))
            yield _delta(index, parts[index], piece)
        calls = any(isinstance(part, ToolCallPart) for part in parts)
        usage = Usage(input_tokens=_count_words(request), output_tokens=len(pieces), cost="0", requests=1)
        yield ModelDone(Message(role="assistant", parts=parts), usage, "tool_use" if calls else "end")


def _answer(request: ModelRequest, directives: _Directives) -> list[Part]:
    thinking: list[Part] = []
    if "think" in directives.words:
        thinking = [ThinkingPart(text="I am asked to think. I am the demo model, so this is all I can think of.")]
    if "tool" in directives.words:
        return [*thinking, TextPart(text=f"`{_TOOL}` is not among this agent's tools.")]
    if directives.rounds:
        return [*thinking, *_next_calls(request, directives.rounds)]
    return [*thinking, TextPart(text=_text(request, directives))]


def _next_calls(request: ModelRequest, rounds: Sequence[Sequence[_Call]]) -> list[Part]:
    """The calls of the round that is due; after the last one, what they all answered."""
    turn = request.messages[max(i for i, message in enumerate(request.messages) if message.role == "user") :]
    done = sum(bool(message.calls()) for message in turn)
    if done >= len(rounds):
        results = [part for message in turn for part in message.parts if isinstance(part, ToolResultPart)]
        return [TextPart(text="\n\n".join(_told(result) for result in results))]
    number = sum(message.role == "assistant" for message in request.messages) + 1
    return [
        ToolCallPart(call_id=f"demo-{number}" if at == 1 else f"demo-{number}-{at}", name=call.name, args=call.args)
        for at, call in enumerate(rounds[done], 1)
    ]


def _told(result: ToolResultPart) -> str:
    ended = "answered" if result.outcome is ResultOutcome.OK else f"ended `{result.outcome}`"
    return f"`{result.name}` {ended}: {result.content}"


def _text(request: ModelRequest, directives: _Directives) -> str:
    if directives.characters:
        paragraph = _SENTENCE * 5
        count = directives.characters // len(paragraph) + 1
        return "\n\n".join([paragraph.strip()] * (count + 1))[: directives.characters]
    if "markdown" in directives.words:
        return _MARKDOWN
    turns = sum(message.role == "user" for message in request.messages) - 1
    before = f" You wrote {turns} {'message' if turns == 1 else 'messages'} before this one." if turns > 0 else ""
    return (
        f"You said: {directives.rest or '(nothing)'}\n\n"
        f"I am the demo model, and I only echo.{before} For real answers, set `model:` in the agent file, "
        "for example `anthropic:claude-sonnet-5-5` with ANTHROPIC_API_KEY, or `openai:gpt-6.1-sol` with OPENAI_API_KEY."
    )


def _last_text(request: ModelRequest) -> str:
    return next((message.text() for message in reversed(request.messages) if message.role == "user"), "")


def _read(text: str, tools: Set[str]) -> _Directives:
    numbers = {"slow": 0, "long": 0}
    words, end = set[str](), 0
    rounds: list[list[_Call]] = [[]]
    while True:
        called, match = _CALL.match(text, end), _DIRECTIVE.match(text, end)
        if called and (called[1] in tools or text.startswith("{", called.end())):
            args, end = _arguments(text, called.end())
            rounds[-1].append(_Call(called[1], args))
            continue
        if match is None or (match[3] or "").lower() == "then" and not rounds[-1]:
            break
        end = match.end()
        if match[1]:
            numbers[match[1].lower()] = int(match[2])
        elif match[3].lower() == "then":
            rounds.append([])
        elif match[3].lower() == "tool" and _TOOL in tools:
            rounds[-1].append(_Call(_TOOL))
        else:
            words.add(match[3].lower())
    return _Directives(
        min(numbers["slow"], _MAX_SECONDS),
        min(numbers["long"], _MAX_CHARACTERS),
        frozenset(words),
        text[end:].strip(),
        tuple(tuple(calls) for calls in rounds if calls),
    )


def _arguments(text: str, start: int) -> tuple[str, int]:
    """The JSON object that begins at `start`, and where it ends; what begins like one and is none is taken as it is, to the end."""
    if not text.startswith("{", start):
        return "{}", start
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        end = len(text)
    return text[start:end], end


def _pieces(part: Part) -> list[str]:
    if isinstance(part, ToolCallPart):
        return [part.args]
    return _WORDS.findall(part.text) if isinstance(part, TextPart | ThinkingPart) else []


def _delta(index: int, part: Part, piece: str) -> ModelEvent:
    if isinstance(part, ToolCallPart):
        return ToolCallDelta(index, part.name, piece)
    return ThinkingDelta(index, piece) if isinstance(part, ThinkingPart) else TextDelta(index, piece)


def _count_words(request: ModelRequest) -> int:
    return len(request.system.split()) + sum(len(message.text().split()) for message in request.messages)
