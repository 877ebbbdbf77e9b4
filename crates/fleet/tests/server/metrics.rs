//! The numbers of the specification, by name and by value, as a monitoring system reads them.

use std::collections::BTreeMap;

use gantry_fleet::orchestrator::tasks::numbers;
use serde_json::json;

use super::support::{Running, charts::Repository, definition, kube::StandIn, until};

/// What is said of each series, and of which kind each family is.
struct Scraped {
    series: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Scraped {
    async fn of(running: &Running) -> Self {
        let address = running.server.admin_address.unwrap();
        let answer = reqwest::get(format!("http://{address}/metrics")).await.unwrap();
        assert!(answer.status().is_success());
        let text = answer.text().await.unwrap();
        let (mut series, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                kinds.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                series.insert(name.to_owned(), value.parse().unwrap());
            }
        }
        Self { series, kinds }
    }

    fn value(&self, name: &str) -> f64 {
        let known: Vec<&String> = self.series.keys().collect();
        *self
            .series
            .get(name)
            .unwrap_or_else(|| panic!("there is no {name} among {known:?}"))
    }

    #[track_caller]
    fn is(&self, name: &str, value: f64) {
        let found = self.value(name);
        assert!((found - value).abs() < 0.5, "{name} is {found}, not {value}");
    }
}

#[tokio::test]
async fn what_was_done_is_counted_under_the_names_of_the_specification() {
    let running = Running::with(|settings| settings.admin_address = Some(([127, 0, 0, 1], 0).into())).await;
    let (admin, cluster, repository) = (&running.admin, StandIn::start().await, Repository::start().await);
    let before = Scraped::of(&running).await;
    for name in [
        "clusters_registered_total",
        "crds_validated_total",
        "operators_count",
        "clusters_count",
    ] {
        before.is(name, 0.0);
    }
    repository.chart("widget", "1.0.0", &[]);
    for name in ["one", "two", "three"] {
        let operator = json!({
            "name": name, "namespace": "ops", "chartRepository": repository.url, "chartName": "widget",
        });
        admin.post("/operators", &operator).await.expect(201);
    }
    for name in ["here", "there"] {
        admin
            .post("/clusters", &cluster.registration(name, "t"))
            .await
            .expect(201);
    }
    admin
        .post("/clusters", &cluster.registration("here", "t"))
        .await
        .refused(409, "CLUSTER_ALREADY_EXISTS");
    let crd =
        json!({"schemaDefinition": definition("things.example.com", json!({})), "operatorVersion": "1.0.0"});
    admin.post("/crds", &crd).await.expect(201);
    let proposal = json!({"newSchemaDefinition": {"type": "object"}});
    for _ in 0..4 {
        admin
            .post("/crds/things.example.com/validate", &proposal)
            .await
            .expect(200);
    }
    admin.delete("/clusters/there").await.expect(204);
    numbers(&running.server.fleet).await.unwrap();
    let now = Scraped::of(&running).await;
    now.is("clusters_registered_total", 2.0);
    now.is("crds_validated_total", 4.0);
    now.is("operators_count", 3.0);
    now.is("clusters_count", 1.0);
    now.is(
        "gantry_fleet_requests_total{operation=\"registerOperator\",code=\"201\"}",
        3.0,
    );
    now.is(
        "gantry_fleet_requests_total{operation=\"registerCluster\",code=\"409\"}",
        1.0,
    );
    now.is(
        "gantry_fleet_request_duration_seconds_count{operation=\"validateCrd\"}",
        4.0,
    );
    assert!(now.value("gantry_fleet_request_duration_seconds_sum{operation=\"validateCrd\"}") > 0.0);
    assert!(now.value("gantry_fleet_database_connections") >= 1.0);
    for (name, kind) in [
        ("clusters_registered", "counter"),
        ("crds_validated", "counter"),
        ("operators_count", "gauge"),
        ("clusters_count", "gauge"),
        ("gantry_fleet_request_duration_seconds", "histogram"),
        ("gantry_fleet_cluster_check_duration_seconds", "histogram"),
    ] {
        assert_eq!(now.kinds.get(name).map(String::as_str), Some(kind), "{name}");
    }
    running.server.stop().await;
}

#[tokio::test]
async fn looks_at_clusters_are_timed() {
    let running = Running::with(|settings| {
        settings.admin_address = Some(([127, 0, 0, 1], 0).into());
        settings.health_interval = jiff::SignedDuration::from_secs(1);
    })
    .await;
    let cluster = StandIn::start().await;
    running
        .admin
        .post("/clusters", &cluster.registration("here", "t"))
        .await
        .expect(201);
    let healthy = "gantry_fleet_cluster_checks_total{health=\"Healthy\"}";
    until("it was looked at", async || {
        let now = Scraped::of(&running).await;
        let looks = now.series.get(healthy).copied().unwrap_or_default();
        (looks >= 2.0).then_some(())
    })
    .await;
    let now = Scraped::of(&running).await;
    assert!(now.value("gantry_fleet_cluster_check_duration_seconds_count") >= 2.0);
    assert!(now.value("gantry_fleet_cluster_check_duration_seconds_sum") > 0.0);
    assert!(now.value("gantry_fleet_cluster_connections") >= 0.0);
    running.server.stop().await;
}
