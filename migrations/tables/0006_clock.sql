-- The store's clock may have been ahead for a while. What was computed by it then is known by these, and moved.
alter table dibs.queue_open add given timestamptz; -- l, s, h: when its date was computed, by the clock of then; null for a date of the message

comment on column dibs.queue_open.given is 'When the date was computed, by the clock of then; null for a date that the message has.';

alter table dibs.queue_sessions add lasts interval not null default '24 hours'; -- the lease under which its end was computed

comment on column dibs.queue_sessions.lasts is 'Its lease: the end is never later than so much from now.';

-- Its result has another column. It is not there yet where all files are new.
do $$
begin
  if to_regprocedure('dibs.queue_states()') is not null then
    drop function dibs.queue_states();
  end if;
end
$$;

delete from dibs.migrations where name = 'functions/queue_states.sql';
