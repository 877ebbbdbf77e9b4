-- The definitions in the chart of a version, sorted. Null where it was not read in full: what is not in the list may be in
-- the chart then.
alter table operator_versions add column brings text[];

-- The definitions of operators that are gone are nobody's.
update crds set operator_name = null
where operator_name is not null and not exists (select from operators where name = crds.operator_name);
