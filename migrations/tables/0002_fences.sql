-- Whoever has lost the answer to a write asks find_messages what became of it. The
-- write may not even have begun then: it may be on its way still. So that "it was not
-- written" is true for ever, the answer raises the category's fence, and a call of
-- append that was sent before, with the fence as it was, is turned away.
create table dibs.fences (
  category text collate "C" primary key,
  fence bigint not null,

  -- It is looked for by whoever writes to a stream that is empty, so it is here, where
  -- every writer looks, that it may not have to.
  erased boolean not null default false
);

comment on table dibs.fences is
'How often find_messages did not find something in a category, and whether a stream of it was ever erased; no row for never.';

