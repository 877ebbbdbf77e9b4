-- An answer that is given again has the ETag that it had.
alter table idempotency add column revision bigint;
