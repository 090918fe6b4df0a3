-- A deletion takes parked messages too.
do $$
begin
  if to_regprocedure('dibs.open_item(text, bigint, bigint)') is not null then
    drop function dibs.open_item(text, bigint, bigint);
  end if;
end
$$;

delete from dibs.migrations where name = 'functions/open_item.sql';
