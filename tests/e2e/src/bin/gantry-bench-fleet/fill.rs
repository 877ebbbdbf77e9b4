//! A full fleet: 500 operators with 50 definitions each, and 100 clusters that have some of them.

use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use futures::{StreamExt, TryStreamExt, stream};
use gantry_e2e::fleet::Fleet;
use gantry_fleet_domain::crd_digest::digest;
use serde_json::{Map, Value, json};
use sqlx::PgPool;

use crate::kube::StandIn;

const OPERATORS: usize = 500;
pub const CLUSTERS: usize = 100;
const DEFINITIONS: usize = 50;
const VERSIONS: usize = 2;
/// Of clusters that have the same; each has the definitions of its own two operators.
const GROUPS: usize = 5;
const OF_A_GROUP: usize = 2;
/// How large definitions are, in bytes; as those of well-known operators are in the middle.
const SIZES: [usize; 5] = [20_000, 30_000, 40_000, 50_000, 60_000];

const OPERATORS_SQL: &[&str] = &[
    "insert into operators (id, name, description, namespace, chart_repository, chart_name, current_version,
         latest_version, has_update, labels, default_values, created_at, updated_at, refresh_at)
     select gen_random_uuid(), 'operator-' || lpad(n::text, 3, '0'), 'an operator', 'ns-' || n % 10,
         'https://charts.example.com', 'chart', '1.0.0', '1.1.0', true, jsonb_build_object('team', 'team-' || n % 20),
         '{}', now(), now(), now() + interval '1 day'
     from generate_series(0, 499) n",
    "insert into operator_versions (operator_id, version, position, location, discovery)
     select id, '1.' || v || '.0', 9 - v, 'x', 'Discovered' from operators, generate_series(0, 9) v",
    "insert into crds (id, name, operator_name, created_at, updated_at)
     select gen_random_uuid(), 'kind' || k || '.' || o.name || '.example.com', o.name, now(), now()
     from operators o, generate_series(0, 49) k",
];

/// What people decided, and what is written down of them. Of each fiftieth definition the newest schema waits for somebody.
const PEOPLE_SQL: &[&str] = &[
    "update crd_schemas s set approval = 'Pending', changes = (
         select jsonb_agg(jsonb_build_object('changeType', 'Removed', 'fieldPath', 'v1: .spec.field' || n,
             'previousType', 'string', 'newType', '', 'isBreaking', true, 'description', 'The field is gone.',
             'severity', 'Critical', 'action', 'Keep it.', 'fingerprint', substr(md5(c.name || n), 1, 16)))
         from generate_series(1, 10) n)
     from crds c where c.id = s.crd_id and s.position = 1 and c.name like 'kind7.%'",
    "insert into people (id, subject)
     select gen_random_uuid(), 'user-' || lpad(n::text, 4, '0') from generate_series(0, 999) n",
    "insert into users (id, username, password_hash, roles, created_at)
     select id, subject, 'x', '{Viewer}', now() from people where subject like 'user-%'",
    "insert into crd_waivers (crd_id, fingerprint, person, reason, expires, created_at)
     select c.id, lpad(to_hex(n), 16, '0'), p.id, 'nobody uses it', current_date + 30, now() + n * interval '1 ms'
     from crds c, people p, generate_series(1, 200) n
     where c.name = 'kind7.operator-250.example.com' and p.subject = 'user-0000'",
    // Some days of them, of people who did different things to different ones. Nobody proves this log.
    "insert into audit (seq, at, action, outcome, actor, target_kind, target_id, trace_id, line)
     select n, timestamptz '2026-01-01T00:00:00Z' + n * interval '3 s',
         (array['crd.registered', 'crd.approved', 'cluster.accessed', 'cluster.health-changed', 'operator.refreshed',
                'user.login', 'user.created', 'access.denied'])[1 + n % 8],
         case n % 10 when 0 then 'Failed' else 'Succeeded' end, p.ids[1 + n % 1000], 'crd', 'target-' || n % 5000,
         md5(n::text), json_build_object('seq', n, 'hash', repeat(md5(n::text), 2), 'prev', repeat(md5((n - 1)::text), 2),
             'body', json_build_object('action', 'crd.registered', 'details', repeat(md5(n::text), 2)))::text
     from generate_series(1, 200000) n, (select array_agg(id) as ids from people where subject like 'user-%') p",
    "insert into audit_details (seq, salt, details)
     select seq, '\\x00', json_build_object('name', target_id)::text from audit where seq % 2 = 0",
    "insert into audit_head (seq, hash) values (200000, repeat('0', 64))
     on conflict (singleton) do update set seq = excluded.seq, hash = excluded.hash",
    "analyze",
];

/// As `definition` makes them, of one of ten.
const SCHEMAS_SQL: &str = "
    insert into crd_schemas (crd_id, operator_version, position, definition, api_group, kind, scope, api_versions,
        digest, changes, approval, created_at)
    select c.id, '1.' || v || '.0', v, jsonb_build_object('apiVersion', 'apiextensions.k8s.io/v1',
            'kind', 'CustomResourceDefinition', 'metadata', jsonb_build_object('name', c.name), 'spec',
            s.spec || jsonb_build_object('group', c.operator_name || '.example.com', 'names', jsonb_build_object(
                'plural', c.plural, 'kind', initcap(c.plural)))),
        c.operator_name || '.example.com', initcap(c.plural), 'Namespaced', array['v1'], md5(c.name || v), '[]',
        'NotRequired', now()
    from (select id, name, operator_name, split_part(name, '.', 1) as plural from crds
          where right(operator_name, 1) = $3) c,
        generate_series(0, 1) v, unnest($1::int[], $2::jsonb[]) s(place, spec)
    where s.place = 2 * (substr(c.plural, 5)::int % 5) + v";

const DIGESTS_SQL: &str = "
    update crd_schemas s set digest = known.digest
    from unnest($1::text[], $2::text[], $3::text[]) known(name, version, digest), crds c
    where c.name = known.name and s.crd_id = c.id and s.operator_version = known.version";

/// Some that differ from part to part, as texts of people do: what is stored is compressed.
fn words(n: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "number", "of", "pods", "that", "are", "kept", "when", "a", "volume", "is", "bound", "by",
        "its", "claim", "later",
    ];
    let mut state = n as u64 + 1;
    let next = || {
        // Knuth's generator; nothing hangs on how good it is.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        WORDS[(state >> 60) as usize]
    };
    std::iter::repeat_with(next)
        .take(24)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A structural schema as real ones are: objects in objects, lists, maps, bounds, words. The newer version has a field more.
fn spec(size: usize, version: usize) -> Value {
    let part = |n: usize| {
        let words = words(n);
        json!({"type": "object", "description": words, "required": ["name"], "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9-]+$", "description": words},
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1000 + n, "default": 1},
            "policy": {"type": "string", "enum": ["Always", "IfNotPresent", "Never"], "description": words},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "items": {"type": "array", "items": {"type": "object", "required": ["key"], "properties": {
                "key": {"type": "string"}, "value": {"type": "string", "description": words},
                "optional": {"type": "boolean"}}}},
        }})
    };
    let mut parts = Map::new();
    let one = part(0).to_string().len() + 10;
    for n in 0..size / one {
        parts.insert(format!("part{n}"), part(n));
    }
    for n in 0..version {
        parts.insert(format!("added{n}"), json!({"type": "string"}));
    }
    json!({"scope": "Namespaced", "versions": [{
        "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": parts},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}},
    }]})
}

fn name(operator: usize, kind: usize) -> String {
    format!("kind{kind}.operator-{operator:03}.example.com")
}

/// The same as the SQL makes.
fn definition(operator: usize, kind: usize, version: usize) -> Value {
    let mut spec = spec(SIZES[kind % SIZES.len()], version);
    spec["group"] = json!(format!("operator-{operator:03}.example.com"));
    spec["names"] = json!({"plural": format!("kind{kind}"), "kind": format!("Kind{kind}")});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name(operator, kind)}, "spec": spec,
    })
}

async fn run(pool: &PgPool, all: &[&'static str]) -> anyhow::Result<()> {
    for sql in all {
        sqlx::query(*sql)
            .execute(pool)
            .await
            .with_context(|| sql.chars().take(60).collect::<String>())?;
    }
    Ok(())
}

pub async fn people(pool: &PgPool) -> anyhow::Result<()> {
    run(pool, PEOPLE_SQL).await
}

pub async fn registry(pool: &PgPool) -> anyhow::Result<()> {
    run(pool, OPERATORS_SQL).await?;
    let kinds = SIZES
        .iter()
        .flat_map(|size| (0..VERSIONS).map(|version| spec(*size, version)));
    let specs: Vec<Value> = kinds.collect();
    let places: Vec<i32> = (0..).take(specs.len()).collect();
    let (places, specs) = (&places, &specs);
    // To compress them takes a core each.
    stream::iter(0..10)
        .map(|last| async move {
            sqlx::query(SCHEMAS_SQL)
                .bind(places)
                .bind(specs)
                .bind(last.to_string())
                .execute(pool)
                .await
        })
        .buffer_unordered(2)
        .try_collect::<Vec<_>>()
        .await
        .context("schemas")?;
    // What clusters have is recognised.
    let (mut names, mut versions, mut digests) = (Vec::new(), Vec::new(), Vec::new());
    for operator in 0..GROUPS * OF_A_GROUP {
        for kind in 0..DEFINITIONS {
            for version in 0..VERSIONS {
                names.push(name(operator, kind));
                versions.push(format!("1.{version}.0"));
                digests.push(digest(&definition(operator, kind, version)));
            }
        }
    }
    sqlx::query(DIGESTS_SQL)
        .bind(names)
        .bind(versions)
        .bind(digests)
        .execute(pool)
        .await?;
    sqlx::query("analyze").execute(pool).await?;
    let (operators, schemas): (i64, i64) =
        sqlx::query_as("select (select count(*) from operators), (select count(*) from crd_schemas)")
            .fetch_one(pool)
            .await?;
    anyhow::ensure!(operators as usize == OPERATORS, "{operators} operators");
    anyhow::ensure!(
        schemas as usize == OPERATORS * DEFINITIONS * VERSIONS,
        "{schemas} schemas"
    );
    Ok(())
}

/// Registered as people do it, so that they are looked at from then on. They answer as long as what is returned is there.
pub async fn clusters(fleet: &Fleet) -> anyhow::Result<Vec<StandIn>> {
    let mut all = Vec::new();
    for group in 0..GROUPS {
        let shared: Arc<Mutex<Vec<Value>>> = Arc::default();
        for _ in 0..CLUSTERS / GROUPS {
            all.push(StandIn::with(shared.clone()).await);
        }
        let first = all.last().context("no cluster")?;
        for operator in group * OF_A_GROUP..(group + 1) * OF_A_GROUP {
            for kind in 0..DEFINITIONS {
                // Half of the clusters' operators are at the newest version.
                first.define(&definition(operator, kind, operator % VERSIONS), &["v1"]);
            }
        }
    }
    stream::iter(all.iter().enumerate())
        .map(|(number, cluster)| async move {
            let mut body = cluster.registration(&format!("cluster-{number:03}"), "bench");
            body["environment"] = json!(["Development", "Staging", "Production"][number % 3]);
            body["labels"] = json!({"region": "eu"});
            fleet.post("/clusters", &body).await
        })
        .buffer_unordered(4)
        .try_collect::<Vec<_>>()
        .await?;
    Ok(all)
}
