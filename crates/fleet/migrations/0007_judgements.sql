-- What breaks on the way back to the version before it. Null where nobody has looked yet; a task does.
alter table crd_schemas add column back jsonb;
-- Found in a chart: what somebody registers before the chart is read counts until then.
alter table crd_schemas add column from_chart boolean not null default false;
