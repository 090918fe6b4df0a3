-- messagestore.StreamName.Validate.
create or replace function dibs.valid_stream_name(name text) returns boolean
language sql immutable parallel safe
return dibs.valid_text(name)
  and name collate "C" ~ (
    '^[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+'
    || '(:[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+(\+[^-:+ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+)*)?'
    || '-[^+]+(\+[^+]+)*$');

comment on function dibs.valid_stream_name(text) is 'Whether a stream may have this name: category[:type[+type]]-id[+id], no part of it empty.';
