-- A function that may be asked for one queue alone, and says whether it has counted all.
do $$
begin
  if to_regprocedure('dibs.queue_states()') is not null then
    drop function dibs.queue_states();
  end if;
end
$$;

delete from dibs.migrations where name = 'functions/queue_states.sql';
