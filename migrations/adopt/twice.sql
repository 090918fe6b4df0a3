-- Only asked of a table that has lost a unique index.
select
  (select count(*) from (select from message_store.messages group by id having count(*) > 1) d),
  (select count(*) from (select from message_store.messages group by stream_name, position having count(*) > 1) d)
