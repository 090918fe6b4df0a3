-- messagestore.textRule: 1 to 255 bytes, none of Unicode 15's Cc, Cf, Zl and Zp,
-- no White_Space at either end.
create or replace function dibs.valid_text(value text) returns boolean
language sql immutable parallel safe
return value is not null
  and octet_length(value) between 1 and 255
  and value collate "C" !~ (
    '[\u0001-\u001F\u007F-\u009F\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u180E'
    || '\u200B-\u200F\u2028-\u202E\u2060-\u2064\u2066-\u206F\uFEFF\uFFF9-\uFFFB'
    || '\U000110BD\U000110CD\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F]'
    || '|^[ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]'
    || '|[ \u0085\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]$');

comment on function dibs.valid_text(text) is 'Whether a name may be this text: 1 to 255 bytes, all visible, no white space at either end.';
