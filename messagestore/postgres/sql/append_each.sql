select a.outcomes, a.versions, a.global_positions, a.times,
  a.met_positions, a.met_global_positions, a.met_ids, a.met_times, a.met_types, a.met_data, a.met_metadata, a.met_at
from dibs.append_each($1::text[], $2::bigint[], $3::integer[], $4::bigint[], $5::uuid[], $6::text[], $7::json[], $8::json[], $9::boolean, $10::boolean[], $11::boolean[]) a
