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
