//! Operators, against real PostgreSQL and a real HTTP repository.

use super::support::{Running, anchor_bomb, charts::Repository, definition, pool, until};
use serde_json::{Value, json};

fn registration(repository: &Repository, name: &str) -> Value {
    json!({
        "name": name, "namespace": "ops", "chartRepository": repository.url, "chartName": "widget",
        "labels": {"team": "a"}, "defaultValues": {"replicas": 2},
    })
}

async fn widgets() -> Repository {
    let repository = Repository::start().await;
    let crd = |properties| definition("widgets.example.com", properties).to_string();
    repository.chart(
        "widget",
        "1.0.0",
        &[("crds/widget.json", crd(json!({"size": {"type": "integer"}})))],
    );
    repository.chart(
        "widget",
        "v1.1.0",
        &[(
            "crds/widget.json",
            crd(json!({"size": {"type": "integer"}, "colour": {"type": "string"}})),
        )],
    );
    repository.chart(
        "widget",
        "2.0.0",
        &[("crds/widget.json", crd(json!({"colour": {"type": "string"}})))],
    );
    repository.chart("widget", "3.0.0-rc.1", &[]);
    repository.chart("widget", "nightly", &[]);
    repository
}

#[tokio::test]
async fn an_operator_is_registered_shown_changed_and_removed() {
    let (running, repository) = (Running::start().await, widgets().await);
    let admin = &running.admin;
    let mut body = registration(&repository, "widget");
    body["currentVersion"] = json!("1.1.0");
    let got = admin.post("/operators", &body).await.expect(201);
    let operator = &got.body;
    assert!(uuid::Uuid::parse_str(operator["operatorId"].as_str().unwrap()).is_ok());
    assert_eq!(
        operator["currentVersion"], "v1.1.0",
        "as the repository spells it"
    );
    assert_eq!(
        operator["latestVersion"], "2.0.0",
        "a release before a newer pre-release"
    );
    assert_eq!(operator["hasUpdate"], true);
    assert_eq!(operator["defaultValues"], json!({"replicas": 2}));
    admin
        .post("/operators", &body)
        .await
        .refused(409, "OPERATOR_ALREADY_EXISTS");

    let versions = admin.get("/operators/widget/versions").await.expect(200);
    let names: Vec<&str> = versions.body["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["version"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["3.0.0-rc.1", "2.0.0", "v1.1.0", "1.0.0"]);
    assert_eq!(versions.body["versions"][1]["isLatest"], true);
    assert_eq!(versions.body["versions"][1]["appVersion"], "9.9");
    assert!(
        versions.body["versions"][1]["releaseDate"]
            .as_str()
            .unwrap()
            .starts_with("2026-01-02T03:04:05")
    );

    let shown = admin.get("/operators/widget").await.expect(200);
    let tag = shown.header("etag").to_owned();
    assert!(!tag.is_empty());
    let change = json!({"description": "makes widgets", "currentVersion": "v2.0.0", "name": "widget"});
    let changed = admin
        .ask("put", "/operators/widget", Some(&change), &[("if-match", &tag)])
        .await
        .expect(200);
    assert_eq!(changed.body["currentVersion"], "2.0.0");
    assert_eq!(changed.body["hasUpdate"], false);
    assert_ne!(changed.header("etag"), tag);
    admin
        .ask("put", "/operators/widget", Some(&change), &[("if-match", &tag)])
        .await
        .refused(412, "PRECONDITION_FAILED");
    admin
        .put("/operators/widget", &json!({"namespace": "other"}))
        .await
        .refused(400, "VALIDATION_ERROR");
    admin
        .put("/operators/widget", &json!({"currentVersion": "9.9.9"}))
        .await
        .refused(400, "VALIDATION_ERROR");
    admin
        .put("/operators/nothing", &json!({}))
        .await
        .refused(404, "OPERATOR_NOT_FOUND");

    admin
        .ask("delete", "/operators/widget", None, &[("if-match", "\"1\"")])
        .await
        .refused(412, "PRECONDITION_FAILED");
    admin.delete("/operators/widget").await.expect(204);
    admin
        .get("/operators/widget")
        .await
        .refused(404, "OPERATOR_NOT_FOUND");
    running.server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_field_by_field() {
    let (running, repository) = (Running::start().await, widgets().await);
    let admin = &running.admin;
    let mut body = registration(&repository, "Not A Name");
    body["namespace"] = json!("");
    let got = admin
        .post("/operators", &body)
        .await
        .refused(400, "VALIDATION_ERROR");
    let fields: Vec<&str> = got.body["error"]["details"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["field"].as_str().unwrap())
        .collect();
    assert_eq!(fields, ["name", "namespace"]);
    let mut body = registration(&repository, "widget");
    body["chartName"] = json!("gadget");
    admin
        .post("/operators", &body)
        .await
        .refused(400, "CHART_NOT_FOUND");
    body["chartName"] = json!("widget");
    body["chartRepository"] = json!(format!("{}/elsewhere", repository.url));
    admin
        .post("/operators", &body)
        .await
        .refused(400, "CHART_REPOSITORY_UNREACHABLE");
    body["chartRepository"] = json!("http://127.0.0.1:1/");
    admin
        .post("/operators", &body)
        .await
        .refused(400, "CHART_REPOSITORY_UNREACHABLE");
    body["chartRepository"] = json!("http://169.254.169.254/latest");
    let got = admin
        .post("/operators", &body)
        .await
        .refused(400, "CHART_REPOSITORY_UNREACHABLE");
    assert!(got.text.contains("where no server is"), "{}", got.text);
    body["surprise"] = json!(1);
    let got = admin
        .post("/operators", &body)
        .await
        .refused(400, "VALIDATION_ERROR");
    assert!(got.text.contains("surprise"), "{}", got.text);
    admin
        .ask("post", "/operators", None, &[])
        .await
        .refused(415, "UNSUPPORTED_MEDIA_TYPE");
    let got = admin
        .ask(
            "post",
            "/operators",
            None,
            &[("content-type", "application/json")],
        )
        .await;
    got.refused(400, "VALIDATION_ERROR");
    running.server.stop().await;
}

#[tokio::test]
async fn lists_are_filtered_and_paged_in_a_stable_order() {
    let (running, repository) = (Running::start().await, widgets().await);
    let admin = &running.admin;
    for number in 0..5 {
        let mut body = registration(&repository, &format!("op-{number}"));
        body["labels"] = json!({"team": if number % 2 == 0 { "even" } else { "odd" }});
        body["namespace"] = json!(if number < 2 { "first" } else { "rest" });
        if number == 4 {
            body["version"] = json!("1.0.0");
        }
        admin.post("/operators", &body).await.expect(201);
    }
    let names = async |query: &str| -> (Vec<String>, Value) {
        let got = admin.get(&format!("/operators{query}")).await.expect(200);
        let names = got.body["operators"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["name"].as_str().unwrap().to_owned())
            .collect();
        (names, got.body)
    };
    let (all, body) = names("").await;
    assert_eq!(all, ["op-0", "op-1", "op-2", "op-3", "op-4"]);
    assert_eq!(
        (&body["total"], &body["limit"], &body["offset"], &body["hasMore"]),
        (&json!(5), &json!(20), &json!(0), &json!(false))
    );
    let (page, body) = names("?limit=2&offset=2").await;
    assert_eq!(page, ["op-2", "op-3"]);
    assert_eq!(
        (&body["total"], &body["hasMore"], &body["nextOffset"]),
        (&json!(5), &json!(true), &json!(4))
    );
    assert_eq!(names("?label=team=even").await.0, ["op-0", "op-2", "op-4"]);
    assert_eq!(names("?label=team=even&namespace=rest").await.0, ["op-2", "op-4"]);
    assert_eq!(names("?hasUpdate=true").await.0, ["op-4"]);
    assert_eq!(names("?offset=100").await.1["total"], 5);
    for bad in [
        "limit=0",
        "limit=101",
        "limit=x",
        "offset=-1",
        "offset=1000001",
        "hasUpdate=maybe",
        "label=nothing",
        "unknown=1",
    ] {
        admin
            .get(&format!("/operators?{bad}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    running.server.stop().await;
}

#[tokio::test]
async fn definitions_are_discovered_from_charts_version_by_version() {
    let (running, repository) = (Running::start().await, widgets().await);
    let admin = &running.admin;
    admin
        .post("/operators", &registration(&repository, "widget"))
        .await
        .expect(201);
    let crd = until("all versions are discovered", async || {
        let versions = admin.get("/operators/widget/versions").await.body;
        let done = versions["versions"]
            .as_array()?
            .iter()
            .all(|v| v["crdDiscovery"] == "Discovered");
        if !done {
            return None;
        }
        Some(admin.get("/crds/widgets.example.com").await.expect(200).body)
    })
    .await;
    assert_eq!(crd["operatorName"], "widget");
    let history: Vec<(&str, &str)> = crd["schemaHistory"]
        .as_array()
        .unwrap()
        .iter()
        .map(|schema| {
            (
                schema["operatorVersion"].as_str().unwrap(),
                schema["approvalStatus"].as_str().unwrap(),
            )
        })
        .collect();
    // Whatever order they were found in: 2.0.0 drops a field, and is compared with the version before it.
    assert_eq!(
        history,
        [
            ("2.0.0", "Pending"),
            ("v1.1.0", "NotRequired"),
            ("1.0.0", "NotRequired")
        ]
    );
    let operator = admin.get("/operators/widget").await.body;
    assert_eq!(operator["crdNames"], json!(["widgets.example.com"]));
    running.server.stop().await;
}

#[tokio::test]
async fn malicious_and_broken_charts_are_named_and_hurt_nobody() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.archive("widget", "1.0.0", b"no archive".to_vec(), None);
    repository.archive("widget", "1.1.0", b"no archive".to_vec(), Some(&"0".repeat(64)));
    let bomb = format!("kind: CustomResourceDefinition\n{}", anchor_bomb());
    let good = definition("widgets.example.com", json!({})).to_string();
    repository.chart(
        "widget",
        "1.2.0",
        &[("crds/bomb.yaml", bomb), ("crds/good.json", good)],
    );
    repository.chart(
        "widget",
        "1.3.0",
        &[(
            "templates/crd.yaml",
            "{{ if .Values.x }}\nkind: CustomResourceDefinition\n{{ end }}".to_owned(),
        )],
    );
    admin
        .post("/operators", &registration(&repository, "widget"))
        .await
        .expect(201);
    let versions = until("all versions are looked at", async || {
        let versions = admin.get("/operators/widget/versions").await.body["versions"].clone();
        let waiting = versions
            .as_array()?
            .iter()
            .any(|v| v["crdDiscovery"] == "Pending");
        (!waiting).then_some(versions)
    })
    .await;
    let told = |version: &str| -> (String, String) {
        let row = versions
            .as_array()
            .unwrap()
            .iter()
            .find(|v| v["version"] == version)
            .unwrap();
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        (text("crdDiscovery"), text("crdDiscoveryMessage"))
    };
    assert_eq!(told("1.0.0").0, "Failed");
    assert!(told("1.1.0").1.contains("digest"), "{:?}", told("1.1.0"));
    assert_eq!(told("1.2.0").0, "Discovered");
    assert!(told("1.2.0").1.contains("bomb.yaml"), "{:?}", told("1.2.0"));
    assert!(told("1.3.0").1.contains("helm"), "{:?}", told("1.3.0"));
    admin.get("/crds/widgets.example.com").await.expect(200);
    running.server.stop().await;
}

#[tokio::test]
async fn a_refresh_finds_new_versions_and_forgets_those_that_are_gone() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    repository.chart("widget", "1.0.0", &[]);
    admin
        .post("/operators", &registration(&repository, "widget"))
        .await
        .expect(201);
    repository.chart("widget", "1.1.0", &[]);
    let got = admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    assert_eq!(got.body["latestVersion"], "1.1.0");
    assert_eq!(got.body["hasUpdate"], true);
    running.server.stop().await;
}

#[tokio::test]
async fn the_limit_of_operators_holds_also_when_many_come_at_once() {
    let running = Running::with(|settings| settings.limits.operators = 3).await;
    let repository = widgets().await;
    let bodies: Vec<Value> = (0..8)
        .map(|number| registration(&repository, &format!("op-{number}")))
        .collect();
    let got =
        futures::future::join_all(bodies.iter().map(|body| running.admin.post("/operators", body))).await;
    let made = got.iter().filter(|got| got.status == 201).count();
    assert_eq!(made, 3);
    for refused in got.into_iter().filter(|got| got.status != 201) {
        refused.refused(409, "OPERATOR_LIMIT_REACHED");
    }
    running.server.stop().await;
}

#[tokio::test]
async fn a_locked_repository_is_asked_with_sealed_credentials() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    let crd = definition("widgets.example.com", json!({})).to_string();
    repository.chart("widget", "1.0.0", &[("crds/widget.json", crd)]);
    repository.lock("robot", "planted-password");
    let mut body = registration(&repository, "widget");
    admin
        .post("/operators", &body)
        .await
        .refused(400, "CHART_REPOSITORY_UNREACHABLE");
    body["chartRepositoryCredentials"] = json!({"username": "robot", "password": "wrong"});
    admin
        .post("/operators", &body)
        .await
        .refused(400, "CHART_REPOSITORY_UNREACHABLE");
    body["chartRepositoryCredentials"] = json!({"username": "robot", "password": "planted-password"});
    let made = admin.post("/operators", &body).await.expect(201);
    assert_eq!(made.body["hasChartRepositoryCredentials"], true);
    assert!(!made.text.contains("planted-password"));
    // The background task opens them too.
    until("its definitions are found", async || {
        let got = admin.get("/operators/widget/versions").await.expect(200);
        (got.body["versions"][0]["crdDiscovery"] == "Discovered").then_some(())
    })
    .await;
    // Others are proven before they replace the ones that work.
    repository.lock("robot", "another-password");
    let wrong = json!({"chartRepositoryCredentials": {"username": "robot", "password": "planted-password"}});
    admin
        .put("/operators/widget", &wrong)
        .await
        .refused(400, "CHART_REPOSITORY_UNREACHABLE");
    let right = json!({"chartRepositoryCredentials": {"username": "robot", "password": "another-password"}});
    admin.put("/operators/widget", &right).await.expect(200);
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    let open: Vec<u8> = sqlx::query_scalar("select credentials from operators")
        .fetch_one(&pool(&running.database_url).await)
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(&open).contains("another-password"));
    let mut plain = body;
    plain["chartRepository"] = json!("http://charts.example.com");
    plain["name"] = json!("plain");
    let refused = admin
        .post("/operators", &plain)
        .await
        .refused(400, "VALIDATION_ERROR");
    assert!(refused.text.contains("plain http"), "{}", refused.text);
    running.server.stop().await;
}

#[tokio::test]
async fn a_change_needs_one_connection_to_the_database() {
    let running = Running::with(|settings| settings.database_connections = 2).await;
    let (admin, repository) = (&running.admin, widgets().await);
    admin
        .post("/operators", &registration(&repository, "widget"))
        .await
        .expect(201);
    until("all versions are discovered", async || {
        let versions = admin.get("/operators/widget/versions").await.body;
        let mut versions = versions["versions"].as_array()?.iter();
        versions.all(|v| v["crdDiscovery"] == "Discovered").then_some(())
    })
    .await;
    let begin = std::time::Instant::now();
    let change = json!({"currentVersion": "1.0.0"});
    let changes = (0..8).map(|_| admin.put("/operators/widget", &change));
    for got in futures::future::join_all(changes).await {
        got.expect(200);
    }
    let took = begin.elapsed();
    assert!(took < std::time::Duration::from_secs(8), "{took:?}");
    running.server.stop().await;
}

#[tokio::test]
async fn a_current_version_may_be_older_than_those_that_are_kept() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let admin = &running.admin;
    let oldest = ["0.8.0", "0.9.0", "v1.0.0"].map(str::to_owned);
    for version in oldest
        .into_iter()
        .chain((0..202).map(|patch| format!("2.0.{patch}")))
    {
        repository.chart("widget", &version, &[]);
    }
    let mut body = registration(&repository, "old");
    body["currentVersion"] = json!("1.0.0");
    let made = admin.post("/operators", &body).await.expect(201);
    assert_eq!(made.body["currentVersion"], "v1.0.0");
    assert_eq!(
        (&made.body["latestVersion"], &made.body["hasUpdate"]),
        (&json!("2.0.201"), &json!(true))
    );
    let last = async |name: &str| {
        let got = admin.get(&format!("/operators/{name}/versions?offset=200")).await;
        let got = got.expect(200).body;
        (got["total"].clone(), got["versions"][0]["version"].clone())
    };
    assert_eq!(last("old").await, (json!(201), json!("v1.0.0")));
    // Later, too; and it stays when the repository is asked again.
    admin
        .post("/operators", &registration(&repository, "new"))
        .await
        .expect(201);
    assert_eq!(last("new").await, (json!(200), Value::Null));
    let change = |version: &str| json!({"currentVersion": version});
    let got = admin.put("/operators/new", &change("0.9.0")).await.expect(200);
    assert_eq!(got.body["currentVersion"], "0.9.0");
    admin
        .ask("post", "/operators/new/refresh", None, &[])
        .await
        .expect(200);
    assert_eq!(last("new").await, (json!(201), json!("0.9.0")));
    let refused = admin.put("/operators/new", &change("0.7.0")).await;
    let refused = refused.refused(400, "VALIDATION_ERROR");
    assert!(refused.text.contains("no version 0.7.0"), "{}", refused.text);
    running.server.stop().await;
}
