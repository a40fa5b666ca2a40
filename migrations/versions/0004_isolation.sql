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
        E'%s may not make the roles of Stratus or be their member. As an administrator of the server run\n'
        '  CREATE ROLE stratus_app NOLOGIN; CREATE ROLE stratus_turn NOLOGIN;\n'
        '  GRANT stratus_app, stratus_turn TO %I;\nand migrate again', current_user, current_user);
END $$
;;
CREATE TABLE turn_secret (
    one boolean DEFAULT true NOT NULL CONSTRAINT turn_secret_pkey PRIMARY KEY CONSTRAINT turn_secret_one_check CHECK (one),
    secret bytea DEFAULT sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')) NOT NULL
)
;;
INSERT INTO turn_secret (one) VALUES (true)
;;
CREATE FUNCTION stratus_sign(agent text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT encode(sha256(t.secret || sha256(t.secret || convert_to(agent, 'UTF8'))), 'hex') FROM turn_secret t) || ':' || agent;
END $$
;;
CREATE FUNCTION stratus_enter(agent text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM set_config('stratus.agent', stratus_sign(agent), true);
END $$
;;
CREATE FUNCTION stratus_agent() RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
DECLARE
    signed text := current_setting('stratus.agent', true);
    agent text := substr(signed, 66);
BEGIN
    RETURN CASE WHEN signed = stratus_sign(agent) THEN agent END;
END $$
;;
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
;;
DO $$
DECLARE
    home text := current_schema();
    signature text;
BEGIN
    FOREACH signature IN ARRAY ARRAY['stratus_sign(text)', 'stratus_enter(text)', 'stratus_agent()', 'stratus_query(text, text[], int, int)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', signature, home);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', signature);
    END LOOP;
    GRANT EXECUTE ON FUNCTION stratus_enter(text) TO stratus_app;
    GRANT EXECUTE ON FUNCTION stratus_agent() TO stratus_turn;
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO stratus_turn', home);
    ALTER FUNCTION stratus_query(text, text[], int, int) OWNER TO stratus_turn;
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM stratus_turn', home);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO stratus_app', home);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO stratus_app', home);
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO stratus_app', home);
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO stratus_app', home);
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT USAGE ON SEQUENCES TO stratus_app', home);
    REVOKE ALL ON turn_secret FROM stratus_app;
    IF to_regclass('stratus_version') IS NOT NULL THEN
        REVOKE INSERT, UPDATE, DELETE ON stratus_version FROM stratus_app;
    END IF;
END $$
;;
ALTER TABLE session ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON session TO stratus_app USING (true)
;;
CREATE POLICY turn ON session TO stratus_turn USING (agent_id = (SELECT stratus_agent()))
;;
GRANT SELECT, INSERT, UPDATE ON session TO stratus_turn
;;
ALTER TABLE agent_run ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON agent_run TO stratus_app USING (true)
;;
CREATE POLICY turn ON agent_run TO stratus_turn USING (agent_id = (SELECT stratus_agent()))
;;
GRANT SELECT, INSERT, UPDATE ON agent_run TO stratus_turn
;;
ALTER TABLE message ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON message TO stratus_app USING (true)
;;
CREATE POLICY turn ON message TO stratus_turn USING ((SELECT true FROM session s WHERE s.id = session_id))
;;
GRANT SELECT, INSERT, UPDATE ON message TO stratus_turn
;;
ALTER TABLE session_event ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON session_event TO stratus_app USING (true)
;;
CREATE POLICY turn ON session_event TO stratus_turn USING ((SELECT true FROM session s WHERE s.id = session_id))
;;
GRANT SELECT, INSERT, UPDATE ON session_event TO stratus_turn
;;
ALTER TABLE session_execution ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON session_execution TO stratus_app USING (true)
;;
CREATE POLICY turn ON session_execution TO stratus_turn USING ((SELECT true FROM session s WHERE s.id = session_id))
;;
GRANT SELECT, INSERT, UPDATE ON session_execution TO stratus_turn
;;
ALTER TABLE tool_call ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON tool_call TO stratus_app USING (true)
;;
CREATE POLICY turn ON tool_call TO stratus_turn USING ((SELECT true FROM agent_run r WHERE r.id = run_id))
;;
GRANT SELECT, INSERT, UPDATE ON tool_call TO stratus_turn
;;
ALTER TABLE approval ENABLE ROW LEVEL SECURITY
;;
CREATE POLICY app ON approval TO stratus_app USING (true)
;;
CREATE POLICY turn ON approval TO stratus_turn USING ((SELECT true FROM agent_run r WHERE r.id = run_id))
;;
GRANT SELECT, INSERT, UPDATE ON approval TO stratus_turn
;;
GRANT DELETE ON message, session_execution TO stratus_turn
