-- As view_category.sql is made. The tombstone is that of a stream that was erased, and is empty.
(
  select m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time
  from (
    select s.id, s.stream_name, s.type, s.position, s.global_position, s.data, s.metadata, s.time
    from dibs.stored_messages s
    where (s.stream_name, s.position) operator(pg_catalog.>=) ((select $1::text), (select $2::bigint))
      and s.stream_name operator(pg_catalog.<=) (select $1::text)
    order by s.stream_name, s.position
    limit 1001
  ) m
  limit (select $3::integer)
)
union all
select t.id, t.stream_name, t.type, t.position, t.global_position, t.data, t.metadata, t.time
from dibs.erased_tombstone($1::text) t
where (select e.any_stream from dibs.erased e) and t.position operator(pg_catalog.>=) $2::bigint
