"""The turn that is lost everywhere: three tool calls, an approval and a delegation, and what must be true of it in the end."""

from __future__ import annotations

from typing import Any

from stratus.domain.history import repaired
from stratus.domain.values import Message
from stratus.store.database import Database
from stratus.store.message import history
from testbed.invariants import violations
from testbed.ledger import Ledger
from testbed.stage import Stage

ANSWER = "All is done."
CHILD_ANSWER = "The child says 42."
TURN: list[dict[str, Any]] = [
    {
        "text": "First I look and put.",
        "tools": [
            {"name": "ledger_look", "args": {"what": "apple"}},
            {"name": "ledger_put", "args": {"what": "pear"}},
            {"name": "ledger_charge", "args": {"what": "plum"}},
        ],
    },
    {"tools": [{"name": "ledger_gated", "args": {"what": "quince"}}]},
    {"tools": [{"name": "delegate", "args": {"agent": "helper", "task": "child task"}}]},
    {"text": ANSWER},
]
CHARGES = ["plum", "quince"]


async def prepare(stage: Stage) -> None:
    """The agents, one for each wire and the one they delegate to, and the model's script for them."""
    for agent_id, model, base_url in (
        ("boss-chat", "openai-chat:fake-1", f"{stage.model_url}/v1"),
        ("boss-anthropic", "anthropic:fake-1", stage.model_url),
    ):
        await stage.add_agent(
            agent_id,
            model=model,
            base_url=base_url,
            api_key_env="FAKE_MODEL_KEY",
            tools=["ledger_*", "delegate"],
            approve=["ledger_gated"],
            delegates=["helper"],
        )
    await stage.add_agent("helper", model="fake")
    stage.model.script({"text": CHILD_ANSWER}, match="child task")
    for turn in range(40):  # each session has its own text, so each its own script
        stage.model.script(*TURN, match=f"long turn {turn}.")


async def outcome(stage: Stage, run: str) -> dict[str, Any]:
    """The run's row with its session."""
    [row] = await stage.rows(
        "SELECT id, session_id, state, attempts, claims, error FROM agent_run WHERE public_id = $1::uuid", run
    )
    return row


async def check(stage: Stage, ledger: Ledger, run: str) -> None:
    """One answer, nothing repeated that may not be, a contiguous log and a history that needs no repair."""
    row = await outcome(stage, run)
    assert row["state"] == "completed", row
    told = await messages(stage.db, row["session_id"])
    assert repaired(told) == told
    assert told[-1].text() == ANSWER
    assert [one.text() for one in told if one.role == "assistant" and one.text() == ANSWER] == [ANSWER]
    calls = await stage.rows(
        "SELECT name, state, args::jsonb ->> 'what' AS what, call_id FROM tool_call WHERE run_id = $1 ORDER BY step, ordinal",
        row["id"],
    )
    assert [call["name"] for call in calls] == [
        "ledger_look",
        "ledger_put",
        "ledger_charge",
        "ledger_gated",
        "delegate",
    ]
    for call in calls:
        begun = sum(entry.call_id == call["call_id"] for entry in ledger.entries(tool=call["name"]))
        if call["name"] in ("ledger_charge", "ledger_gated"):
            assert call["state"] in ("done", "unknown")
            assert begun <= 1 and (call["state"] == "unknown" or begun == 1), call
        else:
            assert call["state"] == "done", call
    assert await stage.value("SELECT count(*) FROM agent_run WHERE parent_run_id = $1", row["id"]) == 1
    assert [one.call.problem for one in stage.model.calls if one.call.problem] == [], "the provider takes every history"
    assert await violations(stage.db, at_rest=True) == {}


async def messages(db: Database, session_id: str) -> list[Message]:
    """The session's history."""
    found = await db.read(lambda c: history(c, [session_id]))
    return [message for _, message in found[session_id]]
