-- What was computed by a clock that was ahead is known by these, and moved.
ALTER TABLE dibs_queue_open ADD COLUMN given INTEGER NOT NULL DEFAULT 0; -- when its date was computed; 0 for a date of the message
ALTER TABLE dibs_queue_sessions ADD COLUMN lease INTEGER NOT NULL DEFAULT 86400000000; -- under which its end was computed

UPDATE dibs_store SET version = 3;
