-- Uses of a cluster with a token that is at hand, counted before they take place. A row stands for one hour; when that is
-- over it becomes one entry of the audit log, in the transaction that removes it.
create table cluster_accesses (
    cluster_id uuid not null references clusters on delete cascade,
    -- `reader`, or `uploaded` where no reader could be made.
    identity text not null,
    purpose text not null,
    hour timestamptz not null,
    count bigint not null,
    failures bigint not null default 0,
    first_at timestamptz not null,
    last_at timestamptz not null,
    primary key (cluster_id, identity, purpose, hour)
);
create index cluster_accesses_hour on cluster_accesses (hour);
