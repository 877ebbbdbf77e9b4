-- What an answer tells of that may have to be erased: found without looking through all answers. Null where that was not looked
-- for, by the version before, or is too much.
alter table idempotency add column told text[];
-- Without a list of what is still to be added: it would be looked through each time.
create index idempotency_told on idempotency using gin (told) with (fastupdate = off);
create index idempotency_untold on idempotency (person, key) where told is null and body is not null;
