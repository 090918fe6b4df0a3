-- When the lease of a session began: a take looks for those whose clock was ahead.
CREATE INDEX dibs_queue_sessions_begun ON dibs_queue_sessions (queue, until - lease);

UPDATE dibs_store SET version = 5;
