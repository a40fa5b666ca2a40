CREATE OR REPLACE FUNCTION stratus_now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT statement_timestamp() $$
;;
CREATE SEQUENCE execution_token AS BIGINT
;;
CREATE TABLE agent (
	id TEXT NOT NULL, 
	revision BIGINT DEFAULT 0 NOT NULL, 
	definition JSONB DEFAULT '{}' NOT NULL, 
	enabled BOOLEAN DEFAULT true NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT agent_pkey PRIMARY KEY (id)
)
;;
CREATE TABLE channel (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	public_id UUID DEFAULT gen_random_uuid() NOT NULL, 
	platform TEXT NOT NULL, 
	name TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	config JSONB DEFAULT '{}' NOT NULL, 
	credentials BYTEA, 
	enabled BOOLEAN DEFAULT true NOT NULL, 
	config_revision BIGINT DEFAULT 1 NOT NULL, 
	account_key TEXT, 
	runtime_token BIGINT DEFAULT 0 NOT NULL, 
	runtime_holder UUID, 
	runtime_replica TEXT, 
	lease_until TIMESTAMP WITH TIME ZONE, 
	running_revision BIGINT, 
	cursor JSONB, 
	health JSONB DEFAULT '{}' NOT NULL, 
	last_error TEXT, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	deleted_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT channel_pkey PRIMARY KEY (id), 
	CONSTRAINT channel_lease_check CHECK ((runtime_holder IS NULL) = (lease_until IS NULL)), 
	CONSTRAINT channel_public_id_key UNIQUE (public_id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE UNIQUE INDEX channel_name_key ON channel (name) WHERE deleted_at IS NULL
;;
CREATE TABLE outbox_blob (
	sha256 BYTEA NOT NULL, 
	chunk INTEGER NOT NULL, 
	data BYTEA NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT outbox_blob_pkey PRIMARY KEY (sha256, chunk), 
	CONSTRAINT outbox_blob_sha256_check CHECK (octet_length(sha256) = 32)
)
;;
CREATE TABLE principal (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	public_id UUID DEFAULT gen_random_uuid() NOT NULL, 
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	disabled_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT principal_pkey PRIMARY KEY (id), 
	CONSTRAINT principal_role_check CHECK (role IN ('owner', 'admin', 'user', 'guest')), 
	CONSTRAINT principal_public_id_key UNIQUE (public_id)
)
;;
CREATE TABLE replica (
	id UUID NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	version TEXT NOT NULL, 
	roles JSONB DEFAULT '{}' NOT NULL, 
	started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	seen_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	draining BOOLEAN DEFAULT false NOT NULL, 
	CONSTRAINT replica_pkey PRIMARY KEY (id)
)
;;
CREATE TABLE session_event (
	session_id TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	run_id BIGINT, 
	run_seq INTEGER, 
	attempt INTEGER DEFAULT 0 NOT NULL, 
	kind TEXT NOT NULL, 
	payload JSONB DEFAULT '{}' NOT NULL, 
	at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT session_event_pkey PRIMARY KEY (session_id, seq), 
	CONSTRAINT session_event_run_id_run_seq_key UNIQUE (run_id, run_seq), 
	CONSTRAINT session_event_run_check CHECK ((run_id IS NULL) = (run_seq IS NULL))
)
;;
CREATE TABLE access_token (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	public_id UUID DEFAULT gen_random_uuid() NOT NULL, 
	principal_id BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT DEFAULT '' NOT NULL, 
	hash BYTEA NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	expires_at TIMESTAMP WITH TIME ZONE, 
	used_at TIMESTAMP WITH TIME ZONE, 
	revoked_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT access_token_pkey PRIMARY KEY (id), 
	CONSTRAINT access_token_kind_check CHECK (kind IN ('api', 'signin', 'session')), 
	CONSTRAINT access_token_public_id_key UNIQUE (public_id), 
	CONSTRAINT access_token_principal_id_fkey FOREIGN KEY(principal_id) REFERENCES principal (id), 
	CONSTRAINT access_token_hash_key UNIQUE (hash)
)
;;
CREATE TABLE channel_inbox (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	channel_id BIGINT NOT NULL, 
	event_key TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	version INTEGER DEFAULT 1 NOT NULL, 
	chat_key TEXT NOT NULL, 
	thread_key TEXT DEFAULT '' NOT NULL, 
	sender JSONB DEFAULT '{}' NOT NULL, 
	payload JSONB DEFAULT '{}' NOT NULL, 
	account_key TEXT, 
	state TEXT NOT NULL, 
	attempts INTEGER DEFAULT 0 NOT NULL, 
	not_before TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	received_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	routed_at TIMESTAMP WITH TIME ZONE, 
	run_id BIGINT, 
	outcome JSONB, 
	CONSTRAINT channel_inbox_pkey PRIMARY KEY (id), 
	CONSTRAINT channel_inbox_channel_id_event_key_key UNIQUE (channel_id, event_key), 
	CONSTRAINT channel_inbox_kind_check CHECK (kind IN ('message', 'edit', 'command', 'callback', 'member', 'migrate', 'other')), 
	CONSTRAINT channel_inbox_state_check CHECK (state IN ('dead', 'ignored', 'ready', 'received', 'rejected', 'routed')), 
	CONSTRAINT channel_inbox_routed_at_check CHECK ((state IN ('dead', 'ignored', 'rejected', 'routed')) = (routed_at IS NOT NULL)), 
	CONSTRAINT channel_inbox_channel_id_fkey FOREIGN KEY(channel_id) REFERENCES channel (id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE INDEX channel_inbox_ended ON channel_inbox (routed_at) WHERE routed_at IS NOT NULL
;;
CREATE INDEX channel_inbox_held ON channel_inbox (channel_id) WHERE state = 'received' OR (state = 'ready' AND attempts > 0)
;;
CREATE INDEX channel_inbox_ready ON channel_inbox (channel_id, id) WHERE state IN ('ready')
;;
CREATE TABLE identity (
	platform TEXT NOT NULL, 
	sender_key TEXT NOT NULL, 
	principal_id BIGINT NOT NULL, 
	name TEXT DEFAULT '' NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT identity_pkey PRIMARY KEY (platform, sender_key), 
	CONSTRAINT identity_principal_id_fkey FOREIGN KEY(principal_id) REFERENCES principal (id)
)
;;
CREATE TABLE outbox_lane (
	channel_id BIGINT NOT NULL, 
	lane TEXT NOT NULL, 
	last_seq BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT outbox_lane_pkey PRIMARY KEY (channel_id, lane), 
	CONSTRAINT outbox_lane_channel_id_fkey FOREIGN KEY(channel_id) REFERENCES channel (id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE TABLE session (
	id TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	owner_id BIGINT, 
	title TEXT DEFAULT '' NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	active_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	archived_at TIMESTAMP WITH TIME ZONE, 
	event_seq BIGINT DEFAULT 0 NOT NULL, 
	message_seq BIGINT DEFAULT 0 NOT NULL, 
	run_seq BIGINT DEFAULT 0 NOT NULL, 
	event_floor BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT session_pkey PRIMARY KEY (id), 
	CONSTRAINT session_id_check CHECK (length(id) BETWEEN 1 AND 256), 
	CONSTRAINT session_event_floor_check CHECK (event_floor <= event_seq), 
	CONSTRAINT session_owner_id_fkey FOREIGN KEY(owner_id) REFERENCES principal (id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE INDEX session_owner ON session (owner_id, active_at)
;;
CREATE TABLE agent_run (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	public_id UUID DEFAULT gen_random_uuid() NOT NULL, 
	session_id TEXT NOT NULL, 
	turn BIGINT NOT NULL, 
	agent_id TEXT NOT NULL, 
	principal_id BIGINT, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	runnable_at TIMESTAMP WITH TIME ZONE, 
	attempts INTEGER DEFAULT 0 NOT NULL, 
	request_key TEXT, 
	request_hash BYTEA, 
	actor JSONB DEFAULT '{}' NOT NULL, 
	input JSONB DEFAULT '{}' NOT NULL, 
	reply_to JSONB, 
	parent_run_id BIGINT, 
	parent_call_id TEXT, 
	inbox_id BIGINT, 
	worker_id TEXT, 
	finish_token UUID, 
	cancel_requested_at TIMESTAMP WITH TIME ZONE, 
	cancel_by TEXT, 
	error JSONB, 
	usage JSONB, 
	traceparent TEXT, 
	enqueued_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	started_at TIMESTAMP WITH TIME ZONE, 
	finished_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT agent_run_pkey PRIMARY KEY (id), 
	CONSTRAINT agent_run_session_id_turn_key UNIQUE (session_id, turn), 
	CONSTRAINT agent_run_session_id_request_key_key UNIQUE (session_id, request_key), 
	CONSTRAINT agent_run_kind_check CHECK (kind IN ('message', 'delegated', 'scheduled', 'notify')), 
	CONSTRAINT agent_run_attempts_check CHECK (attempts BETWEEN 0 AND 3), 
	CONSTRAINT agent_run_runnable_at_check CHECK (runnable_at IS NULL OR state = 'queued'), 
	CONSTRAINT agent_run_state_check CHECK (state IN ('canceled', 'completed', 'failed', 'interrupted', 'merged', 'queued', 'running', 'waiting')), 
	CONSTRAINT agent_run_finished_at_check CHECK ((state IN ('canceled', 'completed', 'failed', 'interrupted', 'merged')) = (finished_at IS NOT NULL)), 
	CONSTRAINT agent_run_public_id_key UNIQUE (public_id), 
	CONSTRAINT agent_run_session_id_fkey FOREIGN KEY(session_id) REFERENCES session (id), 
	CONSTRAINT agent_run_principal_id_fkey FOREIGN KEY(principal_id) REFERENCES principal (id), 
	CONSTRAINT agent_run_parent_run_id_fkey FOREIGN KEY(parent_run_id) REFERENCES agent_run (id), 
	CONSTRAINT agent_run_inbox_id_key UNIQUE (inbox_id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE INDEX agent_run_claim ON agent_run (runnable_at) WHERE state = 'queued' AND runnable_at IS NOT NULL
;;
CREATE INDEX agent_run_open ON agent_run (session_id, turn) WHERE state IN ('queued', 'running', 'waiting')
;;
CREATE INDEX agent_run_parent ON agent_run (parent_run_id) WHERE parent_run_id IS NOT NULL
;;
CREATE UNIQUE INDEX agent_run_running ON agent_run (session_id) WHERE state IN ('running')
;;
CREATE TABLE binding (
	channel_id BIGINT NOT NULL, 
	chat_key TEXT NOT NULL, 
	thread_key TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	revision BIGINT NOT NULL, 
	updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT binding_pkey PRIMARY KEY (channel_id, chat_key, thread_key), 
	CONSTRAINT binding_channel_id_fkey FOREIGN KEY(channel_id) REFERENCES channel (id), 
	CONSTRAINT binding_session_id_fkey FOREIGN KEY(session_id) REFERENCES session (id)
)
;;
CREATE TABLE approval (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	public_id UUID DEFAULT gen_random_uuid() NOT NULL, 
	run_id BIGINT NOT NULL, 
	call_id TEXT NOT NULL, 
	args_hash BYTEA NOT NULL, 
	state TEXT NOT NULL, 
	approvers JSONB DEFAULT '[]' NOT NULL, 
	requested_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	expires_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	decided_at TIMESTAMP WITH TIME ZONE, 
	decided_by TEXT, 
	prompt_op_id BIGINT, 
	CONSTRAINT approval_pkey PRIMARY KEY (id), 
	CONSTRAINT approval_state_check CHECK (state IN ('approved', 'closed', 'consumed', 'denied', 'expired', 'pending')), 
	CONSTRAINT approval_decided_at_check CHECK ((state IN ('approved', 'closed', 'consumed', 'denied', 'expired')) = (decided_at IS NOT NULL)), 
	CONSTRAINT approval_public_id_key UNIQUE (public_id), 
	CONSTRAINT approval_run_id_fkey FOREIGN KEY(run_id) REFERENCES agent_run (id)
)
;;
CREATE INDEX approval_open ON approval (expires_at) WHERE state IN ('pending')
;;
CREATE INDEX approval_run ON approval (run_id)
;;
CREATE TABLE channel_outbox (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	channel_id BIGINT NOT NULL, 
	lane TEXT NOT NULL, 
	lane_seq BIGINT NOT NULL, 
	run_id BIGINT, 
	kind TEXT NOT NULL, 
	address JSONB DEFAULT '{}' NOT NULL, 
	payload JSONB DEFAULT '{}' NOT NULL, 
	delivery_key TEXT NOT NULL, 
	depends_on BIGINT, 
	account_key TEXT, 
	state TEXT NOT NULL, 
	attempts INTEGER DEFAULT 0 NOT NULL, 
	attempt_seq INTEGER DEFAULT 0 NOT NULL, 
	not_before TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	attempt_token UUID, 
	attempt_deadline TIMESTAMP WITH TIME ZONE, 
	sent_message_id TEXT, 
	receipt JSONB, 
	error JSONB, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	settled_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT channel_outbox_pkey PRIMARY KEY (id), 
	CONSTRAINT channel_outbox_channel_id_delivery_key_key UNIQUE (channel_id, delivery_key), 
	CONSTRAINT channel_outbox_channel_id_lane_lane_seq_key UNIQUE (channel_id, lane, lane_seq), 
	CONSTRAINT channel_outbox_kind_check CHECK (kind IN ('send_reply', 'send_text', 'send_attachment', 'draft_update', 'send_group_reply', 'reaction', 'approval_prompt', 'edit_prompt', 'notify')), 
	CONSTRAINT channel_outbox_state_check CHECK (state IN ('canceled', 'failed', 'pending', 'sending', 'sent', 'unknown')), 
	CONSTRAINT channel_outbox_attempt_token_check CHECK ((state IN ('sending', 'unknown')) = (attempt_token IS NOT NULL)), 
	CONSTRAINT channel_outbox_settled_at_check CHECK ((state IN ('canceled', 'failed', 'sent')) = (settled_at IS NOT NULL)), 
	CONSTRAINT channel_outbox_channel_id_fkey FOREIGN KEY(channel_id) REFERENCES channel (id), 
	CONSTRAINT channel_outbox_run_id_fkey FOREIGN KEY(run_id) REFERENCES agent_run (id), 
	CONSTRAINT channel_outbox_depends_on_fkey FOREIGN KEY(depends_on) REFERENCES channel_outbox (id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE INDEX channel_outbox_depends ON channel_outbox (depends_on) WHERE depends_on IS NOT NULL
;;
CREATE INDEX channel_outbox_due ON channel_outbox (channel_id, id) WHERE state IN ('pending')
;;
CREATE INDEX channel_outbox_lane ON channel_outbox (channel_id, lane, lane_seq) WHERE state IN ('pending', 'sending')
;;
CREATE INDEX channel_outbox_run ON channel_outbox (run_id) WHERE run_id IS NOT NULL
;;
CREATE INDEX channel_outbox_unknown ON channel_outbox (channel_id, id) WHERE state IN ('unknown')
;;
CREATE TABLE message (
	session_id TEXT NOT NULL, 
	position BIGINT NOT NULL, 
	run_id BIGINT NOT NULL, 
	role TEXT NOT NULL, 
	parts JSONB DEFAULT '[]' NOT NULL, 
	tool_calls TEXT[] DEFAULT '{}' NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT message_pkey PRIMARY KEY (session_id, position), 
	CONSTRAINT message_role_check CHECK (role IN ('user', 'assistant', 'tool')), 
	CONSTRAINT message_position_check CHECK (position >= 1), 
	CONSTRAINT message_session_id_fkey FOREIGN KEY(session_id) REFERENCES session (id), 
	CONSTRAINT message_run_id_fkey FOREIGN KEY(run_id) REFERENCES agent_run (id)
)
;;
CREATE TABLE session_execution (
	session_id TEXT NOT NULL, 
	run_id BIGINT NOT NULL, 
	token BIGINT DEFAULT nextval('execution_token') NOT NULL, 
	holder UUID NOT NULL, 
	worker_id TEXT NOT NULL, 
	lease_until TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	renewed_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	progress_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	cancel_requested BOOLEAN DEFAULT false NOT NULL, 
	run_seq INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT session_execution_pkey PRIMARY KEY (session_id), 
	CONSTRAINT session_execution_session_id_fkey FOREIGN KEY(session_id) REFERENCES session (id), 
	CONSTRAINT session_execution_run_id_key UNIQUE (run_id), 
	CONSTRAINT session_execution_run_id_fkey FOREIGN KEY(run_id) REFERENCES agent_run (id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE TABLE tool_call (
	run_id BIGINT NOT NULL, 
	call_id TEXT NOT NULL, 
	step INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	args TEXT NOT NULL, 
	args_hash BYTEA NOT NULL, 
	effect TEXT NOT NULL, 
	state TEXT NOT NULL, 
	outcome JSONB, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	started_at TIMESTAMP WITH TIME ZONE, 
	ended_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT tool_call_pkey PRIMARY KEY (run_id, call_id), 
	CONSTRAINT tool_call_run_id_step_ordinal_key UNIQUE (run_id, step, ordinal), 
	CONSTRAINT tool_call_effect_check CHECK (effect IN ('read', 'idempotent', 'once')), 
	CONSTRAINT tool_call_state_check CHECK (state IN ('approved', 'awaiting', 'denied', 'done', 'expired', 'failed', 'proposed', 'started', 'unknown')), 
	CONSTRAINT tool_call_ended_at_check CHECK ((state IN ('denied', 'done', 'expired', 'failed', 'unknown')) = (ended_at IS NOT NULL)), 
	CONSTRAINT tool_call_run_id_fkey FOREIGN KEY(run_id) REFERENCES agent_run (id)
)
;;
CREATE INDEX tool_call_open ON tool_call (run_id) WHERE state IN ('proposed', 'awaiting', 'approved', 'started')
;;
CREATE TABLE outbox_attempt (
	op_id BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	token UUID NOT NULL, 
	runtime_token BIGINT NOT NULL, 
	holder UUID NOT NULL, 
	replica TEXT NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	started_at TIMESTAMP WITH TIME ZONE, 
	deadline TIMESTAMP WITH TIME ZONE, 
	ended_at TIMESTAMP WITH TIME ZONE, 
	outcome TEXT, 
	detail JSONB, 
	CONSTRAINT outbox_attempt_pkey PRIMARY KEY (op_id, attempt), 
	CONSTRAINT outbox_attempt_outcome_check CHECK (outcome IN ('sent', 'not_sent', 'retryable', 'permanent', 'unknown')), 
	CONSTRAINT outbox_attempt_ended_at_check CHECK ((outcome IS NULL) = (ended_at IS NULL)), 
	CONSTRAINT outbox_attempt_op_id_fkey FOREIGN KEY(op_id) REFERENCES channel_outbox (id), 
	CONSTRAINT outbox_attempt_token_key UNIQUE (token)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE OR REPLACE FUNCTION channel_inbox_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state
     AND (OLD.state || '>' || NEW.state) NOT IN ('ready>dead', 'ready>ignored', 'ready>rejected', 'ready>routed', 'received>dead', 'received>ready') THEN
    RAISE EXCEPTION 'channel_inbox: % > % is no move of the machine', OLD.state, NEW.state
      USING ERRCODE = 'ST001';
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER channel_inbox_move BEFORE UPDATE OF state ON channel_inbox FOR EACH ROW EXECUTE FUNCTION channel_inbox_move()
;;
CREATE OR REPLACE FUNCTION agent_run_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state
     AND (OLD.state || '>' || NEW.state) NOT IN ('queued>canceled', 'queued>merged', 'queued>running', 'running>canceled', 'running>completed', 'running>failed', 'running>interrupted', 'running>queued', 'running>waiting', 'waiting>canceled', 'waiting>queued') THEN
    RAISE EXCEPTION 'agent_run: % > % is no move of the machine', OLD.state, NEW.state
      USING ERRCODE = 'ST001';
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER agent_run_move BEFORE UPDATE OF state ON agent_run FOR EACH ROW EXECUTE FUNCTION agent_run_move()
;;
CREATE OR REPLACE FUNCTION tool_call_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state
     AND (OLD.state || '>' || NEW.state) NOT IN ('approved>failed', 'approved>started', 'awaiting>approved', 'awaiting>denied', 'awaiting>expired', 'awaiting>failed', 'proposed>awaiting', 'proposed>failed', 'proposed>started', 'started>done', 'started>failed', 'started>unknown') THEN
    RAISE EXCEPTION 'tool_call: % > % is no move of the machine', OLD.state, NEW.state
      USING ERRCODE = 'ST001';
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER tool_call_move BEFORE UPDATE OF state ON tool_call FOR EACH ROW EXECUTE FUNCTION tool_call_move()
;;
CREATE OR REPLACE FUNCTION approval_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state
     AND (OLD.state || '>' || NEW.state) NOT IN ('approved>closed', 'approved>consumed', 'pending>approved', 'pending>closed', 'pending>denied', 'pending>expired') THEN
    RAISE EXCEPTION 'approval: % > % is no move of the machine', OLD.state, NEW.state
      USING ERRCODE = 'ST001';
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER approval_move BEFORE UPDATE OF state ON approval FOR EACH ROW EXECUTE FUNCTION approval_move()
;;
CREATE OR REPLACE FUNCTION channel_outbox_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state
     AND (OLD.state || '>' || NEW.state) NOT IN ('pending>canceled', 'pending>failed', 'pending>sending', 'sending>failed', 'sending>pending', 'sending>sent', 'sending>unknown', 'unknown>canceled', 'unknown>pending', 'unknown>sent') THEN
    RAISE EXCEPTION 'channel_outbox: % > % is no move of the machine', OLD.state, NEW.state
      USING ERRCODE = 'ST001';
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER channel_outbox_move BEFORE UPDATE OF state ON channel_outbox FOR EACH ROW EXECUTE FUNCTION channel_outbox_move()
