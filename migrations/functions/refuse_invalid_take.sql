create or replace function dibs.refuse_invalid_take(
  me bigint, lease bigint, want integer, wait bigint, max_failures integer, hold boolean, max_out integer, rate double precision, burst integer,
  wakes text[], of_slots bigint
) returns void
language plpgsql immutable
as $$
declare
  field text;
  rule text;
begin
  case
    when (me > 0) is not true then field := 'me'; rule := 'it is more than 0';
    when (lease between 10000 and 86400000000) is not true then field := 'lease'; rule := 'it is 10 milliseconds to 24 hours, in microseconds';
    when (want between 0 and 1000) is not true then field := 'want'; rule := 'it is 0 to 1000';
    when wait not between 0 and 900000000 then field := 'wait'; rule := 'it is 0 to 15 minutes, in microseconds';
    when (max_failures between 1 and 32767) is not true then field := 'max_failures'; rule := 'it is 1 to 32767';
    when hold is null then field := 'hold'; rule := 'it is not null';
    when max_out <= 0 then field := 'max_out'; rule := 'it is at least 1, or null';
    when rate is not null and (rate > 0 and rate < 'Infinity') is not true then field := 'rate'; rule := 'it is more than 0 and finite, or null';
    when rate is not null and (burst > 0) is not true then field := 'burst'; rule := 'it is at least 1';
    when wakes is not null and (cardinality(wakes) between 1 and 100) is not true then
      field := 'wakes'; rule := 'they are 1 to 100 types, or null';
    when of_slots is not null and (of_slots between 1 and 4294967295 and wakes is null) is not true then
      field := 'of_slots'; rule := 'they are 1 to 4294967295, and a queue of streams has none';
    else field := 'ended_positions'; rule := 'the arrays are of one length, at most 1000, and each kind is one of c, r, f, u, x and t, in a queue of streams w and s, and in one of items b';
  end case;
  raise exception 'invalid %: %', field, rule using errcode = 'DB001', column = field;
end
$$;

comment on function dibs.refuse_invalid_take(bigint, bigint, integer, bigint, integer, boolean, integer, double precision, integer, text[], bigint) is
'Raises DB001, with the parameter as the column, for a take that cannot be.';
