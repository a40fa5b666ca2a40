"""A turn sees its own agent's rows, and nothing that its SQL can say changes that: roles, grants, policies, and every way out that we know."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from stratus.domain.errors import BadInput, BadSetting, Broken, LeaseLost, TooLarge
from stratus.domain.event import NewEvent
from stratus.store.database import Connection, Database, Timeouts
from stratus.store.execution import Step, commit_step
from stratus.store.isolation import APP, PROTECTED, TURN
from stratus.store.message import histories
from stratus.store.rows import ROWS_MAX, StoredRows
from stratus.store.run import ClaimedRun, claim
from stratus.store.schema import metadata
from stratus.store.tool_call import NewCall, calls_of
from tests.store.world import as_owner, new_run, queue, rows

# Why a turn needs nothing of them. A table that is neither here nor protected fails the test: decide where it belongs.
UNGRANTED = {
    "agent": "definitions of other agents; a turn has its own in memory",
    "access_token": "hashes of tokens",
    "binding": "which chat leads to which session: the router's",
    "channel": "credentials",
    "channel_inbox": "the router's",
    "channel_rate": "delivery's",
    "channel_outbox": "replies are planned by the end of a turn, as the replica",
    "group_chat": "the router's",
    "group_message": "the router's",
    "identity": "who people are on platforms",
    "notification": "the replica's",
    "outbox_attempt": "delivery's",
    "outbox_blob": "delivery's",
    "outbox_lane": "delivery's",
    "outbox_verdict": "the operators'",
    "principal": "who people are",
    "replica": "for operators",
    "schedule": "the scheduler's",
    "schedule_occurrence": "the scheduler's",
    "session_start": "delivery's",
    "stratus_version": "the migrations'",
    "turn_secret": "what signs a turn's agent",
}

GRANTS = """
SELECT c.relname, c.relrowsecurity, coalesce(array_agg(a.privilege_type::text) FILTER (WHERE a.privilege_type IS NOT NULL), '{}') AS turn
  FROM pg_class c LEFT JOIN LATERAL (SELECT * FROM aclexplode(c.relacl) WHERE grantee IN (0, $1::regrole)) a ON true
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') GROUP BY 1, 2
"""
OWNED = """
SELECT relname::text FROM pg_class WHERE relowner = $1::regrole
 UNION ALL SELECT proname::text FROM pg_proc WHERE proowner = $1::regrole
 UNION ALL SELECT nspname::text FROM pg_namespace WHERE nspowner = $1::regrole
"""
POWERS = """
SELECT rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolcanlogin OR rolreplication AS any,
       EXISTS (SELECT FROM pg_auth_members WHERE member = r.oid) AS member
  FROM pg_roles r WHERE rolname = $1
"""

FILL = """
INSERT INTO session_event (session_id, seq, kind) SELECT id, 50, 'usage' FROM session;
INSERT INTO tool_call (run_id, call_id, step, ordinal, name, args, args_hash, effect, state)
SELECT id, 'seed', 90, 1, 't', '{}', '', 'read', 'proposed' FROM agent_run;
INSERT INTO approval (run_id, call_id, args_hash, state, expires_at) SELECT id, 'seed', '', 'pending', clock_timestamp() FROM agent_run;
"""
# For each protected table: which agent a row belongs to; a change that breaks nothing; a row of the other agent, by its run and session.
OWNER_OF: dict[str, str] = {
    "session": "t.agent_id",
    "agent_run": "t.agent_id",
    "message": "(SELECT agent_id FROM session s WHERE s.id = t.session_id)",
    "session_event": "(SELECT agent_id FROM session s WHERE s.id = t.session_id)",
    "session_execution": "(SELECT agent_id FROM session s WHERE s.id = t.session_id)",
    "tool_call": "(SELECT agent_id FROM agent_run r WHERE r.id = t.run_id)",
    "approval": "(SELECT agent_id FROM agent_run r WHERE r.id = t.run_id)",
}
CHANGE: dict[str, str] = {
    "session": "title = 'mine now'",
    "agent_run": "cancel_by = 'me'",
    "message": "role = 'tool'",
    "session_event": "kind = 'mine'",
    "session_execution": "worker_id = 'me'",
    "tool_call": "name = 'mine'",
    "approval": "decided_by = 'me'",
}
INSERT: dict[str, str] = {
    "session": "INSERT INTO session (id, agent_id) VALUES ('new', '{agent}')",
    "agent_run": "INSERT INTO agent_run (session_id, turn, agent_id, kind, state) VALUES ('{session}', 99, '{agent}', 'message', 'queued')",
    "message": "INSERT INTO message (session_id, position, run_id, role) VALUES ('{session}', 99, {run}, 'user')",
    "session_event": "INSERT INTO session_event (session_id, seq, kind) VALUES ('{session}', 99, 'usage')",
    "session_execution": (
        "INSERT INTO session_execution (session_id, run_id, token, holder, worker_id) VALUES ('{session}', {run}, 1, gen_random_uuid(), 'w') "
        "ON CONFLICT (session_id) DO UPDATE SET worker_id = 'me'"
    ),
    "tool_call": (
        "INSERT INTO tool_call (run_id, call_id, step, ordinal, name, args, args_hash, effect, state) "
        "VALUES ({run}, 'new', 91, 1, 't', '{{}}', '', 'read', 'proposed')"
    ),
    "approval": (
        "INSERT INTO approval (run_id, call_id, args_hash, state, expires_at) VALUES ({run}, 'new', '', 'pending', clock_timestamp())"
    ),
}

# A statement that PostgreSQL runs from inside another one, when that has had the time to change settings.
INNER = "ts_stat($$ SELECT to_tsvector('simple', parts::text) FROM message $$)"


@pytest.fixture
async def turns(db: Database) -> AsyncIterator[dict[str, ClaimedRun]]:
    """A running turn each of the agents `a` and `b`, with a row in every protected table."""
    await queue(db, new_run("sa", "alpha", agent="a"), new_run("sb", "bravo", agent="b"))
    claimed = {one.agent_id: one for one in await claim(db, "w", 10, 60.0)}
    await db.transact(lambda c: c.execute(FILL))
    yield claimed


async def seen(db: Database, sql: str, agent: str | None = "a") -> list[Any]:
    """The first column as a turn of that agent sees it; without one as the turns' role that has entered for nobody."""

    async def work(connection: Connection) -> list[Any]:
        if agent is None:
            await connection.execute(f"SELECT set_config('role', '{TURN}', true)")
        return [row[0] for row in await connection.fetch(sql)]

    return await db.transact(work, idempotent=True, agent=agent)


def test_every_protected_table_is_in_the_cases() -> None:
    assert set(PROTECTED) == set(OWNER_OF) == set(CHANGE) == set(INSERT)


@pytest.mark.parametrize("table", PROTECTED)
async def test_a_turn_reads_changes_and_deletes_only_its_own(
    db: Database, turns: dict[str, ClaimedRun], table: str
) -> None:
    both = await rows(db, f"SELECT DISTINCT {OWNER_OF[table]} AS agent FROM {table} t ORDER BY 1")
    assert both == [{"agent": "a"}, {"agent": "b"}]
    before = await rows(db, f"SELECT * FROM {table} t WHERE {OWNER_OF[table]} = 'b' ORDER BY 1")
    assert set(await seen(db, f"SELECT {OWNER_OF[table]} FROM {table} t")) == {"a"}
    assert set(await seen(db, f"SELECT {OWNER_OF[table]} FROM {table} t", "b")) == {"b"}
    changed = await seen(db, f"UPDATE {table} t SET {CHANGE[table]} RETURNING {OWNER_OF[table]}")
    assert changed and set(changed) == {"a"}
    if table in ("message", "session_execution"):
        assert await seen(db, f"DELETE FROM {table} RETURNING session_id") == ["sa"]
    else:
        with pytest.raises(Broken, match="permission denied"):
            await seen(db, f"DELETE FROM {table} RETURNING 1")
    assert await rows(db, f"SELECT * FROM {table} t WHERE {OWNER_OF[table]} = 'b' ORDER BY 1") == before


@pytest.mark.parametrize("table", PROTECTED)
async def test_a_turn_adds_no_row_to_another_agent(db: Database, turns: dict[str, ClaimedRun], table: str) -> None:
    mine = INSERT[table].format(agent="a", session="sa", run=turns["a"].lease.run_id)
    others = INSERT[table].format(agent="b", session="sb", run=turns["b"].lease.run_id)
    await seen(db, mine)
    with pytest.raises(Broken, match="row-level security"):
        await seen(db, others)


@pytest.mark.parametrize("table", ["session", "agent_run"])
async def test_a_turn_gives_no_row_away(db: Database, turns: dict[str, ClaimedRun], table: str) -> None:
    with pytest.raises(Broken, match="row-level security"):
        await seen(db, f"UPDATE {table} SET agent_id = 'b'")


@pytest.mark.parametrize("table", PROTECTED)
async def test_without_an_agent_there_is_nothing(db: Database, turns: dict[str, ClaimedRun], table: str) -> None:
    assert await seen(db, f"SELECT 1 FROM {table}", None) == []
    assert await seen(db, f"SELECT 1 FROM {table}", "nobody") == []
    assert await seen(db, f"SELECT 1 FROM {table}", "") == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT m.parts::text FROM message m JOIN session s ON s.id = m.session_id JOIN agent_run r ON r.id = m.run_id",
        "SELECT parts::text FROM message WHERE session_id = 'sb' OR session_id = 'sa'",
        "SELECT string_agg(parts::text, '') FROM message",
        "SELECT parts::text FROM (SELECT * FROM message UNION ALL SELECT * FROM message) m",
        "WITH ids AS (SELECT run_id FROM session_event) SELECT parts::text FROM message WHERE run_id IN (SELECT run_id FROM ids)",
        f"SELECT word FROM {INNER}",
    ],
)
async def test_no_way_of_asking_shows_more(db: Database, turns: dict[str, ClaimedRun], sql: str) -> None:
    found = "".join(await seen(db, sql))
    assert "alpha" in found and "bravo" not in found


async def test_every_table_is_protected_or_withheld(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    found = {row["relname"]: row for row in await connection.fetch(GRANTS, TURN)}
    await connection.close()
    assert set(metadata.tables) <= set(found)
    for name, row in found.items():
        if name in PROTECTED:
            assert row["relrowsecurity"], f"{name} has no row-level security"
            assert "SELECT" in row["turn"], f"{name} is protected, but no turn may read it"
        else:
            assert name in UNGRANTED, f"{name} is new: protect it, or say why a turn needs nothing of it"
            assert row["turn"] == [], f"a turn may read {name}"


async def test_the_roles_own_nothing_and_have_no_powers(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    owned = {role: [row[0] for row in await connection.fetch(OWNED, role)] for role in (APP, TURN)}
    powers = {role: tuple(await connection.fetchrow(POWERS, role) or ()) for role in (APP, TURN)}
    await connection.close()
    assert owned == {APP: [], TURN: ["stratus_query"]}
    assert powers == {APP: (False, False), TURN: (False, False)}


async def test_every_connection_of_the_store_runs_as_the_app(db: Database) -> None:
    for pool in ("main", "ingress", "tools"):
        assert await db.read(lambda c: c.fetchval("SELECT current_user::text"), pool=pool) == APP
    assert await db.transact(lambda c: c.fetchval("SELECT current_user::text")) == APP
    assert await seen(db, "SELECT current_user::text") == [TURN]
    assert await db.transact(lambda c: c.fetchval("SELECT current_user::text")) == APP
    with pytest.raises(Broken, match="must be owner"):
        await db.transact(lambda c: c.execute("ALTER TABLE session DISABLE ROW LEVEL SECURITY"))
    with pytest.raises(Broken, match="permission denied"):
        await db.read(lambda c: c.fetch("SELECT * FROM turn_secret"))


async def test_a_connection_that_lost_its_role_on_the_way_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a pooler that is told to ignore the startup parameter."""
    whole = Timeouts.server_settings
    monkeypatch.setattr(
        Timeouts, "server_settings", lambda t, name: {k: v for k, v in whole(t, name).items() if k != "role"}
    )
    db = Database(dsn)
    with pytest.raises(BadSetting, match="not for stratus_app"):
        await db.open()


WAYS_OUT = [
    f"SELECT set_config('role', 'stratus_app', true), (SELECT string_agg(word, ' ') FROM {INNER})",
    f"SELECT set_config('role', 'none', true), (SELECT string_agg(word, ' ') FROM {INNER})",
    f"SELECT set_config('session_authorization', session_user, true), (SELECT string_agg(word, ' ') FROM {INNER})",
    f"SELECT set_config('row_security', 'off', true), (SELECT string_agg(word, ' ') FROM {INNER})",
    "SELECT set_config('stratus.agent', 'b', true), (SELECT string_agg(parts::text, '') FROM message)",
    "SELECT set_config('stratus.agent', left(current_setting('stratus.agent'), 65) || 'b', true), "
    f"(SELECT string_agg(word, ' ') FROM {INNER})",
    f"SELECT stratus_enter('b'), (SELECT string_agg(word, ' ') FROM {INNER})",
    "SELECT stratus_sign('b')",
    "SELECT secret FROM turn_secret",
    "SELECT stratus_query('SELECT * FROM message', '{}', 100, 100000)",
    "SELECT query_to_xml('SELECT * FROM message', true, false, '')::text",
    "SELECT most_common_vals::text FROM pg_stats WHERE tablename = 'message'",
    "SELECT query FROM pg_stat_activity WHERE query LIKE '%bravo%'",
    "SELECT 1; SELECT * FROM message",
    "RESET ROLE",
    "SET ROLE stratus_app",
    "COMMIT",
    "DELETE FROM message",
    "WITH gone AS (UPDATE message SET role = 'user' RETURNING parts) SELECT * FROM gone",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
]


@pytest.mark.parametrize("sql", WAYS_OUT)
async def test_a_tools_query_finds_no_way_out(db: Database, turns: dict[str, ClaimedRun], sql: str) -> None:
    told = StoredRows(db, "a")
    try:
        found = repr(await told.fetch(sql))
    except (Broken, BadInput) as error:
        found = str(error)
    assert "bravo" not in found
    assert await told.fetch("SELECT session_id, current_user FROM message") == [
        {"session_id": "sa", "current_user": TURN}
    ]
    assert await rows(db, "SELECT current_user::text AS who, count(*) AS n FROM message") == [{"who": APP, "n": 2}]


async def test_a_tools_query_reads_with_arguments(db: Database, turns: dict[str, ClaimedRun]) -> None:
    told = StoredRows(db, "a")
    sql = "SELECT id, turn, $2::boolean AS yes, $3::text AS nothing FROM agent_run WHERE turn = $1::int"
    assert await told.fetch(sql, 1, True, None) == [
        {"id": turns["a"].lease.run_id, "turn": 1, "yes": True, "nothing": None}
    ]
    assert await told.fetch("SELECT id FROM session WHERE id = $1 -- no more", "sb") == []
    with pytest.raises(BadInput, match="at most 8"):
        await told.fetch("SELECT 1", *range(9))


async def test_a_tools_query_is_bounded(db: Database, dsn: str) -> None:
    told = StoredRows(db, "a")
    assert len(await told.fetch(f"SELECT generate_series(1, {ROWS_MAX})")) == ROWS_MAX
    with pytest.raises(TooLarge, match="ask for less"):
        await told.fetch(f"SELECT generate_series(1, {ROWS_MAX + 1})")
    with pytest.raises(TooLarge, match="ask for less"):
        await told.fetch("SELECT repeat('x', 1000000) FROM generate_series(1, 10)")
    hasty = Database(dsn, timeouts=Timeouts(statement=0.2), main_size=1)
    await hasty.open()
    with pytest.raises(BadInput, match="took longer"):
        await StoredRows(hasty, "a").fetch("SELECT pg_sleep(20)")
    await hasty.close()


async def test_a_tools_query_leaves_nothing_behind(db: Database) -> None:
    told = StoredRows(db, "a")
    await told.fetch("SELECT pg_advisory_lock(7), set_config('search_path', 'nowhere', false)")
    with pytest.raises(Broken, match="division by zero"):
        await told.fetch("SELECT pg_advisory_lock(8), 1 / (random() * 0)::int")
    left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    assert await db.read(lambda c: c.fetchval(left)) == 0
    assert await db.read(lambda c: c.fetchval("SHOW search_path"), pool="tools") == '"$user", public'


async def test_a_step_runs_as_its_agent(db: Database, turns: dict[str, ClaimedRun]) -> None:
    """The store's own statements too: a lease that names another agent than its session's writes nothing."""
    mine = turns["a"]
    step = Step(mine.lease, mine.run_seq, 1, 1, [NewEvent("usage", {})], [], [NewCall("c1", "t", "{}", "read")])
    await commit_step(db, step)
    assert [call.call_id for call in await calls_of(db, mine.lease.run_id, agent="a")] == ["c1", "seed"]
    assert await calls_of(db, mine.lease.run_id, agent="b") == []
    theirs = turns["b"]
    confused = type(theirs.lease)(**{**vars(theirs.lease), "agent_id": "a"})
    with pytest.raises(LeaseLost):
        await commit_step(db, Step(confused, theirs.run_seq, 1, 1, [NewEvent("usage", {})]))
    told = await histories(db, [mine.lease, confused])
    assert len(told["sa"]) == 1 and told["sb"] == []


@pytest.mark.parametrize(
    "gap",
    [
        "ALTER TABLE message DISABLE ROW LEVEL SECURITY",
        "CREATE POLICY wide ON message TO stratus_turn USING (true)",
        "ALTER TABLE session DISABLE ROW LEVEL SECURITY",
        "CREATE OR REPLACE FUNCTION stratus_agent() RETURNS text LANGUAGE sql STABLE AS "
        "$$ SELECT substr(current_setting('stratus.agent', true), 66) $$",
        "ALTER FUNCTION stratus_query(text, text[], int, int) SECURITY INVOKER",
    ],
)
async def test_each_guard_is_needed(db: Database, dsn: str, turns: dict[str, ClaimedRun], gap: str) -> None:
    """The negative fixture: with one guard less, one of the ways out leads out."""
    await as_owner(dsn, gap)
    told = StoredRows(db, "a")
    found = ""
    for sql in ["SELECT parts::text FROM message", *WAYS_OUT]:
        try:
            found += repr(await told.fetch(sql))
        except (Broken, BadInput):
            continue
    assert "bravo" in found
