-- Of a definition in its cluster, by its uid and resourceVersion: what has the same need not be fetched again.
alter table cluster_crds add column revision text not null default '';
-- The uid of a cluster's kube-system namespace, which tells it from every other one. Null where we may not read it, and where
-- nobody gave credentials since this column is there.
alter table clusters add column identity text;
