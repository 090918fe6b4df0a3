create or replace function dibs.group_hash(stream_name text) returns bigint
language sql immutable parallel safe
return ('x' || left(md5(coalesce(
    nullif(split_part(substr(stream_name, nullif(strpos(stream_name, '-'), 0) + 1), '+', 1), ''),
    split_part(stream_name, '-', 1)
  )), 16))::bit(64)::bigint;

comment on function dibs.group_hash(text) is
'Consumer groups are divided by it: message-db''s hash_64, the first half of the MD5, of the cardinal identifier (between the
first dash and the first plus sign), or of the category where there is none.';