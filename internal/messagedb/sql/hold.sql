-- Under a lock that no writer of message-db's table shares: every message numbered so far
-- is in the table, no message with a lower number can follow, and none can change.
do $$
declare
  newest constant bigint := coalesce((select max(global_position) from message_store.messages), 0);
begin
  -- Replaced, and not dropped: that would take a stronger lock than the one that is held,
  -- and end in deadlocks with writers.
  execute format($sql$
    create or replace trigger dibs_adoption_refuse_numbered before insert on message_store.messages
    for each row when (new.global_position <= %s)
    execute function dibs_adoption.refuse_old('while it is adopted, new messages are numbered by its sequence')
  $sql$, newest);
  create or replace trigger dibs_adoption_refuse_change before update or delete or truncate on message_store.messages
  for each statement execute function dibs_adoption.refuse_old('while it is adopted, messages are only ever added');
  alter table message_store.messages enable always trigger dibs_adoption_refuse_numbered;
  alter table message_store.messages enable always trigger dibs_adoption_refuse_change;
  update dibs_adoption.state set held = newest, frontier = coalesce(frontier, newest);
end
$$;
