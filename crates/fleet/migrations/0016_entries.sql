-- The log grows for ever. Entries of one target are found in their order, and whether somebody did anything since a time is told
-- by one of theirs.
drop index audit_target;
drop index audit_actor;
create index audit_target on audit (target_kind, target_id, seq);
create index audit_actor on audit (actor, at);
