-- Messages that a failed commit or a killed process left in the log after the
-- last good commit could come back when the log is read again after a crash. A
-- commit over it makes that impossible; this is one.
UPDATE dibs_store SET settled = settled + 1
