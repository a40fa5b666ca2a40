CREATE TABLE channel_rate (
	channel_id BIGINT NOT NULL, 
	scope TEXT NOT NULL, 
	next_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT channel_rate_pkey PRIMARY KEY (channel_id, scope), 
	CONSTRAINT channel_rate_channel_id_fkey FOREIGN KEY(channel_id) REFERENCES channel (id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
