"""What a draft shows of a run's events, and the rules by which it follows the one before."""

from __future__ import annotations

from typing import Any

import pytest

from stratus.channel.text import length
from stratus.channel.values import Limits, TextUnit
from stratus.domain.draft import MORE, Draft, Standing, Step, next_step, unfinished
from stratus.domain.outbox import OpState

LIMITS = Limits(text_max=100)
INTERVAL = 1.0


def folded(*events: tuple[str, dict[str, Any]], limits: Limits = LIMITS) -> Draft:
    draft = Draft()
    for seq, (kind, payload) in enumerate(events, 1):
        draft.fold(seq, kind, payload, limits)
    return draft


def delta(text: str, part: int = 0) -> tuple[str, dict[str, Any]]:
    return "text.delta", {"part": part, "text": text}


def whole(text: str, part: int = 0) -> tuple[str, dict[str, Any]]:
    return "text.completed", {"part": part, "text": text}


SAID: tuple[str, dict[str, Any]] = ("message.assistant", {})
BEGUN: tuple[str, dict[str, Any]] = ("run.started", {})
AGAIN: tuple[str, dict[str, Any]] = ("run.resumed", {})


def call(name: str, call_id: str = "c1") -> tuple[str, dict[str, Any]]:
    return "tool.proposed", {"call_id": call_id, "name": name}


def test_deltas_grow_in_order_of_their_parts() -> None:
    draft = folded(BEGUN, delta("Hel"), delta("lo"), delta(" there", part=2))
    assert draft.shown(LIMITS) == "Hello there" and draft.seq == 4


def test_an_event_counts_once() -> None:
    draft = folded(delta("a"), delta("b"))
    draft.fold(2, "text.delta", {"part": 0, "text": "b"}, LIMITS)
    assert draft.shown(LIMITS) == "ab"


def test_text_that_an_attempt_left_unfinished_is_written_anew() -> None:
    assert folded(BEGUN, delta("half a sen"), AGAIN, delta("A whole")).shown(LIMITS) == "A whole"


def test_a_message_that_was_finished_stays_until_the_next_one_begins() -> None:
    looked = [
        BEGUN,
        delta("Let me"),
        whole("Let me look."),
        SAID,
        call("search"),
        call("read", "c2"),
        call("read", "c3"),
    ]
    assert folded(*looked).shown(LIMITS) == "Let me look.\n\n🔧 `search`, `read`"
    assert folded(*looked, AGAIN).shown(LIMITS) == "Let me look.\n\n🔧 `search`, `read`"
    done = [("tool.done", {"call_id": "c1"}), ("tool.failed", {"call_id": "c2"}), ("tool.done", {"call_id": "c3"})]
    assert folded(*looked, *done).shown(LIMITS) == "Let me look."
    assert folded(*looked, delta("Found")).shown(LIMITS) == "Found"


def test_calls_alone_are_shown_and_nothing_is_nothing() -> None:
    assert folded(BEGUN, SAID, call("search")).shown(LIMITS) == "🔧 `search`"
    assert folded(BEGUN).shown(LIMITS) == "" == folded(delta(" \n")).shown(LIMITS)


@pytest.mark.parametrize("unit", TextUnit)
@pytest.mark.parametrize("text", ["word " * 300, "😀" * 300, "```py\n" + "x = 1\n" * 300, "ä" * 99])
def test_a_long_text_shows_its_first_piece_within_the_limit(unit: TextUnit, text: str) -> None:
    limits = Limits(text_max=100, text_unit=unit)
    draft = folded(*(delta(text[at : at + 7]) for at in range(0, len(text), 7)), limits=limits)
    shown = draft.shown(limits)
    assert shown and length(unfinished(shown), unit) <= limits.text_max
    assert shown == folded(delta(text), limits=limits).shown(limits)
    assert text.startswith(shown.removesuffix("```").rstrip())


def test_a_text_without_end_is_not_kept() -> None:
    draft = folded(*[delta("x" * 50)] * 1000)
    assert sum(len(text) for text in draft._parts.values()) <= 2 * LIMITS.text_max


def test_the_mark_never_spoils_a_fence() -> None:
    assert unfinished("some") == "some …"
    assert unfinished("```\nx\n```") == f"```\nx\n```\n{MORE.strip()}"


# -- the rules --


def draft_op(state: OpState = OpState.SENT, **fields: Any) -> Standing:
    known = {"seq": 5, "text": "old", "message_id": "m1", "waited": 2.0}
    return Standing("draft_update", state, **{**known, **fields})


RULES: dict[str, tuple[Standing | None, Step]] = {
    "nothing said yet": (None, Step.SEND),
    "a question stands below": (Standing("approval_prompt", OpState.SENT), Step.SEND),
    "sent": (draft_op(), Step.EDIT),
    "sent just now": (draft_op(waited=0.5), Step.WAIT),
    "sent, and the platform asks for a pause": (draft_op(held=True), Step.WAIT),
    "sent, and says the same": (draft_op(text="new"), Step.SAME),
    "sent, but nobody knows as what": (draft_op(message_id=None), Step.OVER),
    "newer": (draft_op(seq=7), Step.SAME),
    "newer and not sent": (draft_op(OpState.PENDING, seq=6), Step.SAME),
    "newer, and lost": (draft_op(OpState.UNKNOWN, seq=6), Step.SAME),
    "on its way": (draft_op(OpState.SENDING), Step.WAIT),
    "not sent": (draft_op(OpState.PENDING), Step.MERGE),
    "not sent, and says the same": (draft_op(OpState.PENDING, text="new"), Step.SAME),
    "unknown": (draft_op(OpState.UNKNOWN), Step.OVER),
    "refused": (draft_op(OpState.FAILED), Step.OVER),
    "passed over": (draft_op(OpState.CANCELED, overtaken=True), Step.EDIT),
    "passed over just now": (draft_op(OpState.CANCELED, overtaken=True, waited=0.1), Step.WAIT),
    "passed over before the first": (draft_op(OpState.CANCELED, overtaken=True, message_id=None), Step.SEND),
    "passed over in a pause": (draft_op(OpState.CANCELED, overtaken=True, message_id=None, held=True), Step.WAIT),
    "canceled by an operator": (draft_op(OpState.CANCELED), Step.OVER),
}


@pytest.mark.parametrize("case", RULES)
def test_what_follows(case: str) -> None:
    standing, step = RULES[case]
    assert next_step(standing, 6, "new", INTERVAL) is step
