-- The first message of a stream from a position on, and below another, that is an open item of a queue or
-- waits for one, and the queue's name; nulls for none.
create or replace function dibs.open_item(stream text, first bigint, below bigint, but_parked boolean default false, out "position" bigint, out queue text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
  q record;
  found_at bigint;
begin
  for q in
    select x.name, x.id, coalesce((select h.cursor from dibs.queue_heads h where h.queue = x.id order by h.version desc limit 1), 0) as cursor
    from dibs.queues x
    where x.category = split_part(stream, '-', 1) and x.removed is null
  loop
    continue when but_parked and q.cursor = 4611686018427387904;
    select m.position into found_at
    from dibs.messages m
    where m.stream_name = stream and m.position >= first and m.position < coalesce(open_item.position, below) and m.type <> 'dibs:Tombstone'
      and (
        m.global_position > q.cursor
        or exists (select from dibs.queue_open o where o.queue = q.id and o.position = m.global_position and o.state <> 'z')
      )
    order by m.position
    limit 1;
    if found then
      position := found_at;
      queue := q.name;
    end if;
  end loop;
end
$$;

comment on function dibs.open_item(text, bigint, bigint, boolean) is
'The first message of a stream between two positions that a queue has not finished, and the name of the queue; nulls for none. But_parked leaves out the queues of parked messages.';
