"""Who may see which rows: the two roles under which everything runs, their grants, and the policies that hold a turn to its agent's rows.

`stratus_app` sees all and owns nothing; `stratus_turn` sees what belongs to the agent that its transaction entered with, and nothing else.
docs/decisions/0010-row-level-security.md says why the agent's name is signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

APP = "stratus_app"
TURN = "stratus_turn"

# What a row must fulfil for a turn to see, change or make it. The inner SELECTs are themselves under the policy of the table that they read.
# They are not EXISTS, which the planner may answer by a hash of all the agent's sessions.
_BY_AGENT = "agent_id = (SELECT stratus_agent())"
_BY_SESSION = "(SELECT true FROM session s WHERE s.id = session_id)"
_BY_RUN = "(SELECT true FROM agent_run r WHERE r.id = run_id)"
PROTECTED: Mapping[str, str] = {
    "session": _BY_AGENT,
    "agent_run": _BY_AGENT,
    "message": _BY_SESSION,
    "session_event": _BY_SESSION,
    "session_execution": _BY_SESSION,
    "tool_call": _BY_RUN,
    "approval": _BY_RUN,
}

# Roles belong to the whole server: the migration of another of its databases may be making them at the same moment.
_ROLES = """
DO $$
DECLARE
    wanted text;
    may_set text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END;
    patience text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '20s', true);
    FOREACH wanted IN ARRAY ARRAY['stratus_app', 'stratus_turn'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        IF NOT pg_has_role(current_user, wanted, may_set) THEN
            BEGIN
                EXECUTE format('GRANT %I TO %I', wanted, current_user);
            EXCEPTION WHEN unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    PERFORM set_config('lock_timeout', patience, true);
    IF EXISTS (SELECT FROM pg_roles WHERE rolname IN ('stratus_app', 'stratus_turn') AND (rolsuper OR rolbypassrls))
       OR EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member WHERE r.rolname IN ('stratus_app', 'stratus_turn')) THEN
        RAISE EXCEPTION 'the roles stratus_app and stratus_turn must be no superusers, not bypass row security and be members of no role'
            USING ERRCODE = 'invalid_role_specification';
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format(
        E'%s may not make the roles of Stratus or be their member. As an administrator of the server run\\n'
        '  CREATE ROLE stratus_app NOLOGIN; CREATE ROLE stratus_turn NOLOGIN;\\n'
        '  GRANT stratus_app, stratus_turn TO %I;\\nand migrate again', current_user, current_user);
END $$
"""

_SECRET = """
CREATE TABLE turn_secret (
    one boolean DEFAULT true NOT NULL CONSTRAINT turn_secret_pkey PRIMARY KEY CONSTRAINT turn_secret_one_check CHECK (one),
    secret bytea DEFAULT sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')) NOT NULL
)
"""

_NEW_SECRET = "INSERT INTO turn_secret (one) VALUES (true)"

# Nested, because a plain hash of secret and name could be continued to that of a longer name.
_SIGN = """
CREATE FUNCTION stratus_sign(agent text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT encode(sha256(t.secret || sha256(t.secret || convert_to(agent, 'UTF8'))), 'hex') FROM turn_secret t) || ':' || agent;
END $$
"""

_ENTER = """
CREATE FUNCTION stratus_enter(agent text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM set_config('stratus.agent', stratus_sign(agent), true);
END $$
"""

# Of the statement's start for the planner, which so asks once for each statement and not for each row.
_AGENT = """
CREATE FUNCTION stratus_agent() RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
DECLARE
    signed text := current_setting('stratus.agent', true);
    agent text := substr(signed, 66);
BEGIN
    RETURN CASE WHEN signed = stratus_sign(agent) THEN agent END;
END $$
"""

# Owned by the turns' role, so that the statement runs as that role, and inside a security definer, where PostgreSQL lets no statement change
# its role. A cursor takes one statement, and one that answers with rows. What the statement may leave behind is undone: settings by the
# transaction's rollback, locks here.
_QUERY = """
CREATE FUNCTION stratus_query(statement text, args text[], rows_max int, bytes_max int) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    found record;
    line text;
    lines int := 0;
    bytes bigint := 0;
BEGIN
    FOR found IN EXECUTE statement USING args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8] LOOP
        line := to_json(found)::text;
        lines := lines + 1;
        bytes := bytes + octet_length(line);
        IF lines > rows_max OR bytes > bytes_max THEN
            RAISE EXCEPTION 'more than % rows or % bytes: ask for less', rows_max, bytes_max USING ERRCODE = 'ST002';
        END IF;
        RETURN NEXT line;
    END LOOP;
    PERFORM pg_advisory_unlock_all();
EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
    PERFORM pg_advisory_unlock_all();
    RAISE;
END $$
"""

# The new owner must be allowed to create in the schema at the moment of the change, and at no other.
_PLACES = f"""
DO $$
DECLARE
    home text := current_schema();
    signature text;
BEGIN
    FOREACH signature IN ARRAY ARRAY['stratus_sign(text)', 'stratus_enter(text)', 'stratus_agent()', 'stratus_query(text, text[], int, int)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', signature, home);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
    END LOOP;
    GRANT EXECUTE ON FUNCTION stratus_enter(text) TO {APP};
    GRANT EXECUTE ON FUNCTION stratus_agent() TO {TURN};
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO {TURN}', home);
    ALTER FUNCTION stratus_query(text, text[], int, int) OWNER TO {TURN};
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM {TURN}', home);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO {APP}', home);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO {APP}', home);
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO {APP}', home);
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {APP}', home);
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT USAGE ON SEQUENCES TO {APP}', home);
    REVOKE ALL ON turn_secret FROM {APP};
    IF to_regclass('stratus_version') IS NOT NULL THEN
        REVOKE INSERT, UPDATE, DELETE ON stratus_version FROM {APP};
    END IF;
END $$
"""


def statements() -> Sequence[str]:
    """Roles, functions, grants and policies, for tables that are there."""
    made = [_ROLES, _SECRET, _NEW_SECRET, _SIGN, _ENTER, _AGENT, _QUERY, _PLACES]
    for table, condition in PROTECTED.items():
        made += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY app ON {table} TO {APP} USING (true)",
            f"CREATE POLICY turn ON {table} TO {TURN} USING ({condition})",
            f"GRANT SELECT, INSERT, UPDATE ON {table} TO {TURN}",
        ]
    made.append(f"GRANT DELETE ON message, session_execution TO {TURN}")
    return [statement.strip() for statement in made]
