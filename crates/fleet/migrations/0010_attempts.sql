-- How often reading the chart of a version was begun and not finished: one that ends the server is not read for ever.
alter table operator_versions add column attempts integer not null default 0;
