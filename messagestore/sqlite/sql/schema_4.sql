-- Also a dead item may have a place behind another of its stream, or keep its own: see package internal/queuestate.
DROP INDEX dibs_queue_open_after;
CREATE INDEX dibs_queue_open_linked ON dibs_queue_open (queue, after, position) WHERE after > 0;

UPDATE dibs_store SET version = 4;
