-- Who is who. Everything else names people by id, so that a name is in one row and can be erased.
create table people (
    id uuid primary key,
    subject text unique,
    erased_at timestamptz
);

create table users (
    id uuid primary key references people,
    username text not null unique,
    password_hash text not null,
    roles text[] not null,
    environments text[],
    failures integer not null default 0,
    locked_until timestamptz,
    created_at timestamptz not null
);

create table operators (
    id uuid primary key,
    name text not null unique,
    description text not null,
    namespace text not null,
    chart_repository text not null,
    chart_name text not null,
    current_version text,
    latest_version text,
    has_update boolean not null default false,
    labels jsonb not null,
    default_values jsonb not null,
    -- Of the chart repository, sealed as a kubeconfig is; all three or none.
    credentials bytea,
    wrapped_key bytea,
    key_id text,
    revision bigint not null default 1,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    -- When its repository is asked again, and who is at it.
    refresh_at timestamptz not null,
    refresh_holder uuid
);
create index operators_labels on operators using gin (labels jsonb_path_ops);
create index operators_refresh on operators (refresh_at);

create table operator_versions (
    operator_id uuid not null references operators on delete cascade,
    version text not null,
    -- Newest first, set when the list is read from the repository.
    position integer not null,
    app_version text,
    released_at timestamptz,
    deprecated boolean not null default false,
    digest text,
    location text not null,
    changelog_url text,
    discovery text not null default 'Pending',
    discovery_message text,
    primary key (operator_id, version)
);

create table crds (
    id uuid primary key,
    name text not null unique,
    operator_name text,
    status text not null default 'Active',
    migration_guide text,
    deprecated_at timestamptz,
    deprecation_reason text,
    revision bigint not null default 1,
    created_at timestamptz not null,
    updated_at timestamptz not null
);
create index crds_operator on crds (operator_name);

create table crd_schemas (
    crd_id uuid not null references crds on delete cascade,
    operator_version text not null,
    -- Order of the operator's versions within one definition; the highest is the newest.
    position integer not null,
    definition jsonb not null,
    api_group text not null,
    kind text not null,
    scope text not null,
    api_versions text[] not null,
    digest text not null,
    changes jsonb not null,
    approval text not null,
    approved_by uuid references people,
    approved_at timestamptz,
    approval_notes text,
    created_at timestamptz not null,
    primary key (crd_id, operator_version)
);
create unique index crd_schemas_position on crd_schemas (crd_id, position);

-- Findings that somebody has taken responsibility for, one by one and for a time.
create table crd_waivers (
    crd_id uuid not null references crds on delete cascade,
    fingerprint text not null,
    person uuid not null references people,
    reason text not null,
    expires date not null,
    created_at timestamptz not null,
    primary key (crd_id, fingerprint)
);

-- A schema that waits for an approval does not wait when each of its breaking changes is waived today. A list of changes
-- that was cut short (200) may hide one.
create function approval_now(crd uuid, approval text, changes jsonb) returns text language sql stable as $$
    select case when approval = 'Pending' and jsonb_array_length(changes) < 200 and not exists (
        select from jsonb_array_elements(changes) change
        where (change->>'isBreaking')::boolean and not exists (
            select from crd_waivers w
            where w.crd_id = crd and w.fingerprint = change->>'fingerprint'
              and w.expires >= (now() at time zone 'utc')::date))
    then 'Waived' else approval end
$$;

create table clusters (
    id uuid primary key,
    name text not null unique,
    description text not null,
    environment text not null,
    api_server_url text not null,
    -- Sealed: ciphertext, the row's own key wrapped by the key that key_id names.
    kubeconfig bytea not null,
    wrapped_key bytea not null,
    key_id text not null,
    kubernetes_version text not null,
    nodes_ready integer not null,
    nodes_not_ready integer not null,
    latency_ms integer,
    health text not null,
    health_reason text not null,
    health_message text not null,
    health_since timestamptz,
    checked_at timestamptz,
    labels jsonb not null,
    enabled boolean not null default true,
    revision bigint not null default 1,
    registered_at timestamptz not null,
    updated_at timestamptz not null,
    -- When it is looked at again, and by whom; a holder that dies loses it when check_at has passed.
    check_at timestamptz not null,
    check_holder uuid
);
create index clusters_labels on clusters using gin (labels jsonb_path_ops);
create index clusters_check on clusters (check_at) where enabled;

create table cluster_crds (
    cluster_id uuid not null references clusters on delete cascade,
    name text not null,
    digest text not null,
    stored_versions text[] not null,
    seen_at timestamptz not null,
    primary key (cluster_id, name)
);
create index cluster_crds_name on cluster_crds (name);

-- Deployers that are bound in a cluster right now. The row is there before the binding and goes after it.
create table deployers (
    cluster_id uuid primary key references clusters on delete cascade,
    deployment_id uuid not null,
    bound_at timestamptz not null,
    until timestamptz not null
);

-- Append-only: the line is what the chain is made of. What can be erased is beside it.
create table audit (
    seq bigint primary key,
    at timestamptz not null,
    action text not null,
    outcome text not null,
    actor uuid not null references people,
    target_kind text not null,
    target_id text not null,
    trace_id text,
    line text not null
);
create index audit_at on audit (at);
create index audit_action on audit (action);
create index audit_actor on audit (actor);
create index audit_target on audit (target_kind, target_id);

-- The line holds a commitment to this; without the row nothing can be learnt from it.
create table audit_details (
    seq bigint primary key references audit,
    salt bytea not null,
    -- As text: the commitment is over these very bytes.
    details text not null
);

create table audit_head (
    singleton boolean primary key default true check (singleton),
    seq bigint not null,
    hash text not null,
    signed jsonb
);

create function audit_is_append_only() returns trigger language plpgsql as $$
begin
    raise exception 'the audit log is append-only';
end $$;
create trigger audit_keep before update or delete or truncate on audit
    for each statement execute function audit_is_append_only();

create table idempotency (
    person uuid not null references people,
    key text not null,
    operation text not null,
    request bytea not null,
    status smallint,
    body bytea,
    created_at timestamptz not null,
    primary key (person, key)
);
create index idempotency_age on idempotency (created_at);

-- Buckets of requests, shared by all replicas. What they hold is worth nothing after a crash.
create unlogged table rates (
    -- A hash: names of people are in `people` only.
    who bytea not null,
    operation text not null,
    remaining double precision not null,
    allowed boolean not null,
    seen timestamptz not null,
    primary key (who, operation)
);
create index rates_seen on rates (seen);
