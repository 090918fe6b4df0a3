-- A take has the sessions of earlier attempts, and an extension those of its deliveries, so three functions have another parameter. They are not
-- there yet where all files are new.
do $$
begin
  if to_regprocedure('dibs.queue_extend(text, text, bigint, bigint, bigint[], integer[], jsonb)') is not null then
    drop function dibs.queue_take(
      text, text, bigint, bigint, bigint[], integer[], text, bigint[], text[], integer, bigint, bigint, integer, boolean, integer, double precision, integer,
      bigint[], text[], bigint[], bigint
    );
    drop function dibs.refuse_invalid_take(bigint, bigint, integer, bigint, integer, boolean, integer, double precision, integer, text[], bigint);
    drop function dibs.queue_extend(text, text, bigint, bigint, bigint[], integer[], jsonb);
  end if;
end
$$;

delete from dibs.migrations where name in ('functions/queue_take.sql', 'functions/refuse_invalid_take.sql', 'functions/queue_extend.sql');
