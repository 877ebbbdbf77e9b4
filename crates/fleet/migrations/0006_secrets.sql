-- Secrets of the server itself that all replicas share, sealed as a kubeconfig is.
create table server_secrets (
    name text primary key,
    id uuid not null,
    secret bytea not null,
    wrapped_key bytea not null,
    key_id text not null
);

-- What a repeated request was recognised by was a plain hash of it, from which a weak password could be found. Those who
-- repeat one of these within the day are told that the key was used.
update idempotency set request = ''::bytea;

-- Details that name clusters that are gone: nothing would erase them any more. Entries of today name them by id.
delete from audit_details d using audit a
where a.seq = d.seq and a.action = 'crd.proof-asked' and exists (
    select from jsonb_array_elements_text(d.details::jsonb->'clusters') named
    where not exists (select from clusters c where c.name = named));
