-- The definitions in the chart of a version, sorted. Null where it was not read in full: what is not in the list may be in
-- the chart then.
alter table operator_versions add column brings text[];
