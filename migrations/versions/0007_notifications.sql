CREATE TABLE notification (
	target TEXT NOT NULL, 
	dedup_key TEXT NOT NULL, 
	id UUID NOT NULL, 
	body_hash BYTEA NOT NULL, 
	channel_id BIGINT NOT NULL, 
	pieces INTEGER NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT notification_pkey PRIMARY KEY (target, dedup_key)
)
