-- What was computed by a clock that was ahead is known by these, and moved.
ALTER TABLE dibs_queue_open ADD COLUMN given INTEGER NOT NULL DEFAULT 0; -- when its date was computed; 0 for a date of the message
ALTER TABLE dibs_queue_sessions ADD COLUMN lease INTEGER NOT NULL DEFAULT 86400000000; -- under which its end was computed

-- An item whose session was over twice may be what ended it, and is delivered alone.
ALTER TABLE dibs_queue_open ADD COLUMN ends INTEGER NOT NULL DEFAULT 0; -- how often its session was over
ALTER TABLE dibs_queues ADD COLUMN suspects INTEGER NOT NULL DEFAULT 0; -- whether there may be such items
ALTER TABLE dibs_queues ADD COLUMN apart INTEGER NOT NULL DEFAULT 0; -- the session that takes nothing more until it may have one of them alone

UPDATE dibs_store SET version = 3;
