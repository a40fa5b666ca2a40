CREATE TABLE group_chat (
	platform TEXT NOT NULL, 
	chat_key TEXT NOT NULL, 
	bot_turns INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT group_chat_pkey PRIMARY KEY (platform, chat_key)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE TABLE group_message (
	id BIGINT GENERATED ALWAYS AS IDENTITY, 
	platform TEXT NOT NULL, 
	chat_key TEXT NOT NULL, 
	thread_key TEXT DEFAULT '' NOT NULL, 
	message_key TEXT NOT NULL, 
	inbox_id BIGINT NOT NULL, 
	observer_id BIGINT NOT NULL, 
	responder_id BIGINT, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	decided_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL, 
	CONSTRAINT group_message_pkey PRIMARY KEY (id), 
	CONSTRAINT group_message_platform_chat_key_message_key_key UNIQUE (platform, chat_key, message_key), 
	CONSTRAINT group_message_state_check CHECK (state IN ('accept', 'expired', 'hold', 'silent')), 
	CONSTRAINT group_message_responder_id_check CHECK ((state IN ('accept', 'expired', 'hold')) = (responder_id IS NOT NULL))
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0)
;;
CREATE INDEX group_message_held ON group_message (inbox_id) WHERE state = 'hold'
;;
CREATE INDEX group_message_said ON group_message (platform, chat_key, thread_key, id)
;;
CREATE OR REPLACE FUNCTION group_message_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state
     AND (OLD.state || '>' || NEW.state) NOT IN ('hold>accept', 'hold>expired', 'silent>accept', 'silent>hold') THEN
    RAISE EXCEPTION 'group_message: % > % is no move of the machine', OLD.state, NEW.state
      USING ERRCODE = 'ST001';
  END IF;
  RETURN NEW;
END $$
;;
CREATE TRIGGER group_message_move BEFORE UPDATE OF state ON group_message FOR EACH ROW EXECUTE FUNCTION group_message_move()
