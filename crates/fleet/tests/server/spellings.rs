//! Fields that have two names, since clients know them by either: each is taken, and both at once are refused by name.

use serde_json::{Value, json};

use super::support::{Running, charts::Repository, definition, kube::StandIn};

struct Row {
    method: &'static str,
    path: &'static str,
    body: Value,
    /// Ours, and that of others which is sent in its place.
    names: &'static [(&'static str, &'static str)],
    status: u16,
    /// What the answer shows that the value was taken by.
    shown: &'static [(&'static str, &'static str)],
}

const CRD: &str = "/crds/things.example.com";

fn rows(repository: &str) -> Vec<Row> {
    let chart = |name: &str| json!({"name": name, "namespace": "n", "chartRepository": repository, "chartName": "widget"});
    let mut with_version = chart("one");
    with_version["currentVersion"] = json!("1.0.0");
    let change = json!({"currentVersion": "1.1.0", "chartRepository": repository, "chartName": "widget"});
    let schema = |kind: &str| definition("things.example.com", json!({"a": {"type": kind}}));
    let crd =
        |kind: &str, version: &str| json!({"schemaDefinition": schema(kind), "operatorVersion": version});
    let row = |method, path, body, names, status, shown| Row {
        method,
        path,
        body,
        names,
        status,
        shown,
    };
    vec![
        row(
            "post",
            "/operators",
            with_version,
            &[
                ("chartRepository", "helmRepository"),
                ("chartName", "chart"),
                ("currentVersion", "version"),
            ],
            201,
            &[("/chartName", "widget"), ("/currentVersion", "1.0.0")],
        ),
        row(
            "post",
            "/operators",
            chart("two"),
            &[
                ("chartRepository", "chartRepositoryUrl"),
                ("chartName", "helmChart"),
            ],
            201,
            &[("/chartName", "widget")],
        ),
        row(
            "put",
            "/operators/one",
            change,
            &[
                ("chartRepository", "helmRepository"),
                ("chartName", "chart"),
                ("currentVersion", "version"),
            ],
            200,
            &[("/currentVersion", "1.1.0")],
        ),
        row(
            "post",
            "/crds",
            crd("string", "1.0.0"),
            &[("schemaDefinition", "definition"), ("operatorVersion", "version")],
            201,
            &[
                ("/name", "things.example.com"),
                ("/schemaHistory/0/operatorVersion", "1.0.0"),
            ],
        ),
        row(
            "post",
            "/crds",
            crd("integer", "2.0.0"),
            &[("schemaDefinition", "crd"), ("operatorVersion", "version")],
            201,
            &[],
        ),
        row(
            "post",
            "/crds/things.example.com/validate",
            json!({"newSchemaDefinition": schema("string"), "newOperatorVersion": "3.0.0"}),
            &[
                ("newSchemaDefinition", "newSchema"),
                ("newOperatorVersion", "operatorVersion"),
            ],
            200,
            &[],
        ),
        row(
            "post",
            "/crds/things.example.com/validate",
            json!({"newSchemaDefinition": schema("string")}),
            &[("newSchemaDefinition", "schemaDefinition")],
            200,
            &[],
        ),
        row(
            "post",
            "/crds/things.example.com/prove",
            json!({"clusters": ["c"], "newSchemaDefinition": schema("string")}),
            &[("newSchemaDefinition", "newSchema")],
            200,
            &[("/crdName", "things.example.com")],
        ),
        row(
            "post",
            "/crds/things.example.com/approve",
            json!({"operatorVersion": "2.0.0", "decision": "reject", "notes": "it is in use"}),
            &[("notes", "reason")],
            200,
            &[],
        ),
        row(
            "put",
            "/clusters/c",
            json!({"isEnabled": false}),
            &[("isEnabled", "enabled")],
            200,
            &[],
        ),
        row(
            "post",
            "/authentication/login",
            json!({"username": "jo@example.com", "password": "correct horse battery"}),
            &[("username", "email")],
            200,
            &[("/user/username", "jo@example.com")],
        ),
    ]
}

#[tokio::test]
async fn either_name_of_a_field_is_taken_and_both_at_once_are_refused_by_name() {
    let (running, repository, cluster) = (
        Running::start().await,
        Repository::start().await,
        StandIn::start().await,
    );
    repository.chart("widget", "1.0.0", &[]);
    repository.chart("widget", "1.1.0", &[]);
    let admin = &running.admin;
    let body = cluster.registration("c", "t");
    admin.post("/clusters", &body).await.expect(201);
    let user =
        json!({"username": "jo@example.com", "password": "correct horse battery", "roles": ["Viewer"]});
    admin.post("/users", &user).await.expect(201);
    for row in rows(&repository.url) {
        for (ours, theirs) in row.names {
            let mut both = row.body.clone();
            both[*theirs] = both[*ours].clone();
            let refused = admin
                .ask(row.method, row.path, Some(&both), &[])
                .await
                .refused(400, "VALIDATION_ERROR");
            let wanted = format!("duplicate field `{ours}`");
            assert!(refused.text.contains(&wanted), "{theirs}: {}", refused.text);
        }
        let mut body = row.body;
        for (ours, theirs) in row.names {
            let value = body.as_object_mut().unwrap().remove(*ours).unwrap();
            body[*theirs] = value;
        }
        let got = admin.ask(row.method, row.path, Some(&body), &[]).await;
        let got = got.expect(row.status);
        for (pointer, value) in row.shown {
            let found = got.body.pointer(pointer);
            assert_eq!(found, Some(&json!(value)), "{pointer}: {}", got.text);
        }
    }
    let cluster = admin.get("/clusters/c").await.expect(200);
    assert_eq!(cluster.body["isEnabled"], false);
    let crd = admin.get(CRD).await.expect(200);
    assert!(crd.text.contains("it is in use"), "{}", crd.text);
    running.server.stop().await;
}
