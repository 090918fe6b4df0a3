create or replace function dibs.drawn() returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select case when s.is_called then s.last_value else s.last_value - 1 end from dibs.messages_global_position_seq s
$$;

comment on function dibs.drawn() is 'The last global position that was drawn, by a transaction that has ended or not.';
