-- What a definition is answered with can have megabytes, in each of many answers: its name is kept instead, and a request that
-- is repeated is told what there is then.
alter table idempotency add column about text;
