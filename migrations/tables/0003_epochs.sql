-- After a rollback of the store, to a backup or a standby that was behind, the messages that a
-- consumer has read may be there, and the writes of its handlers lost. By a failover and a restore
-- to a moment the server gets another timeline. Files that are put back have the one they had, and
-- only the operator can tell: the operator raises the epoch. No other history of the store has had
-- the same id.
create table dibs.epochs (
  number bigint not null default 0,
  id uuid not null default gen_random_uuid(),
  raised_at timestamptz
);

create unique index epochs_one_row on dibs.epochs ((true));

insert into dibs.epochs default values;

comment on table dibs.epochs is 'One row: how often the epoch was raised, and when last, and an id that it was given then.';

