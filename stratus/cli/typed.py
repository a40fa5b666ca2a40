"""What a person types at `stratus chat`: messages between turns, and answers to approvals while a turn waits for them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from stratus.cli.conversation import Conversation
from stratus.cli.output import complain
from stratus.cli.telling import code
from stratus.domain.errors import Rejected, Temporary
from stratus.domain.transcript import Approval, TurnView

_DECISIONS: dict[str, Literal["approve", "deny"]] = {"/approve": "approve", "/deny": "deny"}
_PIECE = 4096


class Typed:
    """Lines of standard input. With `prompt` those between turns are edited with readline."""

    def __init__(self, *, prompt: bool) -> None:
        self._prompt = prompt
        self._rest = b""
        if prompt:
            import readline  # noqa: F401  # its import gives `input` line editing and a history

    def line(self) -> str | None:
        """The next line, stripped; None at the end. Waits without a loop."""
        while (line := self._take()) is None:
            if self._prompt:
                return _input()
            if not self._fill():
                return self._last()
        return line

    async def soon(self) -> str | None:
        """The next line, stripped; None at the end. Waiting for it can be given up, and then nothing of it is lost."""
        while (line := self._take()) is None:
            await _readable(sys.stdin.fileno())
            if not self._fill():
                return self._last()
        return line

    def _take(self) -> str | None:
        line, end, rest = self._rest.partition(b"\n")
        if not end:
            return None
        self._rest = rest
        return _text(line)

    def _fill(self) -> bool:
        piece = os.read(sys.stdin.fileno(), _PIECE)
        self._rest += piece
        return bool(piece)

    def _last(self) -> str | None:
        line, self._rest = self._rest, b""
        return _text(line) if line else None


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()


def _input() -> str | None:
    try:
        return input("> ").strip()
    except EOFError:
        return None


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        return  # a plain file, which is always readable
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class Answers:
    """Reads typed answers, but only while the turn waits for one: what is typed at other times is the next message."""

    def __init__(self, conversation: Conversation, typed: Typed, group: asyncio.TaskGroup) -> None:
        self._conversation = conversation
        self._typed = typed
        self._group = group
        self._pending: Sequence[Approval] = ()
        self._reading: asyncio.Task[None] | None = None

    def follow(self, view: TurnView) -> None:
        """Take notice of how the turn stands."""
        self._pending = view.pending()
        if self._pending and self._reading is None:
            self._reading = self._group.create_task(self._read())
        elif not self._pending:
            self.close()

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        while (text := await self._typed.soon()) is not None:
            if text:
                await self._answer(text)

    async def _answer(self, text: str) -> None:
        command, *rest = text.split(None, 1)
        if command not in _DECISIONS:
            complain("the agent waits for /approve or /deny; Ctrl-C stops it")
            return
        named = meant(self._pending, rest[0] if rest else "", complain)
        if named is None:
            return
        try:
            await self._conversation.decide(named[0], _DECISIONS[command], named[1])
        except (Rejected, Temporary) as error:
            complain(str(error))


def is_answer(text: str) -> bool:
    """Whether a line answers an approval, so that it is no message to the agent."""
    return text.split(None, 1)[0] in _DECISIONS


def _bare(name: str) -> str:
    return name.lower().replace("-", "")


def meant(pending: Sequence[Approval], words: str, complain: Callable[[str], None]) -> tuple[Approval, str] | None:
    """The approval that CODE [note] means, and the note. Without a code the only one; None after a complaint."""
    if not words and len(pending) == 1:
        return pending[0], ""
    name, _, note = words.partition(" ")
    name = _bare(name)
    found = [one for one in pending if name and _bare(one.approval).startswith(name)]
    if len(found) == 1:
        return found[0], note.strip()
    complain(f"say which: {', '.join(f'{code(one)} ({one.name})' for one in pending)}")
    return None
