"""Approvals through the HTTP interface and the command: who sees what, who may answer, and what each is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratus.store.database import Database
from tests.store.parked import Parked, parked
from tests.store.world import rows
from tests.system.commands import Command
from tests.system.web import Web, code


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        yield running


async def give(db: Database, name: str) -> None:
    """Make a person the owner of all sessions and the one who is asked."""
    await db.transact(
        lambda c: c.execute(
            "WITH p AS (SELECT id FROM principal WHERE name = $1), s AS (UPDATE session SET owner_id = p.id FROM p) "
            "UPDATE approval SET approvers = jsonb_build_object('v', 1, 'principals', jsonb_build_array(p.id), "
            "'roles', jsonb_build_array('owner', 'admin')) FROM p",
            name,
        )
    )


async def test_each_sees_their_own_questions_and_an_admin_all(web: Web) -> None:
    ann, bob, root = await web.person("ann"), await web.person("bob"), await web.person("root", "admin")
    one = await parked(web.db)
    await give(web.db, "ann")
    for person, count in ((ann, 2), (bob, 0), (root, 2)):
        found = (await person.call("GET", "/approvals")).json()
        assert len(found) == count
        assert all(shown["may_decide"] for shown in found)
    [newest, oldest] = (await ann.call("GET", "/approvals?session=s1")).json()
    assert [newest["id"], oldest["id"]] == [str(one.approvals[1]), str(one.approvals[0])]
    assert (oldest["name"], oldest["args"], oldest["state"]) == ("charge", '{"what": "plum"}', "pending")
    assert (await ann.call("GET", "/approvals?session=other")).json() == []
    assert (await ann.call("GET", "/approvals?state=approved")).json() == []
    assert (await ann.call("GET", "/approvals?state=nonsense")).status_code == 400


async def test_each_refusal_has_its_own_answer(web: Web) -> None:
    ann, bob, root = await web.person("ann"), await web.person("bob"), await web.person("root", "admin")
    one = await parked(web.db)
    await give(web.db, "ann")
    path = f"/approvals/{one.approvals[0]}"
    yes, no = {"decision": "approve"}, {"decision": "deny"}
    assert code(await bob.call("POST", path, json=yes)) == (404, "not_found")
    assert code(await ann.call("POST", "/approvals/nonsense", json=yes)) == (404, "not_found")
    assert code(await ann.call("POST", path, json={**yes, "args_hash": "0" * 64})) == (409, "arguments_changed")
    assert (await ann.call("POST", path, json={"decision": "perhaps"})).status_code == 400
    await web.db.transact(lambda c: c.execute("""UPDATE approval SET approvers = '{"v": 1, "principals": []}'"""))
    assert code(await ann.call("POST", path, json=yes)) == (403, "forbidden")
    await give(web.db, "ann")
    assert (await ann.call("POST", path, json=yes)).json()["state"] == "approved"
    assert (await ann.call("POST", path, json=yes)).json()["repeated"] is True
    second = await root.call("POST", path, json=no)
    assert code(second) == (409, "already_decided") and "ann has approved" in second.text
    await web.db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp() WHERE call_id = 'b'"))
    assert code(await ann.call("POST", f"/approvals/{one.approvals[1]}", json=no)) == (410, "approval_expired")


async def test_questions_that_nobody_answers_are_in_the_backlog_and_the_metrics(web: Web) -> None:
    root = await web.person("root", "admin")
    await parked(web.db)
    backlog = (await root.call("GET", "/backlog")).json()["backlog"]
    [asked] = [one for one in backlog if one["queue"] == "approvals"]
    assert (asked["state"], asked["total"]) == ("pending", 2) and asked["oldest"] > 0
    assert 'stratus_approvals{state="pending"} 2.0' in (await root.call("GET", "/metrics")).text


@pytest.fixture
async def asked(db: Database) -> Parked:
    return await parked(db)


async def test_the_operator_answers_by_command(db: Database, dsn: str, tmp_path: Path, asked: Parked) -> None:
    stratus = Command.on(dsn, tmp_path)
    listed = (await stratus("approvals", "list", "--json")).json()
    assert {one["id"] for one in listed} == {str(one) for one in asked.approvals}
    assert listed[0]["args"] == '{"what": "plum"}'
    first, second = asked.approvals
    done = (await stratus("approvals", "approve", first.hex[:8], "--json")).json()
    assert (done["id"], done["state"]) == (str(first), "approved")
    assert (await stratus("approvals", "deny", str(second), "--note", "too dear", "--json")).json()["state"] == "denied"
    assert "nothing there" in (await stratus("approvals", "list")).out
    assert "has denied this already" in (await stratus("approvals", "approve", str(second))).refused()
    assert "there is no question" in (await stratus("approvals", "approve", "zz")).refused()
    assert "there is no question" in (await stratus("approvals", "approve", second.hex[:8])).refused()
    assert (await stratus("approvals", "list", "--state", "perhaps")).code == 2
    assert await rows(db, "SELECT note FROM approval WHERE state = 'denied'") == [{"note": "too dear"}]
    assert await rows(db, "SELECT state FROM agent_run") == [{"state": "queued"}]
