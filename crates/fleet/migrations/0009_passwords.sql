-- Tokens of a local user end when the password is changed: they are of its generation.
alter table users add column generation integer not null default 0;
