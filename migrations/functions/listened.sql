-- PostgreSQL has transactions that notify commit one at a time, so a writer notifies only if a
-- session listens: that session holds a lock (0) for as long. Two writers that look at once may
-- take each other for a listener. A session that begins to listen waits (1) for the writers that
-- have looked and have not committed, and reads after that.
create or replace function dibs.listened() returns boolean
language sql volatile
return not case
  when not pg_try_advisory_xact_lock_shared(1684628076, 1) then false
  when pg_try_advisory_lock(1684628076, 0) then pg_advisory_unlock(1684628076, 0)
  else false
end;

comment on function dibs.listened() is
'Whether a session of this database has called dibs.listen; sometimes true where none has. For short transactions: a session
that begins to listen waits for their end.';