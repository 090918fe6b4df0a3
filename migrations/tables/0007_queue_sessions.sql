-- A delivery is ended by the session that has it, so two functions have another parameter. They are not there yet where all files are new.
do $$
begin
  if to_regprocedure('dibs.queue_finish(text, text, bigint[], integer[])') is not null then
    drop function dibs.queue_take(
      text, text, bigint, bigint, bigint[], integer[], text, bigint[], text[], integer, bigint, bigint, integer, boolean, integer, double precision, integer,
      bigint[], text[]
    );
    drop function dibs.queue_finish(text, text, bigint[], integer[]);
  end if;
end
$$;

delete from dibs.migrations where name in ('functions/queue_take.sql', 'functions/queue_finish.sql');

-- An item whose session was over twice may be what ended it, and is delivered alone.
alter table dibs.queue_open add ends smallint not null default 0; -- how often its session was over, of one that was given back by that
alter table dibs.queue_heads add suspects boolean not null default false; -- there may be rows of two ends or more: later with an after of 0, or out
alter table dibs.queue_heads add apart bigint; -- the session that takes nothing more until it may have one of them alone

comment on column dibs.queue_open.ends is 'How often its session was over. With two it is delivered alone, and later with an after of 0.';
comment on column dibs.queue_heads.suspects is 'Whether there may be rows whose session was over twice.';
comment on column dibs.queue_heads.apart is 'The session that takes nothing more until it has nothing out, and then a row whose session was over twice.';
