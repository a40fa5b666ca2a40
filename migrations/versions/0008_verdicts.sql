CREATE TABLE outbox_verdict (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	op_id BIGINT NOT NULL, 
	key UUID NOT NULL, 
	action TEXT NOT NULL, 
	by TEXT NOT NULL, 
	at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	from_state TEXT NOT NULL, 
	to_state TEXT NOT NULL, 
	note TEXT, 
	CONSTRAINT outbox_verdict_pkey PRIMARY KEY (id), 
	CONSTRAINT outbox_verdict_action_check CHECK (action IN ('sent', 'resend', 'cancel')), 
	CONSTRAINT outbox_verdict_op_id_fkey FOREIGN KEY(op_id) REFERENCES channel_outbox (id), 
	CONSTRAINT outbox_verdict_key_key UNIQUE (key)
)
;;
CREATE INDEX outbox_verdict_op ON outbox_verdict (op_id)
