-- dibs.messages is the store.
do $$
begin
  drop trigger dibs_adoption_refuse_native on dibs.messages;
  create trigger dibs_adoption_note_removed after delete on dibs.messages
  referencing old table as gone
  for each statement execute function dibs_adoption.note_removed();
  perform dibs.grant_rights();
end
$$;
