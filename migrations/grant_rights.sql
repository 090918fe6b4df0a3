-- Acts as the owner of the function. No row if the user may not.
select set_config('role', pg_get_userbyid(proowner), true)
from pg_proc
where pronamespace = to_regnamespace('dibs') and proname = 'grant_rights' and pronargs = 0
  and pg_has_role(session_user, proowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end)
