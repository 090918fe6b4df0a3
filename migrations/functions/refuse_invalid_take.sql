create or replace function dibs.refuse_invalid_take(
  me bigint, lease bigint, want integer, wait bigint, max_failures integer, hold boolean, max_out integer, rate double precision, burst integer,
  wakes text[], of_slots bigint, resumed bigint[]
) returns void
language plpgsql immutable
as $$
declare
  field text;
  rule text;
begin
  case
    when (me > 0) is not true then field := 'me'; rule := 'must be more than 0';
    when (lease between 10000 and 86400000000) is not true then field := 'lease'; rule := 'must be between 10 ms and 24 h, in microseconds';
    when (want between 0 and 1000) is not true then field := 'want'; rule := 'must be between 0 and 1000';
    when wait not between 0 and 900000000 then field := 'wait'; rule := 'must be between 0 and 15 min, in microseconds';
    when (max_failures between 1 and 32767) is not true then field := 'max_failures'; rule := 'must be between 1 and 32767';
    when hold is null then field := 'hold'; rule := 'must not be null';
    when max_out <= 0 then field := 'max_out'; rule := 'must be at least 1, or null';
    when rate is not null and (rate > 0 and rate < 'Infinity') is not true then field := 'rate'; rule := 'must be more than 0 and finite, or null';
    when rate is not null and (burst > 0) is not true then field := 'burst'; rule := 'must be at least 1';
    when wakes is not null and (cardinality(wakes) between 1 and 100) is not true then
      field := 'wakes'; rule := 'must be 1 to 100 types, or null';
    when of_slots is not null and (of_slots between 1 and 4294967295 and wakes is null) is not true then
      field := 'of_slots'; rule := 'must be between 1 and 4294967295, or null for a queue of streams';
    when resumed is not null and (
      cardinality(resumed) between 1 and 100 and 0 < all (resumed) and me <> all (resumed) and wakes is null and of_slots is null
    ) is not true then
      field := 'resumed'; rule := 'must be 1 to 100 other sessions, or null for a queue of streams or of parked messages';
    else field := 'ended_positions'; rule := 'must be arrays of one length, at most 1000, and each kind one of c, r, f, u, x and t, w or s for a queue of streams, or b for a queue of items';
  end case;
  raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field;
end
$$;

comment on function dibs.refuse_invalid_take(bigint, bigint, integer, bigint, integer, boolean, integer, double precision, integer, text[], bigint, bigint[]) is
'Raises DB001, with the parameter as the column, for a take that cannot be.';
