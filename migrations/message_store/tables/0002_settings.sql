comment on table dibs.settings is
'One row, which the owner may update. With sql_condition, the functions of message_store take a condition, which runs with
the rights of their caller; a session that sets message_store.sql_condition to anything but on is refused one all the same. With
strict_names, they refuse names, types and data that dibs.append would refuse.';
