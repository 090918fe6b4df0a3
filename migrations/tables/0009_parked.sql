-- Functions whose parameters have changed since; where one of them is there, all are.
do $$
begin
  if to_regprocedure('dibs.queue_alone(integer, boolean, bigint, bigint, timestamptz, bigint)') is not null then
    drop function dibs.queue_take(
      text, text, bigint, bigint, bigint[], integer[], text, bigint[], text[], integer, bigint, bigint, integer, boolean, integer, double precision, integer,
      bigint[], text[], bigint[]
    );
    drop function dibs.queue_alone(integer, boolean, bigint, bigint, timestamptz, bigint);
    drop function dibs.refuse_invalid_take(bigint, bigint, integer, bigint, integer, boolean, integer, double precision, integer, text[]);
  end if;
end
$$;

delete from dibs.migrations where name in ('functions/queue_take.sql', 'functions/queue_alone.sql', 'functions/refuse_invalid_take.sql');

-- A queue of parked messages follows no category.
comment on column dibs.queue_heads.cursor is
'All messages up to it were looked at. That of a queue of parked messages is 2^62, and its items are the messages that were parked.';
comment on column dibs.queue_open.state is
'o: out; l: later; h: held behind another; d: dead; k: dead, and what is behind it stays held; z: was held, and is finished; s: suspended, of a queue
of streams, or to be parked.';
