//! What it takes to look at all clusters again and again, and whether each is looked at in time.

use std::time::{Duration, Instant};

use gantry_e2e::fleet::Fleet;
use sqlx::PgPool;

use crate::fill::CLUSTERS;

/// Between two looks at a cluster, and how long one may take.
pub const INTERVAL: u32 = 10;
const DEADLINE: u32 = 60;
/// The seed's: connections to clusters at once.
const MOST: u64 = 100;
const LASTS: Duration = Duration::from_secs(60);

pub async fn measure(fleet: &Fleet, pool: &PgPool) -> anyhow::Result<()> {
    let (begin, cpu) = (Instant::now(), fleet.cpu_seconds()?);
    let (mut connections, mut oldest, mut unwell) = (0, 0.0_f64, 0);
    while begin.elapsed() < LASTS {
        connections = connections.max(fleet.gauge("gantry_fleet_cluster_connections").await?);
        // By the database, so that asking does not keep the server busy.
        let (age, known, healthy): (f64, i64, i64) = sqlx::query_as(
            "select extract(epoch from now() - min(checked_at))::float8,
                 count(*), count(*) filter (where health = 'Healthy') from clusters",
        )
        .fetch_one(pool)
        .await?;
        anyhow::ensure!(known as usize == CLUSTERS, "{known} clusters");
        // On a machine that is too busy some looks end by their deadline.
        unwell = unwell.max(known - healthy);
        oldest = oldest.max(age);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), fleet.cpu_seconds()? - cpu);
    println!("\n{CLUSTERS} clusters looked at every {INTERVAL} s, for {seconds:.0} s");
    println!("{:36} {:7.1} MiB", "resident", fleet.resident_mib()?);
    println!("{:36} {cpu:7.2} s", "CPU time");
    println!("{:36} {connections:7}", "connections to clusters, at most");
    println!("{:36} {oldest:7.1} s", "oldest look, at most");
    println!("{:36} {unwell:7}", "not healthy at a time, at most");
    anyhow::ensure!(connections < MOST, "{connections} connections to clusters");
    let late = f64::from(INTERVAL + DEADLINE);
    anyhow::ensure!(oldest <= late, "a cluster was not looked at for {oldest:.1} s");
    Ok(())
}
