-- Messages that a transaction adds as its last step. None outlives its transaction, so no write of them
-- is logged, and a transaction finds its own by its id, past the dead rows of others.
create unlogged table dibs.staged (
  xact xid8 not null,
  n bigint generated always as identity,
  stream text collate "C" not null,
  expected bigint not null,
  id uuid not null,
  type text not null,
  data json,
  metadata json,
  primary key (xact, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 2000000000);

comment on table dibs.staged is 'Messages that a transaction adds as its last step; none outlives its transaction.';
