-- A take is shared by other sessions, so a function has two more parameters. It is not there yet where all files are new.
do $$
begin
  if to_regprocedure('dibs.queue_take(text, text, bigint, bigint, bigint[], integer[], text, bigint[], text[], integer, bigint, bigint, integer, boolean, integer, double precision, integer, bigint[], text[], bigint[], bigint, bigint[])') is not null then
    drop function dibs.queue_take(
      text, text, bigint, bigint, bigint[], integer[], text, bigint[], text[], integer, bigint, bigint, integer, boolean, integer, double precision, integer,
      bigint[], text[], bigint[], bigint, bigint[]
    );
  end if;
end
$$;

delete from dibs.migrations where name = 'functions/queue_take.sql';
