-- A queue as pgmq's are, written from its documentation: a table with a time until which a row is invisible,
-- read by skip locked, and functions that run their statements by execute, which plans them at each call.
create schema pgmq_shape;

create table pgmq_shape.q_items (
  msg_id bigint primary key generated always as identity,
  read_ct integer not null default 0,
  enqueued_at timestamptz not null default now(),
  vt timestamptz not null,
  message jsonb,
  headers jsonb
);

create index on pgmq_shape.q_items (vt);

create function pgmq_shape.send_batch(queue text, messages jsonb[]) returns setof bigint language plpgsql as $$
begin
  return query execute format(
    'insert into pgmq_shape.%I (vt, message) select clock_timestamp(), unnest($1) returning msg_id', 'q_' || queue
  ) using messages;
end
$$;

create function pgmq_shape.read(queue text, invisible integer, quantity integer) returns setof pgmq_shape.q_items language plpgsql as $$
begin
  return query execute format(
    'with found as (
       select msg_id from pgmq_shape.%1$I where vt <= clock_timestamp() order by msg_id limit $1 for update skip locked
     )
     update pgmq_shape.%1$I m set vt = clock_timestamp() + $2, read_ct = read_ct + 1
     from found where m.msg_id = found.msg_id
     returning m.*', 'q_' || queue
  ) using quantity, make_interval(secs => invisible);
end
$$;

create function pgmq_shape.delete(queue text, ids bigint[]) returns setof bigint language plpgsql as $$
begin
  return query execute format('delete from pgmq_shape.%I where msg_id = any ($1) returning msg_id', 'q_' || queue) using ids;
end
$$;
