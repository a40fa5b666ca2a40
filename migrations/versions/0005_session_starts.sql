CREATE TABLE session_start (
	platform TEXT NOT NULL, 
	account_key TEXT NOT NULL, 
	starts TIMESTAMP WITH TIME ZONE[] NOT NULL, 
	streak INTEGER NOT NULL, 
	next_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	CONSTRAINT session_start_pkey PRIMARY KEY (platform, account_key)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
