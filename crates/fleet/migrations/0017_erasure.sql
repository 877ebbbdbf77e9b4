-- Under which ids somebody tried to reach a server with credentials that were given for it. Where nothing came of that, nothing
-- is ever removed under the id, and what is in the log of it is found here.
create table attempts (
    target_id text primary key,
    server text not null,
    -- Of the first one.
    at timestamptz not null
);
create index attempts_at on attempts (at);
-- Addresses may be too long for another kind of index.
create index attempts_server on attempts using hash (server);

-- By a trigger: a replica of the version before may still be at work.
create function attempts_follow() returns trigger language plpgsql as $$
begin
    insert into attempts
    select target_id, new.details::jsonb->>'server', at from audit
    where seq = new.seq and action = 'cluster.accessed' and new.details::jsonb->>'server' is not null
    on conflict do nothing;
    return null;
end $$;
create trigger attempts_follow after insert on audit_details
    for each row when (position('"server":' in new.details) > 0) execute function attempts_follow();

insert into attempts
select a.target_id, min(d.details::jsonb->>'server'), min(a.at) from audit_details d join audit a on a.seq = d.seq
where a.action = 'cluster.accessed' and position('"server":' in d.details) > 0
    and d.details::jsonb->>'server' is not null
    and not exists (select from clusters c where c.id::text = a.target_id)
group by a.target_id;
