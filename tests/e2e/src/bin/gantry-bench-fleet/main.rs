//! How fast the fleet server answers with a full fleet in it, beside the bare SQL query in the same run.
//!
//! `GANTRY_BIN` names the program. 500 operators, 50 definitions for each of them, 100 stand-ins of clusters that are looked
//! at meanwhile, 1,000 users and 200,000 entries of the audit log; prints tables and keeps nothing. The number of requests of each kind can be given.

mod fill;
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "made for the tests of the server, which use the rest of it"
)]
#[path = "../../../../../crates/fleet/tests/server/support/kube.rs"]
mod kube;
mod looks;

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use gantry_e2e::fleet::Fleet;
use serde_json::json;
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

const AT_ONCE: usize = 8;
const REQUESTS: usize = 4000;

const CASES: &[(&str, &str, &str)] = &[
    (
        "list 20 of 500 operators",
        "/operators",
        "select *, count(*) over () from operators order by name limit 20",
    ),
    (
        "list 100 of 500 operators",
        "/operators?limit=100",
        "select *, count(*) over () from operators order by name limit 100",
    ),
    (
        "list operators by label",
        "/operators?label=team=team-7",
        "select *, count(*) over () from operators where labels @> '{\"team\": \"team-7\"}' order by name limit 20",
    ),
    (
        "get an operator",
        "/operators/operator-250",
        "select * from operators where name = 'operator-250'",
    ),
    (
        "list 100 of 100 clusters",
        "/clusters?limit=100",
        "select *, count(*) over () from clusters order by name limit 100",
    ),
    (
        "get a cluster",
        "/clusters/cluster-050",
        "select * from clusters where name = 'cluster-050'",
    ),
    (
        "health of a cluster",
        "/clusters/cluster-050/health",
        "select * from clusters where name = 'cluster-050'",
    ),
    (
        "list 20 of 25000 definitions",
        "/crds",
        "select *, (select count(*) from crds) from crds order by name limit 20",
    ),
    (
        "get a definition with its history",
        "/crds/kind7.operator-250.example.com",
        "select * from crds c join crd_schemas s on s.crd_id = c.id where c.name = 'kind7.operator-250.example.com'",
    ),
    (
        "list definitions, 24000 skipped",
        "/crds?offset=24000",
        "select *, (select count(*) from crds) from crds order by name limit 20 offset 24000",
    ),
    (
        "list definitions that wait",
        "/crds?approvalStatus=Pending",
        "select *, count(*) over () from crds c join crd_schemas s on s.crd_id = c.id
         where s.approval = 'Pending' and s.position = 1 order by c.name limit 20",
    ),
    (
        "list versions of an operator",
        "/operators/operator-250/versions",
        "select v.*, count(*) over () from operator_versions v join operators o on o.id = v.operator_id
         where o.name = 'operator-250' order by v.position limit 20",
    ),
    (
        "list clusters by environment",
        "/clusters?environment=Production",
        "select *, count(*) over () from clusters where environment = 'Production' order by name limit 20",
    ),
    (
        "list clusters by health",
        "/clusters?healthStatus=Healthy",
        "select *, count(*) over () from clusters where health = 'Healthy' order by name limit 20",
    ),
    (
        "list 20 of 200 waivers",
        "/crds/kind7.operator-250.example.com/waivers",
        "select w.*, count(*) over () from crd_waivers w join crds c on c.id = w.crd_id
         where c.name = 'kind7.operator-250.example.com' order by w.created_at limit 20",
    ),
    (
        "list 20 of 1000 users",
        "/users",
        "select *, count(*) over () from users order by username limit 20",
    ),
    (
        "list 20 of 200000 audit entries",
        "/audit",
        "select *, (select count(*) from audit) from audit order by seq desc limit 20",
    ),
    (
        "list audit entries of an action",
        "/audit?action=user.created",
        "select *, count(*) over () from audit where action = 'user.created' order by seq desc limit 20",
    ),
    (
        "list audit entries of a day",
        "/audit?since=2026-01-02T00:00:00Z&until=2026-01-03T00:00:00Z",
        "select *, count(*) over () from audit
         where at >= '2026-01-02T00:00:00Z' and at < '2026-01-03T00:00:00Z' order by seq desc limit 20",
    ),
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let given = std::env::args().nth(1).map(|given| given.parse()).transpose()?;
    let requests = given.unwrap_or(REQUESTS);
    let interval = looks::INTERVAL.to_string();
    let options = ["--database-connections", "16", "--allow-insecure-clusters"];
    let fleet = Fleet::start(&[&options[..], &["--health-seconds", &interval]].concat()).await?;
    let empty = fleet.resident_mib()?;
    let socket = fleet.folder.path().join("state/postgres/socket");
    let options = PgConnectOptions::new_without_pgpass()
        .socket(socket)
        .username("gantry")
        .database("gantry");
    let pool = PgPoolOptions::new()
        .max_connections(AT_ONCE as u32)
        .connect_with(options)
        .await?;
    let begin = Instant::now();
    fill::registry(&pool).await?;
    fill::people(&pool).await?;
    println!(
        "500 operators, 25000 definitions of 20 to 60 kB with 2 versions each, 1000 users and 200000 audit entries, written \
         in {:.0} s",
        begin.elapsed().as_secs_f64()
    );
    let begin = Instant::now();
    // They answer until the end.
    let clusters = fill::clusters(&fleet).await?;
    println!(
        "{} clusters with 100 definitions each, registered in {:.0} s, looked at every {interval} s",
        clusters.len(),
        begin.elapsed().as_secs_f64()
    );
    println!("{requests} requests, {AT_ONCE} at once\n");
    println!(
        "{:36} {:>10} {:>9} {:>9}   {:>10} {:>9} {:>9}",
        "", "requests/s", "p50 ms", "p99 ms", "bare SQL/s", "p50 ms", "p99 ms"
    );
    for &(name, path, sql) in CASES {
        let served = measure(requests, async || fleet.get(path).await.map(drop)).await?;
        let bare = measure(requests, async || bare(&pool, sql).await).await?;
        println!("{name:36} {served}   {bare}");
    }
    println!("\n{:36} {empty:7.1} MiB", "resident, empty");
    println!(
        "{:36} {:7.1} MiB",
        "resident, after all that",
        fleet.resident_mib()?
    );
    looks::measure(&fleet, &pool).await?;
    println!("\nvalidation of a definition, by its size");
    for fields in [10, 100, 1000, 5000] {
        validation(&fleet, fields).await?;
    }
    fleet.stop().await
}

async fn bare(pool: &PgPool, sql: &'static str) -> anyhow::Result<()> {
    sqlx::query(sql).fetch_all(pool).await?;
    Ok(())
}

async fn measure(requests: usize, work: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<String> {
    for _ in 0..50 {
        work().await?;
    }
    let begin = Instant::now();
    let times: Vec<anyhow::Result<Duration>> = stream::iter(0..requests)
        .map(|_| async {
            let begin = Instant::now();
            work().await?;
            Ok(begin.elapsed())
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let total = begin.elapsed();
    let mut times = times.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1000.0;
    Ok(format!(
        "{:10.0} {:9.2} {:9.2}",
        requests as f64 / total.as_secs_f64(),
        at(0.5),
        at(0.99)
    ))
}

async fn validation(fleet: &Fleet, fields: usize) -> anyhow::Result<()> {
    let definition = |kind: &str| {
        let properties: serde_json::Map<String, serde_json::Value> = (0..fields)
            .map(|n| {
                (
                    format!("field{n}"),
                    json!({"type": kind, "description": "A field with some words that say what it is."}),
                )
            })
            .collect();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("sized{fields}.bench.example.com")},
            "spec": {"group": "bench.example.com", "scope": "Namespaced",
                "names": {"plural": format!("sized{fields}"), "kind": "Sized"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}}}]},
        })
    };
    let size = definition("string").to_string().len() / 1024;
    fleet
        .post(
            "/crds",
            &json!({"operatorVersion": "1.0.0", "schemaDefinition": definition("string")}),
        )
        .await?;
    let body = json!({"newSchemaDefinition": definition("integer"), "newOperatorVersion": "2.0.0"});
    let path = format!("/crds/sized{fields}.bench.example.com/validate");
    let mut times = Vec::new();
    for _ in 0..20 {
        let begin = Instant::now();
        fleet.ask("POST", &path, Some(&body)).await?.expect(200)?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    println!(
        "{:36} p50 {:7.1} ms, worst {:7.1} ms",
        format!("{fields} fields, {size} KiB"),
        times[10].as_secs_f64() * 1000.0,
        times[19].as_secs_f64() * 1000.0
    );
    Ok(())
}
