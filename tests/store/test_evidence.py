"""Late receipts: what is known of an attempt whose op has moved on settles it where nobody else has, and is kept where somebody has."""

from __future__ import annotations

from uuid import uuid4

import pytest

from stratus.store.attempt import open_attempts
from stratus.store.database import Database
from stratus.store.verdict import Verdict, settle
from tests.store.test_outbox import BUDGET, GRACE, Side
from tests.store.world import make_channel, own, rows


@pytest.fixture
async def side(db: Database) -> Side:
    channel = await make_channel(db)
    return Side(db, channel, await own(db, channel))


async def test_a_late_receipt_is_evidence_whoever_owns_the_channel(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    heir = await side.next_owner()
    await side.age(BUDGET + GRACE + 1)
    await heir.adopt()
    assert await side.states() == ["unknown"]
    assert await side.end(intent, "sent", detail={"message_id": "77"}) == "sent"
    assert await rows(side.db, "SELECT sent_message_id, attempt_token FROM channel_outbox") == [
        {"sent_message_id": "77", "attempt_token": None}
    ]


@pytest.mark.parametrize("outcome", ["retryable", "not_sent", "permanent", "unknown"])
async def test_only_a_receipt_moves_an_unknown(side: Side, outcome: str) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "unknown")
    assert await side.end(intent, outcome) is None
    assert await side.states() == ["unknown"]


async def test_the_first_receipt_stays(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "sent", detail={"message_id": "1"})
    assert await side.end(intent, "sent", detail={"message_id": "2"}) is None
    assert await rows(side.db, "SELECT sent_message_id FROM channel_outbox") == [{"sent_message_id": "1"}]


async def test_a_second_message_that_claims_to_be_the_op_is_an_alarm(
    side: Side, capsys: pytest.CaptureFixture[str]
) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "sent", detail={"message_id": "1"})
    await side.end(intent, "sent", detail={"message_id": "1"})
    assert "receipt.contradicts" not in capsys.readouterr().out
    await side.end(intent, "sent", detail={"message_id": "2"})
    assert "receipt.contradicts" in capsys.readouterr().out


@pytest.mark.parametrize(("verdict", "state"), [("resend", "pending"), ("cancel", "canceled")])
async def test_evidence_after_an_operators_verdict_is_kept_with_its_attempt(
    side: Side, verdict: str, state: str
) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "unknown")
    await settle(side.db, Verdict(intent.op_id, verdict, "ann", uuid4()))
    assert await side.end(intent, "sent", detail={"message_id": "77"}) is None
    assert await side.states() == [state]
    assert await rows(side.db, "SELECT outcome, detail ->> 'message_id' AS id FROM outbox_attempt") == [
        {"outcome": "sent", "id": "77"}
    ]


async def test_open_attempts_are_those_whose_end_is_not_known_yet(side: Side) -> None:
    await side.put("a", "b", "c", "d")
    a, b, c = await side.intend(3)
    await side.begin(a, b, c)
    await side.end(a, "sent")
    await side.end(b, "unknown")
    assert await open_attempts(side.db, side.channel) == [(b.op_id, b.token), (c.op_id, c.token)]
