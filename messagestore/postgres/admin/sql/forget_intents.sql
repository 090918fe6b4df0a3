select f.outcome, f.intents, f.messages, f.next_position, f.more, f.key_life
from dibs.forget_intents($1::text, $2::timestamptz, $3::text, $4::bigint, $5::integer, $6::boolean, $7::uuid) f
