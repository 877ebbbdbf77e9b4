-- The first entry has the number 1; before it nobody looks. A row that is there already is for `gantry audit verify` to find,
-- and must not keep the server from its start.
alter table audit add constraint audit_seq_check check (seq >= 1) not valid;
