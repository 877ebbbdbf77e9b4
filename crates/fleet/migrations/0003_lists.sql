-- What lists need at hand. Which definitions a version of an operator brings is asked for with every operator that is
-- shown, and would be fifty questions each. Another replica may still write, and waits: what it wrote before is gathered
-- here, what it writes later the triggers see.
lock table crds, crd_schemas in share row exclusive mode;
create table operator_crds (
    operator_name text not null,
    operator_version text not null,
    -- Sorted.
    crd_names text[] not null,
    primary key (operator_name, operator_version)
);

insert into operator_crds
select c.operator_name, s.operator_version, array_agg(c.name order by c.name collate "C")
from crds c join crd_schemas s on s.crd_id = c.id
where c.operator_name is not null
group by 1, 2;

create function operator_crds_add(operator text, version text, crd text) returns void language sql as $$
    insert into operator_crds as known values (operator, version, array[crd])
    on conflict (operator_name, operator_version) do update set crd_names = (
        select array_agg(distinct name collate "C" order by name collate "C")
        from unnest(known.crd_names || excluded.crd_names) name)
$$;

create function operator_crds_remove(operator text, version text, crd text) returns void language sql as $$
    update operator_crds set crd_names = array_remove(crd_names, crd)
    where operator_name = operator and operator_version = version;
    delete from operator_crds where operator_name = operator and operator_version = version and crd_names = '{}'
$$;

-- By triggers, so that nothing that writes a schema can forget it.
create function operator_crds_follow_schemas() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        perform operator_crds_add(operator_name, new.operator_version, name)
        from crds where id = new.crd_id and operator_name is not null;
    else
        perform operator_crds_remove(operator_name, old.operator_version, name)
        from crds where id = old.crd_id and operator_name is not null;
    end if;
    return null;
end $$;
create trigger operator_crds_follow after insert or delete on crd_schemas
    for each row execute function operator_crds_follow_schemas();

create function operator_crds_follow_owner() returns trigger language plpgsql as $$
begin
    if old.operator_name is not null then
        perform operator_crds_remove(old.operator_name, operator_version, old.name)
        from operator_crds where operator_name = old.operator_name and old.name = any(crd_names);
    end if;
    if tg_op = 'UPDATE' and new.operator_name is not null then
        perform operator_crds_add(new.operator_name, operator_version, new.name)
        from crd_schemas where crd_id = new.id;
    end if;
    return null;
end $$;
create trigger operator_crds_follow_change after update of operator_name on crds
    for each row when (old.operator_name is distinct from new.operator_name)
    execute function operator_crds_follow_owner();
create trigger operator_crds_follow_end after delete on crds
    for each row execute function operator_crds_follow_owner();

-- The name of a definition ends with its group.
create index crds_group on crds (substr(name, strpos(name, '.') + 1));
