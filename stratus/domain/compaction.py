"""Makes a history shorter for one request to a model that cannot take all of it: older turns give way to a note that says so.

What is stored stays as it is. Cuts are made only where a turn begins, so no call loses its result and no result its call.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratus.domain.values import FilePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

# A picture costs a model far less than its bytes would as text.
_FILE_WEIGHT_MAX = 20_000


def next_cut(messages: Sequence[Message], turn_start: int, left_out: int = 0) -> int | None:
    """How many of the first messages to leave out now that `left_out` were not enough; None when nothing more can go.

    At most half of what was there before `turn_start`, the begin of the present turn, stays; that turn itself stays whole. `messages` must be
    repaired (domain/history.py).
    """
    older = sum(_weight(message) for message in messages[left_out:turn_start])
    kept = older
    for at in range(left_out + 1, turn_start + 1):
        kept -= _weight(messages[at - 1])
        if (at == turn_start or messages[at].role == "user") and kept * 2 <= older:
            return at
    return None


def cut(messages: Sequence[Message], left_out: int) -> list[Message]:
    """The history with a note in place of its first `left_out` messages."""
    return [_note(left_out), *messages[left_out:]] if left_out else list(messages)


def _note(left_out: int) -> Message:
    were = "1 message was" if left_out == 1 else f"{left_out} messages were"
    text = (
        f"[The conversation had become too long: its first {were} left out here, by the gateway and not by the person who writes to you. "
        "If you need something from there, ask for it.]"
    )
    return Message(role="user", parts=[TextPart(text=text)])


def _weight(message: Message) -> int:
    return 1 + sum(_part_weight(part) for part in message.parts)


def _part_weight(part: Part) -> int:
    match part:
        case TextPart() | ThinkingPart():
            return len(part.text)
        case ToolCallPart():
            return len(part.args)
        case ToolResultPart():
            return len(part.content)
        case FilePart():
            return min(part.octets(), _FILE_WEIGHT_MAX)
    return 0
