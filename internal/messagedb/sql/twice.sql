-- Only asked of a table that has lost a unique index, and for those that it lost.
select
  case when $1::boolean then 0 else (select count(*) from (select from message_store.messages group by id having count(*) > 1) d) end,
  case when $2::boolean then 0 else (select count(*) from (select from message_store.messages group by global_position having count(*) > 1) d) end,
  case when $3::boolean then 0 else (select count(*) from (select from message_store.messages group by stream_name, position having count(*) > 1) d) end
