-- nothing is held in the end
select 'after ' || ((c.ended - c.at) / 1000) || ' ms: ' || coalesce(c.told ->> 'note', '') as finding from calls c, limits x where c.call = 'drain' and (c.ended - c.at > x.healed or c.answer <> 'ok')
union all
select stream || ': ' || answer || ' ' || note from seen where process = 'healer' and call = 'reserve' and answer not in ('reserved', 'done', 'reused');
