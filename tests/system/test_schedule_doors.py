"""Schedules through the HTTP interface and the command: what both do, show and refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratus.domain.agent import AgentDefinition
from stratus.effects import Failpoints
from stratus.execution.scheduler import Scheduler
from stratus.store import agent
from stratus.store.database import Database, Timeouts
from stratus.store.hints import Hints
from tests.store.world import make_channel, rows
from tests.system.commands import Command
from tests.system.web import Web, code

NEW = {"name": "daily", "agent": "demo", "cron": "30 7 * * 1-5", "time_zone": "Europe/Berlin", "text": "report"}
ADD = ["schedules", "add", "report", "--name", "daily", "--agent", "demo", "--cron", "30 7 * * 1-5"]
MAKE_DUE = "UPDATE schedule SET next_at = date_trunc('minute', stratus_now()) - make_interval(mins => $1)"


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


@pytest.fixture
async def stratus(db: Database, dsn: str, tmp_path: Path) -> Command:
    await agent.upsert(db, AgentDefinition(id="demo", model="demo"))
    return Command.on(dsn, tmp_path)


async def fire(db: Database, minutes: int = 0) -> None:
    """Every schedule is due since so many minutes, and one step is made."""
    await db.transact(lambda c: c.execute(MAKE_DUE, minutes))
    await Scheduler(db, Hints(db.dsn, Timeouts(), "test"), Failpoints()).step()


async def test_schedules_over_http(web: Web) -> None:
    admin = await web.person("root", "admin")
    await make_channel(web.db)
    [channel] = await rows(web.db, "SELECT name, public_id FROM channel")
    made = await admin.call("POST", "/schedules", json={**NEW, "channel": channel["name"], "chat": "c1", "thread": "t"})
    assert made.status_code == 201, made.text
    schedule = made.json()
    shown = {name: schedule[name] for name in ("name", "agent", "channel", "chat", "thread", "enabled", "catch_up")}
    assert shown == {
        "name": "daily",
        "agent": "demo",
        "channel": channel["name"],
        "chat": "c1",
        "thread": "t",
        "enabled": True,
        "catch_up": "one",
    }
    assert (schedule["owner"], schedule["session"]) == ("root", f"schedule:{schedule['id']}")
    await fire(web.db)
    path = f"/schedules/{schedule['id']}"
    [occurrence] = (await admin.call("GET", path)).json()["occurrences"]
    assert (occurrence["state"], occurrence["run_state"], occurrence["reason"]) == ("run", "queued", None)
    run = (await admin.call("GET", f"/runs/{occurrence['run']}")).json()
    assert (run["session"], run["state"]) == (schedule["session"], "queued")
    await fire(web.db, 5)
    assert len((await admin.call("GET", f"{path}?limit=1")).json()["occurrences"]) == 1
    off = (await admin.call("PATCH", path, json={"enabled": False})).json()
    assert (off["enabled"], off["next_at"]) == (False, None)
    assert (await admin.call("PATCH", path, json={"enabled": True})).json()["next_at"] is not None
    assert [one["name"] for one in (await admin.call("GET", "/schedules")).json()["schedules"]] == ["daily"]
    assert (await admin.call("DELETE", path)).status_code == 204
    assert code(await admin.call("GET", path)) == (404, "not_found")
    assert code(await admin.call("DELETE", path)) == (404, "not_found")
    assert (await admin.call("GET", f"/runs/{occurrence['run']}")).status_code == 200


async def test_what_http_refuses(web: Web) -> None:
    admin = await web.person("root", "admin")
    assert (await admin.call("POST", "/schedules", json=NEW)).status_code == 201
    refusals: list[tuple[dict[str, object], tuple[int, str]]] = [
        ({}, (409, "conflict")),
        ({"name": "x", "agent": "nobody"}, (404, "agent_not_found")),
        ({"name": "x", "cron": "every day"}, (400, "bad_input")),
        ({"name": "x", "time_zone": "Berlin"}, (400, "bad_input")),
        ({"name": "x", "catch_up": "some"}, (400, "bad_input")),
        ({"name": "x", "text": " "}, (400, "bad_input")),
        ({"name": "no spaces"}, (400, "bad_input")),
        ({"name": "x", "session": "s" * 257}, (400, "bad_input")),
        ({"name": "x", "channel": "nowhere", "chat": "c1"}, (404, "not_found")),
        ({"name": "x", "chat": "c1"}, (400, "bad_input")),
        ({"name": "x", "channel": "nowhere", "chat": "c\x00"}, (400, "bad_input")),
        ({"name": "x", "surprise": 1}, (400, "bad_input")),
    ]
    for change, expected in refusals:
        assert code(await admin.call("POST", "/schedules", json={**NEW, **change})) == expected, change
    refused = await admin.call("POST", "/schedules", json={**NEW, "name": "x", "cron": "0 25 * * *"})
    assert "such as '30 7 * * 1-5'" in refused.json()["detail"]
    ann = await web.person("ann")
    for method, path in [
        ("GET", "/schedules"),
        ("POST", "/schedules"),
        ("GET", "/schedules/x"),
        ("DELETE", "/schedules/x"),
    ]:
        body = NEW if method == "POST" else None
        assert code(await ann.call(method, path, json=body)) == (403, "forbidden"), path


async def test_schedules_by_command(stratus: Command, db: Database) -> None:
    made = (await stratus(*ADD, "--zone", "Europe/Berlin", "--catch-up", "all", "--json")).json()
    assert (made["name"], made["time_zone"], made["catch_up"], made["text"]) == (
        "daily",
        "Europe/Berlin",
        "all",
        "report",
    )
    [listed] = (await stratus("schedules", "list", "--json")).json()
    assert listed == made
    assert "it was not due yet" in (await stratus("schedules", "show", "daily")).out
    await fire(db)
    await fire(db, 5)
    [run, overlap] = (await stratus("schedules", "show", "daily", "--json")).json()["occurrences"]
    assert (run["run_state"], run["reason"]) == ("queued", None)
    assert (overlap["state"], overlap["run"], overlap["reason"]) == ("skipped", None, "overlap")
    assert "skipped: overlap" in (await stratus("schedules", "show", "daily")).out
    assert "queued" in (await stratus("schedules", "show", made["id"])).out
    assert (await stratus("schedules", "disable", "daily", "--json")).json() == {
        "name": "daily",
        "enabled": False,
        "next_at": None,
    }
    assert (await stratus("schedules", "enable", "daily", "--json")).json()["enabled"] is True
    assert (await stratus("schedules", "remove", "daily", "--yes", "--json")).json() == {"removed": "daily"}
    assert (await stratus("schedules", "list")).out.startswith("no schedules yet")


async def test_what_the_command_refuses(stratus: Command, db: Database) -> None:
    assert (await stratus(*ADD)).code == 0
    assert "'daily' already" in (await stratus(*ADD)).refused()
    assert "such as Europe/Berlin" in (await stratus(*ADD, "--zone", "Berlin")).refused()
    assert "none of skip, one, all" in (await stratus(*ADD, "--catch-up", "some")).refused()
    assert "needs both" in (await stratus(*ADD, "--chat", "c1")).refused()
    assert "there is no channel" in (await stratus(*ADD, "--channel", "x", "--chat", "c1")).refused()
    assert "there is no agent" in (await stratus(*ADD[:5], "--agent", "nobody", "--cron", "0 0 * * *")).refused()
    assert "there is no schedule" in (await stratus("schedules", "show", "x")).refused()
    assert (await stratus("schedules", "add", "--name", "x")).code == 2
