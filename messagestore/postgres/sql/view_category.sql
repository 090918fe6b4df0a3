-- A page of a category, and one message more. It compares as the index is in order and has a
-- limit that is written out, so that the plan does not hang on what is known of one category,
-- and parameters that planning does not look at, so that one plan is for all.
select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
from (
  select s.id, s.stream_name, s.type, s.position, s.global_position, s.data, s.metadata, s.time
  from dibs.stored_messages s
  where (s.category, s.global_position) operator(pg_catalog.>=) ((select $1::text), (select $2::bigint))
    and s.category operator(pg_catalog.<=) (select $1::text)
  order by s.category, s.global_position
  limit 1002
) m
limit (select $3::integer)
