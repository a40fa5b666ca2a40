"""The migrated schema is the declared one, CHECKs, functions and triggers included, and every statement fits it."""

from __future__ import annotations

import importlib
import pkgutil
import re

import asyncpg
import pytest

import stratus.store
from stratus.store import ddl, migrate
from testbed.postgres import TestCluster

CATALOG = """
SELECT 'column' AS what, c.table_name || '.' || c.column_name AS name,
       concat_ws(' ', c.data_type, c.is_nullable, c.column_default, c.is_identity) AS text
  FROM information_schema.columns c WHERE c.table_schema = 'public'
UNION ALL
SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'storage', relname, array_to_string(reloptions, ',') FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
UNION ALL
SELECT 'policy', tablename || '.' || policyname, concat_ws(' ', permissive, roles, cmd, qual, with_check) FROM pg_policies WHERE schemaname = 'public'
UNION ALL
SELECT 'row security', relname, concat_ws(' ', relrowsecurity, relforcerowsecurity) FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
UNION ALL
SELECT 'grant on a relation', relname || ' to ' || grantee::regrole || ': ' || privilege_type, is_grantable::text
  FROM pg_class, aclexplode(relacl) WHERE relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'grant on a function', proname || ' to ' || grantee::regrole || ': ' || privilege_type, is_grantable::text
  FROM pg_proc, aclexplode(proacl) WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT 'grant on the schema', nspname || ' to ' || grantee::regrole || ': ' || privilege_type, is_grantable::text
  FROM pg_namespace, aclexplode(nspacl) WHERE nspname = 'public' AND grantee IN ('stratus_app'::regrole, 'stratus_turn'::regrole)
UNION ALL
SELECT 'grant to come', defaclobjtype::text || ' to ' || grantee::regrole || ': ' || privilege_type, is_grantable::text
  FROM pg_default_acl, aclexplode(defaclacl) WHERE defaclnamespace = 'public'::regnamespace
UNION ALL
SELECT 'owner', proname, proowner::regrole::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


async def catalog(dsn: str) -> set[tuple[str, str, str]]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(CATALOG)
        return {(row["what"], row["name"], row["text"] or "") for row in rows if "stratus_version" not in row["name"]}
    finally:
        await connection.close()


async def declared(cluster: TestCluster, extra: str = "") -> set[tuple[str, str, str]]:
    dsn = await cluster.create()
    connection = await asyncpg.connect(dsn)
    await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for statement in ddl.statements():
        await connection.execute(statement)
    if extra:
        await connection.execute(extra)
    await connection.close()
    try:
        return await catalog(dsn)
    finally:
        await cluster.drop(dsn)


async def test_migrated_equals_declared(cluster: TestCluster, dsn: str) -> None:
    assert await catalog(dsn) ^ await declared(cluster) == set()


@pytest.mark.parametrize(
    "drift",
    [
        "ALTER TABLE agent_run DROP CONSTRAINT agent_run_state_check",
        "ALTER TABLE channel ADD COLUMN surprise int",
        "DROP INDEX agent_run_claim",
        "DROP TRIGGER agent_run_move ON agent_run",
        "ALTER TABLE session RESET (fillfactor)",
        "ALTER POLICY turn ON message USING (true)",
        "DROP POLICY app ON tool_call",
        "ALTER TABLE approval DISABLE ROW LEVEL SECURITY",
        "GRANT SELECT ON channel TO stratus_turn",
        "REVOKE UPDATE ON session FROM stratus_app",
        "GRANT EXECUTE ON FUNCTION stratus_enter(text) TO stratus_turn",
        "GRANT CREATE ON SCHEMA public TO stratus_turn",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE INSERT ON TABLES FROM stratus_app",
        "ALTER FUNCTION stratus_query(text, text[], int, int) OWNER TO CURRENT_USER",
    ],
)
async def test_drift_of_each_kind_is_found(cluster: TestCluster, dsn: str, drift: str) -> None:
    assert await catalog(dsn) ^ await declared(cluster, drift) != set()


async def test_head_is_what_alembic_reaches(dsn: str) -> None:
    assert await migrate.current(dsn) == migrate.head()


def statements() -> list[tuple[str, str]]:
    found = []
    for info in pkgutil.walk_packages(stratus.store.__path__, "stratus.store."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, str) and re.match(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", value):
                found.append((f"{info.name}.{name}", value))
    return found


async def test_every_statement_prepares_against_the_migrated_schema(dsn: str) -> None:
    named = statements()
    assert len(named) > 40
    connection = await asyncpg.connect(dsn)
    try:
        for name, sql in named:
            try:
                await connection.prepare(sql)
            except asyncpg.PostgresError as error:
                pytest.fail(f"{name}: {error}")
    finally:
        await connection.close()
