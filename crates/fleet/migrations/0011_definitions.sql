-- When the definitions of a cluster were last read, whichever there were. Null where they never were: that it has no row in
-- cluster_crds says nothing then.
alter table clusters add column definitions_seen_at timestamptz;
update clusters set definitions_seen_at = (select max(seen_at) from cluster_crds where cluster_id = clusters.id);
