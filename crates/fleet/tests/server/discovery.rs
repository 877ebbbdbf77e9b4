//! What is found in charts: again where it failed, and where a chart or what it is rendered with has changed.

use std::{os::unix::fs::PermissionsExt as _, sync::atomic::Ordering, time::Duration};

use gantry_fleet::{infrastructure::store::operators, orchestrator::repositories::visit};
use jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use super::support::{Asker, Running, charts::Repository, definition, pool, until};

fn registration(repository: &Repository) -> Value {
    json!({"name": "widget", "namespace": "ops", "chartRepository": repository.url, "chartName": "widget"})
}

fn crd(name: &str, properties: Value) -> (&'static str, String) {
    ("crds/all.json", definition(name, properties).to_string())
}

/// The only version of the operator, when it is as it should be.
async fn version_is(admin: &Asker, discovery: &str, says: &str) -> Value {
    until(&format!("the version is {discovery} {says}"), async || {
        let got = admin.get("/operators/widget/versions").await.expect(200);
        let version = got.body["versions"][0].clone();
        let said = version["crdDiscoveryMessage"].as_str().unwrap_or_default();
        (version["crdDiscovery"] == discovery && said.contains(says)).then_some(version)
    })
    .await
}

#[tokio::test]
async fn a_chart_that_could_not_be_read_is_read_when_a_person_asks_again() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let archive = repository.remove("charts/widget-1.0.0.tgz");
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Failed", "404").await;
    repository.put("charts/widget-1.0.0.tgz", archive);
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    let version = version_is(admin, "Discovered", "").await;
    assert_eq!(version["crdNames"], json!(["widgets.example.com"]));
    running.server.stop().await;
}

#[tokio::test]
async fn a_chart_that_could_not_be_read_is_tried_again_once_in_an_interval() {
    let running = Running::with(|settings| settings.refresh_interval = SignedDuration::from_secs(2)).await;
    let (admin, repository) = (&running.admin, Repository::start().await);
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let archive = repository.remove("charts/widget-1.0.0.tgz");
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Failed", "404").await;
    // Long enough for more than one try; what fails in the same way is written down once.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let audit = admin
        .get("/audit?action=operator.definitions-discovered")
        .await
        .expect(200);
    assert_eq!(audit.body["total"], 1);
    repository.put("charts/widget-1.0.0.tgz", archive);
    version_is(admin, "Discovered", "").await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_chart_that_ends_the_server_each_time_is_given_up_until_a_person_asks() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let archive = repository.remove("charts/widget-1.0.0.tgz");
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Failed", "404").await;
    repository.put("charts/widget-1.0.0.tgz", archive);
    // As it is after the third end.
    let pool = pool(&running.database_url).await;
    for statement in [
        "update operator_versions set attempts = 3, discovery = 'Pending'",
        "update operators set refresh_at = now()",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    version_is(admin, "Failed", "the server ended 3 times").await;
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    let version = version_is(admin, "Discovered", "").await;
    assert_eq!(version["crdNames"], json!(["widgets.example.com"]));
    let attempts: i32 = sqlx::query_scalar("select attempts from operator_versions")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(attempts, 0, "what was finished does not count");
    running.server.stop().await;
}

#[tokio::test]
async fn a_chart_that_is_published_anew_is_read_anew() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Discovered", "").await;
    let text = json!({"a": {"type": "string"}});
    let gadgets = definition("gadgets.example.com", json!({})).to_string();
    let files = [crd("widgets.example.com", text), ("crds/more.json", gadgets)];
    repository.chart("widget", "1.0.0", &files);
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    // What is new is there; what differs is named, and what was known stays.
    let version = version_is(
        admin,
        "Discovered",
        "widgets.example.com is known with another schema",
    )
    .await;
    assert_eq!(
        version["crdNames"],
        json!(["gadgets.example.com", "widgets.example.com"])
    );
    running.server.stop().await;
}

#[rstest]
#[case::told(true)]
#[case::not_told(false)]
#[tokio::test]
async fn a_tag_of_a_registry_that_is_published_anew_is_read_anew(#[case] tells_digests: bool) {
    let running = Running::with(|settings| settings.refresh_interval = SignedDuration::from_secs(2)).await;
    let (admin, repository) = (&running.admin, Repository::start().await);
    repository.tells_digests.store(tells_digests, Ordering::SeqCst);
    repository.push("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let mut body = registration(&repository);
    body["chartRepository"] = json!(repository.oci_url());
    admin.post("/operators", &body).await.expect(201);
    let first = version_is(admin, "Discovered", "").await;
    let digest = first["digest"].as_str().unwrap().to_owned();
    assert!(digest.starts_with("sha256:"), "what was read: {digest}");
    // At rest nothing is read again.
    let entries = async || {
        let audit = admin.get("/audit?action=operator.definitions-discovered").await;
        audit.expect(200).body["total"].as_u64().unwrap()
    };
    let asked = repository.manifests.load(Ordering::SeqCst);
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(entries().await, 1);
    if tells_digests {
        assert_eq!(
            repository.manifests.load(Ordering::SeqCst),
            asked,
            "none is downloaded"
        );
    }
    let text = json!({"a": {"type": "string"}});
    let gadgets = definition("gadgets.example.com", json!({})).to_string();
    let files = [crd("widgets.example.com", text), ("crds/more.json", gadgets)];
    repository.push("widget", "1.0.0", &files);
    let version = version_is(
        admin,
        "Discovered",
        "widgets.example.com is known with another schema",
    )
    .await;
    assert_eq!(
        version["crdNames"],
        json!(["gadgets.example.com", "widgets.example.com"])
    );
    assert_ne!(version["digest"], digest.as_str());
    running.server.stop().await;
}

#[rstest]
#[case::always_the_same(false)]
#[case::another_each_time(true)]
#[tokio::test]
async fn a_registry_that_tells_other_digests_is_not_read_without_end(#[case] is_fickle: bool) {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.tells_digests.store(true, Ordering::SeqCst);
    repository.tells_others.store(true, Ordering::SeqCst);
    repository.is_fickle.store(is_fickle, Ordering::SeqCst);
    repository.push("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let mut body = registration(&repository);
    body["chartRepository"] = json!(repository.oci_url());
    admin.post("/operators", &body).await.expect(201);
    let read = || repository.manifests.load(Ordering::SeqCst);
    // Once for itself, and once because what is told is not what was read.
    until("it is read twice", async || (read() == 2).then_some(())).await;
    version_is(admin, "Discovered", "").await;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(read(), 2, "until the next interval");
    // A person who asks is answered, once.
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    let expected = if is_fickle { 3 } else { 2 };
    until("it was asked again", async || (read() == expected).then_some(())).await;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(read(), expected);
    running.server.stop().await;
}

#[tokio::test]
async fn other_values_render_other_definitions() {
    let folder = tempfile::tempdir().unwrap();
    let helm = folder.path().join("helm");
    let rendered = definition("widgets.example.com", json!({}));
    // As Helm is called: template NAME CHART --values FILE.
    let script = format!("#!/bin/sh\nif grep -q '\"crds\":true' \"$5\"; then echo '{rendered}'; fi\n");
    std::fs::write(&helm, script).unwrap();
    std::fs::set_permissions(&helm, std::fs::Permissions::from_mode(0o755)).unwrap();
    let running = Running::with(|settings| settings.helm = Some(helm)).await;
    let (admin, repository) = (&running.admin, Repository::start().await);
    let template = "{{ if .Values.crds }}\nkind: CustomResourceDefinition\n{{ end }}".to_owned();
    repository.chart("widget", "1.0.0", &[("templates/crd.yaml", template)]);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    let version = version_is(admin, "Discovered", "").await;
    assert_eq!(version["crdNames"], json!([]));
    admin
        .put("/operators/widget", &json!({"defaultValues": {"crds": true}}))
        .await
        .expect(200);
    until("the definition is there", async || {
        let got = admin.get("/operators/widget").await.expect(200);
        (got.body["crdNames"] == json!(["widgets.example.com"])).then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_chart_that_helm_refuses_still_brings_what_lies_open_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let helm = folder.path().join("helm");
    let script = "#!/bin/sh\necho 'Error: execution error at (widget/templates/x.yaml:1): name the host' >&2\nexit 1\n";
    std::fs::write(&helm, script).unwrap();
    std::fs::set_permissions(&helm, std::fs::Permissions::from_mode(0o755)).unwrap();
    let running = Running::with(|settings| settings.helm = Some(helm)).await;
    let (admin, repository) = (&running.admin, Repository::start().await);
    let template =
        "{{ required \"name the host\" .Values.host }}\nkind: CustomResourceDefinition\n".to_owned();
    let files = [
        crd("widgets.example.com", json!({})),
        ("templates/x.yaml", template),
    ];
    repository.chart("widget", "1.0.0", &files);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    let version = version_is(admin, "Discovered", "name the host").await;
    assert_eq!(version["crdNames"], json!(["widgets.example.com"]));
    // Helm is not asked about a chart that only speaks of definitions.
    let values = "# Whether the CustomResourceDefinition is installed.\ncrds: true\n".to_owned();
    let files = [crd("widgets.example.com", json!({})), ("values.yaml", values)];
    repository.chart("widget", "1.1.0", &files);
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    let version = until("the new version is read", async || {
        let got = admin.get("/operators/widget/versions").await.expect(200);
        let version = got.body["versions"][0].clone();
        (version["version"] == "1.1.0" && version["crdDiscovery"] == "Discovered").then_some(version)
    })
    .await;
    assert_eq!(version["crdDiscoveryMessage"], Value::Null);
    running.server.stop().await;
}

#[tokio::test]
async fn what_a_chart_shows_and_tests_with_is_not_what_it_brings() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    let file = |name: &str| definition(name, json!({})).to_string();
    let files = [
        ("crds/a.json", file("widgets.example.com")),
        ("examples/b.json", file("gadgets.example.com")),
        ("ci/c.json", file("gizmos.example.com")),
        ("files/d.json", file("things.example.com")),
    ];
    repository.chart("widget", "1.0.0", &files);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    let version = version_is(admin, "Discovered", "").await;
    assert_eq!(
        version["crdNames"],
        json!(["things.example.com", "widgets.example.com"])
    );
    running.server.stop().await;
}

#[tokio::test]
async fn a_definition_that_the_newest_version_leaves_out_is_shown_as_removed() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    let file = |name: &str| definition(name, json!({})).to_string();
    let both = [
        ("crds/a.json", file("widgets.example.com")),
        ("crds/b.json", file("gadgets.example.com")),
    ];
    repository.chart("widget", "1.0.0", &both);
    repository.chart("widget", "1.1.0", &both[..1]);
    repository.chart("widget", "2.0.0-rc.1", &[]);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    let status_of = async |name: &str| {
        let got = admin.get(&format!("/crds/{name}")).await;
        got.body["status"].as_str().unwrap_or_default().to_owned()
    };
    until("gadgets are removed", async || {
        (status_of("gadgets.example.com").await == "Removed").then_some(())
    })
    .await;
    assert_eq!(status_of("widgets.example.com").await, "Active");
    let listed = admin.get("/crds?status=Removed").await.expect(200).body;
    assert_eq!(
        (&listed["total"], &listed["crds"][0]["name"]),
        (&json!(1), &json!("gadgets.example.com"))
    );
    // The reason why it was deprecated is kept beside it.
    let reason = json!({"reason": "widgets are better"});
    let got = admin
        .post("/crds/gadgets.example.com/deprecate", &reason)
        .await
        .expect(200);
    assert_eq!(got.body["status"], "Removed");
    repository.chart("widget", "1.2.0", &both);
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    until("gadgets are back", async || {
        (status_of("gadgets.example.com").await == "Deprecated").then_some(())
    })
    .await;
    for action in ["crd.removed", "crd.returned"] {
        let audit = admin.get(&format!("/audit?action={action}")).await.expect(200);
        assert_eq!(audit.body["total"], 1, "{action}");
    }
    running.server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_kept_is_named_and_stops_nothing() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    let file = |name: &str, properties: Value| definition(name, properties).to_string();
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let zero = json!({"a": {"type": "string", "description": "zero \0 byte"}});
    let files = [
        ("crds/a.json", file("gadgets.example.com", zero)),
        ("crds/b.json", file("widgets.example.com", json!({}))),
        (
            "crds/c.json",
            file("things.example.com", json!({})).replace("\"things\"", "\"others\""),
        ),
    ];
    repository.chart("widget", "1.1.0", &files);
    let odd = json!({"appVersion": "9\09", "digest": "a\0b", "created": "-009999-01-02T00:00:00Z"});
    repository.amend("widget", "1.1.0", &odd);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    let version = version_is(admin, "Discovered", "gadgets.example.com\" has a zero character").await;
    assert_eq!(version["crdNames"], json!(["widgets.example.com"]));
    let said = version["crdDiscoveryMessage"].as_str().unwrap();
    assert!(said.contains("metadata.name is \"things.example.com\""), "{said}");
    until("the version below is reached", async || {
        let got = admin.get("/operators/widget/versions").await.expect(200);
        (got.body["versions"][1]["crdDiscovery"] == "Discovered").then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn the_definitions_of_an_operator_that_is_gone_are_free() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let mut body = registration(&repository);
    body["name"] = json!("before");
    admin.post("/operators", &body).await.expect(201);
    let owner = async || admin.get("/crds/widgets.example.com").await.body["operatorName"].clone();
    until("it has the definition", async || {
        (owner().await == "before").then_some(())
    })
    .await;
    admin.delete("/operators/before").await.expect(204);
    assert_eq!(owner().await, Value::Null);
    body["name"] = json!("widget");
    admin.post("/operators", &body).await.expect(201);
    let version = version_is(admin, "Discovered", "").await;
    assert_eq!(version["crdNames"], json!(["widgets.example.com"]));
    assert_eq!(owner().await, "widget");
    running.server.stop().await;
}

#[tokio::test]
async fn a_chart_that_cannot_be_had_keeps_no_other_waiting() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    repository.chart("widget", "1.1.0", &[]);
    let elsewhere = json!({"urls": ["http://127.0.0.1:1/widget-1.1.0.tgz"]});
    repository.amend("widget", "1.1.0", &elsewhere);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Pending", "failed to reach").await;
    until("the version below is reached", async || {
        let got = admin.get("/operators/widget/versions").await.expect(200);
        (got.body["versions"][1]["crdDiscovery"] == "Discovered").then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_repository_that_is_too_slow_is_given_up_and_says_so() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", json!({}))]);
    let elsewhere = json!({"urls": ["http://127.0.0.1:1/widget-1.0.0.tgz"]});
    repository.amend("widget", "1.0.0", &elsewhere);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Pending", "failed to reach").await;
    repository.hangs.store(true, Ordering::SeqCst);
    let fleet = &running.server.fleet;
    let mut connection = fleet.pool.acquire().await.unwrap();
    let row = operators::get(&mut connection, "widget").await.unwrap().unwrap();
    drop(connection);
    let visit = visit(fleet, &row, Duration::from_secs(1));
    let next = tokio::time::timeout(Duration::from_secs(10), visit).await;
    let next = next.expect("it ends before a single request would").unwrap();
    assert_eq!(next, fleet.refresh_interval, "the others come first");
    version_is(admin, "Pending", "did not answer all").await;
    running.server.stop().await;
}

#[tokio::test]
async fn what_is_in_a_chart_wins_over_what_somebody_said_would_be_in_it() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    let (whole, none) = (json!({"a": {"type": "string"}}), json!({}));
    repository.chart("widget", "1.0.0", &[crd("widgets.example.com", whole.clone())]);
    admin
        .post("/operators", &registration(&repository))
        .await
        .expect(201);
    version_is(admin, "Discovered", "").await;
    let said = json!({
        "operatorName": "widget", "operatorVersion": "9.0.0",
        "schemaDefinition": definition("widgets.example.com", whole),
    });
    running
        .role(gantry_fleet_domain::access::Role::Operator)
        .post("/crds", &said)
        .await
        .expect(201);
    let newest = async || {
        let shown = admin.get("/crds/widgets.example.com").await.expect(200).body;
        (shown["operatorVersion"].clone(), shown["approvalStatus"].clone())
    };
    assert_eq!(newest().await, (json!("9.0.0"), json!("NotRequired")));
    // The chart drops the field.
    repository.chart("widget", "9.0.0", &[crd("widgets.example.com", none.clone())]);
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    version_is(admin, "Discovered", "the chart's counts now").await;
    assert_eq!(newest().await, (json!("9.0.0"), json!("Pending")));
    let shown = admin.get("/crds/widgets.example.com").await.expect(200).body;
    assert_eq!(shown["schemaDefinition"], definition("widgets.example.com", none));
    // And nobody says otherwise after it.
    admin
        .post("/crds", &said)
        .await
        .refused(409, "CRD_VERSION_ALREADY_EXISTS");
    running.server.stop().await;
}
