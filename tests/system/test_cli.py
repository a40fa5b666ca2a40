"""The commands as processes on a real database: what they do, refuse, print, and with which exit code they end."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from stratus.domain.agent import AgentDefinition
from stratus.domain.values import ReplyTo
from stratus.store import agent, migrate, principal
from stratus.store.database import Database
from stratus.store.plan import NewOp, plan
from stratus.store.run import finish
from testbed.postgres import TestCluster
from testbed.sockets import ReservedPort
from tests.store.world import as_owner, completion, make_channel, new_run, queue, rows, running
from tests.system.commands import Command

SECRET = "s3cret-token-nobody-may-see"
AGENT = "---\nid: demo\nmodel: demo\n---\nBe kind.\n"
MAKE_UNKNOWN = """
UPDATE channel_outbox SET state = 'sending', attempt_token = $2 WHERE id = $1
"""
LOSE = "UPDATE channel_outbox SET state = 'unknown' WHERE id = $1"


@pytest.fixture
def stratus(dsn: str, tmp_path: Path) -> Command:
    return Command.on(dsn, tmp_path)


def test_help_is_quick() -> None:
    """Not asserted tightly: the machine is shared. What must not come back is an import of seconds."""
    heavy = "{'asyncpg', 'sqlalchemy', 'fastapi', 'pydantic', 'rich', 'httpx', 'structlog', 'alembic', 'cryptography'}"
    look = f"import stratus.cli.main, sys; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout.strip() == "[]"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run([sys.executable, "-m", "stratus", "--help"], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"stratus --help: {seconds:.2f} s of CPU")
    assert shown.returncode == 0 and "agents" in shown.stdout
    assert seconds < 1.0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["runs", "show", "no-uuid"],
        ["runs", "list", "--state", "lost"],
        ["tokens", "create", "--ttl", "x"],
    ],
)
async def test_wrong_usage_ends_with_2(tmp_path: Path, arguments: list[str]) -> None:
    done = await Command(tmp_path)(*arguments)
    assert done.code == 2 and "Traceback" not in done.err and done.out == ""


@pytest.mark.parametrize("command", [["serve"], ["doctor"], ["chat", "--once", "hi"]])
async def test_a_wrong_setting_stops_every_command_in_one_line(tmp_path: Path, command: list[str]) -> None:
    done = await Command(tmp_path, STRATUS_SEND_BUDGET="40s")(*command)
    assert done.code == 1 and len((done.out + done.err).splitlines()) == 1
    assert "STRATUS_SEND_BUDGET: together with STRATUS_SEND_GRACE" in done.out + done.err


@pytest.mark.parametrize("command", [["serve"], ["up"], ["migrate"]])
async def test_an_unreachable_database_is_said_in_one_line_without_its_password(
    tmp_path: Path, command: list[str]
) -> None:
    with ReservedPort() as port:
        stratus = Command.on(f"postgresql://me:{SECRET}@127.0.0.1:{port.number}/stratus", tmp_path)
        done = await stratus(*command)
    line = done.refused()
    assert "did not answer" in line and f"postgresql://me:***@127.0.0.1:{port.number}/stratus" in line
    assert SECRET not in done.err + done.out


async def test_a_database_that_refuses_us_is_said_in_one_line(cluster: TestCluster, dsn: str, tmp_path: Path) -> None:
    name = dsn.rpartition("/")[2].partition("?")[0]
    done = await Command.on(dsn.replace(f"/{name}", f"/{name}_not_there"), tmp_path)("agents", "list")
    assert "refuses us" in done.refused() and "does not exist" in done.err


async def test_a_database_that_is_behind_is_not_served(cluster: TestCluster, db: Database, tmp_path: Path) -> None:
    await as_owner(db.dsn, "UPDATE stratus_version SET version_num = '0000'")
    stratus = Command.on(db.dsn, tmp_path)
    for command in (["serve"], ["agents", "list"]):
        assert "run `stratus migrate`" in (await stratus(*command)).refused()
    doctor = await stratus("doctor", "--json")
    assert doctor.code == 1
    assert {one["name"]: one["ok"] for one in json.loads(doctor.out)["checks"]}["schema"] is False


async def test_config_shows_the_effective_values_and_no_secret(tmp_path: Path) -> None:
    stratus = Command.on(f"postgresql://me:{SECRET}@db/stratus", tmp_path, STRATUS_POLL="250ms")
    shown = {one["name"]: one for one in (await stratus("config", "--json")).json()}
    assert shown["STRATUS_POLL"] == {"name": "STRATUS_POLL", "value": "0.25s", "source": "environment"}
    assert shown["STRATUS_DATABASE_URL"]["value"] == "postgresql://me:***@db/stratus"
    plain = await stratus("config")
    assert plain.code == 0 and "STRATUS_SWEEP" in plain.out
    assert SECRET not in plain.out + json.dumps(shown)


async def test_agents_are_applied_listed_and_shown(stratus: Command, tmp_path: Path) -> None:
    file = tmp_path / "agents" / "demo.md"
    file.parent.mkdir()
    file.write_text(AGENT)
    assert (await stratus("agents", "apply", str(file.parent), "--json")).json() == [
        {"id": "demo", "revision": 1, "changed": True}
    ]
    assert (await stratus("agents", "apply", str(file), "--json")).json()[0]["changed"] is False
    [listed] = (await stratus("agents", "list", "--json")).json()
    assert (listed["id"], listed["definition"]["soul"]) == ("demo", "Be kind.")
    shown = await stratus("agents", "show", "demo")
    assert shown.out.startswith("---\nid: demo\n") and shown.out.endswith("Be kind.\n")
    assert "there is no agent 'nobody'" in (await stratus("agents", "show", "nobody")).refused()
    file.write_text(AGENT.replace("demo\n---", "demo\nmodle: x\n---"))
    assert "unknown field `modle`" in (await stratus("agents", "apply", str(file))).refused()


async def test_a_signin_link_works_once(stratus: Command, db: Database) -> None:
    link = (await stratus("tokens", "signin", "--json")).json()["link"]
    address, _, code = link.partition("/ui/#signin=")
    assert address.startswith("http://")
    assert await principal.redeem_signin(db, code) is not None
    assert await principal.redeem_signin(db, code) is None


async def test_a_tokens_secret_is_shown_once_and_works_until_it_is_revoked(stratus: Command, db: Database) -> None:
    made = (await stratus("tokens", "create", "--name", "ci", "--ttl", "8h", "--json")).json()
    who = await principal.authenticate(db, made["secret"])
    assert who is not None and who.role == "owner" and made["expires_at"]
    listed = await stratus("tokens", "list", "--json")
    assert [(one["id"], one["name"]) for one in listed.json()] == [(made["id"], "ci")]
    assert made["secret"] not in listed.out
    assert (await stratus("tokens", "revoke", made["id"])).code == 0
    assert await principal.authenticate(db, made["secret"]) is None
    assert "there is no token" in (await stratus("tokens", "revoke", str(uuid4()))).refused()


async def test_a_channel_is_added_with_a_sealed_secret_switched_and_removed(stratus: Command, db: Database) -> None:
    add = ["channels", "add", "--platform", "testchan", "--name", "lab", "--agent", "demo"]
    add += ["--option", "base_url=http://127.0.0.1:1", "--option", "bot=b", "--option", 'access={"mode": "open"}']
    assert "set STRATUS_TEST_CHANNELS=on" in (await stratus(*add)).refused()
    allowed = {"STRATUS_TEST_CHANNELS": "on"}
    assert "there is no agent 'demo'" in (await stratus(*add, settings=allowed)).refused()
    await agent.upsert(db, AgentDefinition(id="demo", model="demo"))
    bad = [*add, "--option", "access=everybody"]
    assert 'the option access must be "open"' in (await stratus(*bad, settings=allowed)).refused()
    made = (await stratus(*add, "--credential", "secret=-", "--json", said=f"{SECRET}\n", settings=allowed)).json()
    [row] = await rows(db, "SELECT public_id::text, credentials, config::text FROM channel")
    assert row["public_id"] == made["id"] and SECRET.encode() not in bytes(row["credentials"])  # type: ignore[call-overload]
    assert "named 'lab' already" in (await stratus(*add, settings=allowed)).refused()
    assert (await stratus("channels", "disable", "lab")).code == 0
    listed = await stratus("channels", "list", "--json")
    assert [(one["name"], one["state"]) for one in listed.json()] == [("lab", "disabled")]
    assert "credentials" not in listed.out and SECRET not in listed.out
    assert "could not be asked (ConnectError)" in (await stratus("channels", "check", "lab")).refused()
    assert (await stratus("channels", "remove", "lab", said="n\n")).code == 1
    assert (await stratus("channels", "remove", "lab", "--yes", "--json")).json() == {"removed": "lab"}
    assert (await stratus("channels", "list", "--json")).json() == []


async def test_a_secret_comes_from_a_variable_and_a_broken_pair_is_not_repeated(stratus: Command, db: Database) -> None:
    await agent.upsert(db, AgentDefinition(id="demo", model="demo"))
    add = ["channels", "add", "--platform", "telegram", "--name", "bot", "--agent", "demo", "--credential"]
    given = {"BOT_TOKEN": f"123456:{SECRET}"}
    assert (await stratus(*add, "token=env:BOT_TOKEN", settings=given)).code == 0
    for pair in (SECRET, "token=env:NOT_SET"):
        done = await stratus(*add, pair)
        assert done.code == 2 and SECRET not in done.err


async def test_runs_and_sessions_are_found_shown_exported_and_canceled(stratus: Command, db: Database) -> None:
    claimed = await running(db, "s1")
    await finish(db, [completion(claimed)])
    [waiting] = await queue(db, new_run("s1", "second \x1b[31m message"))
    listed = (await stratus("runs", "list", "--session", "s1", "--json")).json()
    assert [(one["run"], one["state"]) for one in listed] == [
        (str(waiting.run), "queued"),
        (str(claimed.run), "completed"),
    ]
    shown = (await stratus("runs", "show", str(claimed.run), "--json")).json()
    assert (shown["state"], shown["reply"]) == ("completed", "done")
    assert "there is no run" in (await stratus("runs", "show", str(uuid4()))).refused()
    assert (await stratus("runs", "cancel", str(waiting.run), "--json")).json()["canceled"] is True
    assert "has ended: it is canceled" in (await stratus("runs", "cancel", str(waiting.run))).refused()
    [session] = (await stratus("sessions", "list", "--json")).json()
    assert (session["id"], session["open_state"]) == ("s1", None)
    plain = await stratus("sessions", "show", "s1")
    assert plain.code == 0 and "[2] assistant" in plain.out
    exported = [json.loads(line) for line in (await stratus("sessions", "export", "s1")).out.splitlines()]
    assert [(one["position"], one["role"]) for one in exported] == [(1, "user"), (2, "assistant")]
    assert "there is no session 'x'" in (await stratus("sessions", "export", "x")).refused()


async def test_an_operator_settles_what_is_unknown_and_nothing_else(stratus: Command, db: Database) -> None:
    channel_id = await make_channel(db)
    to = ReplyTo(channel_id=channel_id, platform="testchan", chat="c1")
    ops = [NewOp(channel_id, to.lane(), "send_text", {"chat": "c1"}, {"text": f"{n}"}, f"k{n}") for n in range(3)]
    await db.transact(lambda c: plan(c, ops))
    ids = [row["id"] for row in await rows(db, "SELECT id FROM channel_outbox ORDER BY id")]
    for op in ids[:2]:
        await db.transact(lambda c, op=op: c.execute(MAKE_UNKNOWN, op, uuid4()))  # type: ignore[misc]
        await db.transact(lambda c, op=op: c.execute(LOSE, op))  # type: ignore[misc]
    listed = (await stratus("outbox", "list", "--state", "unknown", "--json")).json()
    assert sorted(one["id"] for one in listed) == ids[:2]
    assert (await stratus("outbox", "mark-sent", str(ids[0]), "--json")).json() == {"id": ids[0], "state": "sent"}
    assert (await stratus("outbox", "resend", str(ids[1]), "--json")).json() == {"id": ids[1], "state": "pending"}
    assert "is pending: it waits to be sent" in (await stratus("outbox", "resend", str(ids[2]))).refused()
    both = await stratus("outbox", "cancel", str(ids[0]), str(ids[2]), "--note", "not wanted")
    assert both.code == 1 and f"operation {ids[0]} is sent" in both.err, "what one refuses does not hold up the other"
    shown = (await stratus("outbox", "show", str(ids[2]), "--json")).json()
    assert [(one["action"], one["note"]) for one in shown["verdicts"]] == [("cancel", "not wanted")]
    assert shown["verdicts"][0]["by"].startswith("cli")
    assert "verdicts:" in (await stratus("outbox", "show", str(ids[1]))).out
    assert "no operation 999" in (await stratus("outbox", "show", "999")).refused()
    assert [row["state"] for row in await rows(db, "SELECT state FROM channel_outbox ORDER BY id")] == [
        "sent",
        "pending",
        "canceled",
    ]


async def test_doctor_names_each_cause(stratus: Command, db: Database) -> None:
    await agent.upsert(db, AgentDefinition(id="real", model="anthropic:claude-sonnet-4-5"))
    channel_id = await make_channel(db)
    await db.transact(lambda c: plan(c, [NewOp(channel_id, "l", "send_text", {"chat": "c1"}, {"text": "x"}, "k")]))
    [op] = [row["id"] for row in await rows(db, "SELECT id FROM channel_outbox")]
    await db.transact(lambda c: c.execute(MAKE_UNKNOWN, op, uuid4()))
    await db.transact(lambda c: c.execute(LOSE, op))
    done = await stratus("doctor", "--json", settings={"ANTHROPIC_API_KEY": ""})
    assert done.code == 1
    found = {one["name"]: (one["ok"], one["detail"]) for one in json.loads(done.out)["checks"]}
    assert [name for name, (ok, _) in found.items() if ok] == [
        "settings",
        "database",
        "schema",
        "listen",
        "credentials",
    ]
    assert "an operator has to set ANTHROPIC_API_KEY" in found["agents"][1]
    assert "its agent demo is not there" in found["channels"][1] and "no replica runs it" in found["channels"][1]
    assert (
        "1 unknown, the oldest of " in found["outbox"][1]
        and "stratus outbox list --state unknown" in found["outbox"][1]
    )
    assert "none was seen" in found["replicas"][1]


async def test_doctor_names_lanes_that_stand_still(stratus: Command, db: Database) -> None:
    channel_id = await make_channel(db)
    to = ReplyTo(channel_id=channel_id, platform="testchan", chat="c1")
    await db.transact(
        lambda c: plan(c, [NewOp(channel_id, to.lane(), "send_text", {"chat": "c1"}, {"text": "x"}, "k")])
    )
    [waits] = (await stratus("backlog", "--json")).json()
    assert (waits["queue"], waits["state"], waits["total"]) == ("outbox", "pending", 1)
    await db.transact(lambda c: c.execute("UPDATE channel_outbox SET created_at = created_at - interval '1 hour'"))
    done = await stratus("doctor", "--json")
    [found] = [one for one in json.loads(done.out)["checks"] if one["name"] == "outbox"]
    assert not found["ok"] and "1 chat waiting, the longest 36" in found["detail"]
    assert found["detail"].endswith("no replica runs the channel")


async def test_migrate_may_run_again(stratus: Command) -> None:
    assert (await stratus("migrate", "--json")).json() == {"revision": migrate.head()}
    assert (await stratus("replicas", "--json")).json() == []


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    stratus = Command(tmp_path)
    arguments = [sys.executable, "-m", "stratus", "config", "--json"]
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=stratus.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
