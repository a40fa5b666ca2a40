CREATE TABLE schedule (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	public_id UUID DEFAULT gen_random_uuid() NOT NULL, 
	name TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	owner_id BIGINT NOT NULL, 
	cron TEXT NOT NULL, 
	time_zone TEXT NOT NULL, 
	input JSONB DEFAULT '{}' NOT NULL, 
	reply_to JSONB, 
	enabled BOOLEAN DEFAULT true NOT NULL, 
	catch_up TEXT NOT NULL, 
	next_at TIMESTAMP WITH TIME ZONE, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT schedule_pkey PRIMARY KEY (id), 
	CONSTRAINT schedule_catch_up_check CHECK (catch_up IN ('skip', 'one', 'all')), 
	CONSTRAINT schedule_next_at_check CHECK (enabled = (next_at IS NOT NULL)), 
	CONSTRAINT schedule_session_id_check CHECK (length(session_id) BETWEEN 1 AND 256), 
	CONSTRAINT schedule_public_id_key UNIQUE (public_id), 
	CONSTRAINT schedule_name_key UNIQUE (name), 
	CONSTRAINT schedule_owner_id_fkey FOREIGN KEY(owner_id) REFERENCES principal (id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE INDEX schedule_due ON schedule (next_at) WHERE enabled
;;
CREATE TABLE schedule_occurrence (
	schedule_id BIGINT NOT NULL, 
	due_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	state TEXT NOT NULL, 
	run_id BIGINT, 
	reason TEXT, 
	at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT schedule_occurrence_pkey PRIMARY KEY (schedule_id, due_at), 
	CONSTRAINT schedule_occurrence_run_id_key UNIQUE (run_id), 
	CONSTRAINT schedule_occurrence_state_check CHECK (state IN ('run', 'skipped')), 
	CONSTRAINT schedule_occurrence_reason_check CHECK (reason IN ('missed', 'superseded', 'too_many', 'overlap', 'agent_gone', 'session_of_another_agent', 'channel_off', 'owner_disabled', 'unreadable')), 
	CONSTRAINT schedule_occurrence_run_id_check CHECK ((state = 'run') = (run_id IS NOT NULL)), 
	CONSTRAINT schedule_occurrence_skipped_check CHECK ((state = 'skipped') = (reason IS NOT NULL)), 
	CONSTRAINT schedule_occurrence_schedule_id_fkey FOREIGN KEY(schedule_id) REFERENCES schedule (id), 
	CONSTRAINT schedule_occurrence_run_id_fkey FOREIGN KEY(run_id) REFERENCES agent_run (id)
)
