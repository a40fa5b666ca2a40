"""Approvals with real replicas: asked in the chat, answered anywhere, once, in time, by the right person, for what was shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.ledger import Ledger
from testbed.replicas import Replica
from testbed.stage import Stage

GATED = {"name": "ledger_gated", "args": {"what": "plum"}}


@dataclass
class Rig:
    stage: Stage
    ledger: Ledger

    async def agent(self, *turns: dict[str, Any], **fields: Any) -> None:
        """An agent that asks before `ledger_gated`, with its script for messages that say `go`."""
        fields = {"tools": ["ledger_*", "delegate"], "approve": ["ledger_gated"], **fields}
        await self.stage.add_agent("demo", model="fake", **fields)
        await self.stage.add_channel()
        self.stage.model.script(*(turns or ({"tools": [GATED]}, {"text": "over"})), match="go")

    async def asked(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many prompts are in the chat; returns them."""

        def prompts() -> list[dict[str, Any]]:
            return [one for one in self.stage.platform.log if one["kind"] == "approval_prompt"]

        await eventually(lambda: len(prompts()) >= count, timeout=25, what=f"{count} prompts in the chat")
        return prompts()

    async def tap(self, prompt: dict[str, Any], button: int, **fields: Any) -> None:
        """Press a prompt's button."""
        await self.stage.say("", kind="callback", callback=prompt["buttons"][button][1], chat=prompt["chat"], **fields)

    async def told(self, text: str) -> None:
        """Wait until somebody was told this."""
        await eventually(lambda: any(text in one for one in self.stage.sent()), timeout=25, what=f"{text!r} was said")

    def acted(self) -> int:
        """How often the gated tool has acted."""
        return len(self.ledger.entries(tool="ledger_gated"))

    async def post(self, replica: Replica, approval: str, **body: Any) -> httpx.Response:
        async with self.stage.client(replica) as client:
            return await client.post(f"/approvals/{approval}", json=body)

    async def pending(self, replica: Replica) -> list[dict[str, Any]]:
        async with self.stage.client(replica) as client:
            found: list[dict[str, Any]] = (await client.get("/approvals")).json()
            return found

    async def ended(self) -> None:
        async def over() -> bool:
            return not {"queued", "running", "waiting"} & set(await self.stage.run_states())

        await eventually(over, 30, "all runs have ended")


@pytest.fixture
async def rig(stage: Stage, tmp_path: Path) -> AsyncIterator[Rig]:
    yield Rig(stage, Ledger(tmp_path / "ledger"))


async def test_a_tap_lets_the_call_run_and_messages_behind_it_follow_in_order(rig: Rig) -> None:
    await rig.agent()
    rig.stage.model.script({"text": "second answer"}, match="second")
    async with rig.stage.replicas(2, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        [prompt] = await rig.asked()
        assert [label for label, _ in prompt["buttons"]] == ["Approve", "Deny"]
        assert "what: plum" in prompt["text"]
        await rig.stage.say("second")
        await eventually(lambda: rig.stage.run_states(), what="queued")
        assert rig.acted() == 0
        await rig.tap(prompt, 0)
        await rig.ended()
        await rig.told("second answer")
        assert rig.acted() == 1
        said = rig.stage.sent()
        assert said.index("over") < said.index("second answer")
        await rig.stage.settled(len(said))
    assert await rig.stage.value("SELECT state FROM approval") == "consumed"
    assert await violations(rig.stage.db, at_rest=True) == {}


async def test_a_denial_by_code_is_a_result_with_its_reason(rig: Rig) -> None:
    await rig.agent({"tools": [GATED, {"name": "ledger_look", "args": {"what": "pear"}}]}, {"text": "as you wish"})
    async with rig.stage.replicas(1, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        [prompt] = await rig.asked()
        code = prompt["text"].split("/deny ")[1].split()[0]
        await rig.stage.say(f"/deny {code} not today")
        await rig.told("as you wish")
        assert rig.acted() == 0
        assert len(rig.ledger.entries(tool="ledger_look")) == 1, "the calls behind it are carried out"
    body = rig.stage.model.calls[-1].call.body
    denied = next(message["content"] for message in body["messages"] if message["role"] == "tool")
    assert "did not allow this call" in denied and "not today" in denied


async def test_an_answer_after_all_replicas_have_restarted_is_carried_out_by_another(rig: Rig) -> None:
    await rig.agent()
    async with rig.stage.replicas(2, settings=rig.ledger.settings()) as replicas:
        await rig.stage.say("go")
        await rig.asked()
        for replica in replicas:
            await replica.kill()
    async with rig.stage.replicas(2, settings=rig.ledger.settings()) as replicas:
        [one] = await rig.pending(replicas[0])
        assert one["may_decide"] and one["name"] == "ledger_gated" and one["args"] == '{"what": "plum"}'
        assert (await rig.post(replicas[1], one["id"], decision="approve")).status_code == 200
        await rig.told("over")
    assert rig.acted() == 1
    assert len([one for one in rig.stage.sent() if one == "over"]) == 1


async def test_twice_late_by_the_wrong_person_and_for_other_arguments(rig: Rig) -> None:
    await rig.agent({"tools": [GATED, {**GATED, "args": {"what": "pear"}}]}, {"text": "over"})
    async with rig.stage.replicas(2, settings=rig.ledger.settings()) as replicas:
        await rig.stage.say("go")
        first, second = await rig.asked(2)
        await rig.tap(first, 0, sender={"id": "99", "name": "Mallory"})
        await rig.told("You are not one of those who may decide this.")
        plum = next(one for one in await rig.pending(replicas[0]) if "plum" in one["args"])
        changed = await rig.post(replicas[0], plum["id"], decision="approve", args_hash="0" * 64)
        assert (changed.status_code, changed.json()["code"]) == (409, "arguments_changed")
        assert (
            await rig.post(replicas[0], plum["id"], decision="approve", args_hash=plum["args_hash"])
        ).status_code == 200
        repeat = await rig.post(replicas[1], plum["id"], decision="approve")
        assert (repeat.status_code, repeat.json()["repeated"]) == (200, True)
        other = await rig.post(replicas[1], plum["id"], decision="deny")
        assert (other.status_code, other.json()["code"]) == (409, "already_decided")
        await rig.tap(first, 1)
        await rig.told("Owner has approved this already.")
        await rig.stage.db.transact(
            lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp() WHERE state = 'pending'")
        )
        await rig.tap(second, 0)
        await rig.told("The time to answer is over; the call was not made.")
        await rig.ended()
    assert [entry.argument for entry in rig.ledger.entries(tool="ledger_gated")] == ["plum"]


async def test_arguments_that_change_after_the_approval_are_not_called(rig: Rig) -> None:
    await rig.agent()
    async with rig.stage.replicas(1, settings=rig.ledger.settings()) as [replica]:
        await rig.stage.say("go")
        await rig.asked()
        await rig.stage.db.transact(
            lambda c: c.execute("UPDATE tool_call SET args = '{\"what\": \"gold\"}' WHERE name = 'ledger_gated'")
        )
        [one] = await rig.pending(replica)
        assert (await rig.post(replica, one["id"], decision="approve")).status_code == 200
        await rig.told("over")
    assert rig.acted() == 0
    assert await rig.stage.value("SELECT state FROM tool_call") == "failed"


async def test_a_question_expires_while_nobody_runs_and_the_turn_goes_on_with_that(rig: Rig) -> None:
    await rig.agent(approval_window_seconds=5.0)
    async with rig.stage.replicas(1, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        await rig.asked()
    expires = await rig.stage.value("SELECT expires_at FROM approval")

    async def over() -> bool:
        return bool(await rig.stage.value("SELECT expires_at <= clock_timestamp() FROM approval"))

    await eventually(over, what="the window is over")
    async with rig.stage.replicas(1, settings=rig.ledger.settings()):
        await rig.told("over")
    assert await rig.stage.value("SELECT expires_at FROM approval") == expires, "a restart starts no new window"
    assert await rig.stage.value("SELECT state FROM approval") == "expired"
    assert rig.acted() == 0


async def test_a_child_asks_in_the_chat_where_the_person_is(rig: Rig) -> None:
    task = {"name": "delegate", "args": {"agent": "helper", "task": "child work"}}
    await rig.agent({"tools": [task]}, {"text": "over"}, delegates=["helper"])
    await rig.stage.add_agent("helper", model="fake", tools=["ledger_*"], approve=["ledger_gated"])
    rig.stage.model.script({"tools": [GATED]}, {"text": "child done"}, match="child work")
    async with rig.stage.replicas(2, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        await rig.asked()
        await rig.stage.say("/status")
        await rig.told("ledger_gated")
        await rig.stage.say("/approve")
        await rig.told("over")
    assert rig.acted() == 1


async def test_a_stop_closes_the_question(rig: Rig) -> None:
    await rig.agent()
    async with rig.stage.replicas(1, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        [prompt] = await rig.asked()
        await rig.stage.say("/stop")
        await rig.told("Stopped.")
        await rig.tap(prompt, 0)
        await rig.told("The turn that asked is over; the call was not made.")
    assert await rig.stage.run_states() == ["canceled"]
    assert rig.acted() == 0
