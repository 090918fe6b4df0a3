-- A client that has lost the answer to a write asks find_messages for its outcome. The write may
-- not even have begun then: it may be on its way still. So that "it was not written" is true for
-- ever, the answer raises the category's fence, and a call of append that was sent before, with
-- the fence as it was, is turned away.
create table dibs.fences (
  category text collate "C" primary key,
  fence bigint not null,

  -- A write to an empty stream has to know. Every writer reads this row, and so need not look for
  -- erased streams.
  erased boolean not null default false,

  -- A category that was written to in callers' transactions that overlap: positions do not become
  -- visible in order there, and a reader stops below those that may still come.
  shared boolean not null default false
);

comment on table dibs.fences is
'How often find_messages did not find something in a category, whether a stream of it was ever erased, and whether writers
share its lock; no row for never.';
