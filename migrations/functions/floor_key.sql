-- The upper 16 bits tell schemas of one database apart, and most keys of others.
create or replace function dibs.floor_key("position" bigint) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
return (('dibs.messages_global_position_seq'::regclass::oid::bigint # 25705) & 65535) << 48 | "position";

comment on function dibs.floor_key(bigint) is 'The key of the lock of a transaction that draws no global position up to the given one.';
