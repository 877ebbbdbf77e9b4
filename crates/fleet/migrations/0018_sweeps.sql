-- How often it was tried to take an overdue deployer back, and when that is tried again; until then it is somebody's who tries.
alter table deployers add column tries integer not null default 0;
alter table deployers add column try_at timestamptz;
