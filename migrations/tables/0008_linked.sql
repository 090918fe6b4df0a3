-- A dead item that is offered again takes its place in its stream.
alter table dibs.queue_heads add linked boolean not null default false; -- rows may be linked to another than the one before them in their stream

comment on column dibs.queue_heads.linked is 'Whether rows may be linked to another than the one before them in their stream.';
comment on column dibs.queue_heads.held is 'How many rows are linked: have an after, other than 0.';
comment on column dibs.queue_open.after is
'The position of the row that this one is linked to. h waits there; z, d and k keep the place of what is behind them, and leave it as soon as
they come first. With its own position: an o behind which items wait that are to go before the next message, so that it is behind them
when its delivery ends. 0 of an l: it is delivered alone. While a row of a stream is o or l, or is k, each other row of the stream, but a d that is not
linked, is linked to that, over others perhaps, and so is that of the last message that the cursor has come to.';
