ALTER TABLE agent ADD COLUMN needs text[] DEFAULT '{}' NOT NULL
;;
UPDATE agent SET needs = ARRAY['provider:' || split_part(definition ->> 'model', ':', 1)]
;;
ALTER TABLE replica ADD COLUMN capabilities text[] DEFAULT '{}' NOT NULL
;;
ALTER TABLE agent_run
    ADD COLUMN claims integer DEFAULT 0 NOT NULL,
    ADD COLUMN depth integer DEFAULT 0 NOT NULL,
    ADD COLUMN deadline_at timestamptz,
    ADD COLUMN busy text DEFAULT 'queue' NOT NULL,
    ADD COLUMN merged_into bigint REFERENCES agent_run (id),
    ADD CONSTRAINT agent_run_busy_check CHECK (busy IN ('queue', 'steer', 'interrupt', 'reject')),
    ADD CONSTRAINT agent_run_merged_into_check CHECK ((state = 'merged') = (merged_into IS NOT NULL)),
    ADD CONSTRAINT agent_run_parent_check CHECK ((parent_run_id IS NULL) = (parent_call_id IS NULL))
;;
CREATE UNIQUE INDEX agent_run_child ON agent_run (parent_run_id, parent_call_id) WHERE parent_run_id IS NOT NULL
;;
DROP INDEX agent_run_parent
;;
CREATE INDEX agent_run_open_child ON agent_run (parent_run_id)
    WHERE parent_run_id IS NOT NULL AND state IN ('queued', 'running', 'waiting')
;;
CREATE INDEX agent_run_deadline ON agent_run (deadline_at)
    WHERE deadline_at IS NOT NULL AND state IN ('queued', 'running', 'waiting')
;;
CREATE INDEX agent_run_steer ON agent_run (session_id) WHERE state = 'queued' AND busy = 'steer'
;;
CREATE INDEX agent_run_reached ON agent_run (principal_id, id) WHERE reply_to IS NOT NULL
;;
CREATE INDEX agent_run_waiting ON agent_run (id) WHERE state IN ('waiting')
;;
ALTER TABLE approval ADD COLUMN note text, ADD COLUMN offers integer DEFAULT 0 NOT NULL
;;
CREATE UNIQUE INDEX approval_call ON approval (run_id, call_id) WHERE state IN ('pending', 'approved')
