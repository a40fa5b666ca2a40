"""The demo model: deterministic, no account, no network. It shows every path that a real model takes.

Directives stand at the start of the last user message and may follow one another (`think slow 5 hello`): `slow N`
spreads the answer over N seconds; `tool` calls `current_time` and answers with its result; `think` reasons first;
`fail` fails; `long N` answers with N characters of paragraphs; `markdown` answers with a sample. Anything else is
echoed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
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
from stratus.domain.values import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from stratus.effects import Clock

_MAX_SECONDS = 3600
_MAX_CHARACTERS = 1_000_000
_TOOL = "current_time"
_DIRECTIVE = re.compile(r"\s*(?:(slow|long)\s+([0-9]{1,9})|(tool|think|fail|markdown))(?=\s|$)", re.IGNORECASE)
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
class _Directives:
    seconds: int = 0
    characters: int = 0
    words: frozenset[str] = frozenset()
    rest: str = ""


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
        directives = _read(_last_text(request))
        if "fail" in directives.words:
            raise ModelError("rejected", "The demo model was told to fail, and it did.")
        parts = _answer(request, directives)
        pieces = [(index, piece) for index, part in enumerate(parts) for piece in _pieces(part)]
        for index, piece in pieces:
            if directives.seconds:
                await self._clock.sleep(directives.seconds / len(pieces))
            yield _delta(index, parts[index], piece)
        calls = any(isinstance(part, ToolCallPart) for part in parts)
        usage = Usage(input_tokens=_count_words(request), output_tokens=len(pieces), requests=1)
        yield ModelDone(Message(role="assistant", parts=parts), usage, "tool_use" if calls else "end")


def _answer(request: ModelRequest, directives: _Directives) -> list[Part]:
    thinking: list[Part] = []
    if "think" in directives.words:
        thinking = [ThinkingPart(text="I am asked to think. I am the demo model, so this is all I can think of.")]
    if "tool" in directives.words:
        result = _result(request)
        if result is None and any(tool.name == _TOOL for tool in request.tools):
            turn = sum(message.role == "assistant" for message in request.messages)
            return [*thinking, ToolCallPart(call_id=f"demo-{turn + 1}", name=_TOOL, args="{}")]
        said = f"`{_TOOL}` answered: {result}" if result is not None else f"`{_TOOL}` is not among this agent's tools."
        return [*thinking, TextPart(text=said)]
    return [*thinking, TextPart(text=_text(request, directives))]


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


def _result(request: ModelRequest) -> str | None:
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "tool":
        return None
    return next((part.content for part in last.parts if isinstance(part, ToolResultPart)), None)


def _read(text: str) -> _Directives:
    seconds, characters, words, end = 0, 0, set[str](), 0
    while match := _DIRECTIVE.match(text, end):
        counted, number, word = match.groups()
        if word:
            words.add(word.lower())
        elif counted.lower() == "slow":
            seconds = min(int(number), _MAX_SECONDS)
        else:
            characters = min(int(number), _MAX_CHARACTERS)
        end = match.end()
    return _Directives(seconds, characters, frozenset(words), text[end:].strip())


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
