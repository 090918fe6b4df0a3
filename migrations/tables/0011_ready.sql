-- Functions whose results have changed: a parked message is an item of a queue.
do $$
begin
  if to_regprocedure('dibs.queue_ready(text, text)') is not null then
    drop function dibs.queue_ready(text, text);
    drop function dibs.trim(text, bigint, timestamptz, text, interval, integer, boolean, uuid, bigint);
  end if;
end
$$;

delete from dibs.migrations where name in ('functions/queue_ready.sql', 'functions/trim.sql');
