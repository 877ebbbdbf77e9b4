-- Of tens of thousands of definitions a few wait for somebody, who asks for those.
create index crd_schemas_approval on crd_schemas (approval);
