//! Definitions: history, differences, approval.

use super::support::{
    Running,
    charts::Repository,
    definition,
    kube::{FLOOD, HANG, StandIn},
    pool,
};
use gantry_fleet_domain::access::Role;
use serde_json::{Value, json};

const NAME: &str = "things.example.com";

fn registration(version: &str, properties: Value) -> Value {
    json!({"schemaDefinition": definition(NAME, properties), "operatorVersion": version})
}

#[tokio::test]
async fn versions_are_kept_in_order_and_compared_with_their_neighbours() {
    let running = Running::start().await;
    let admin = &running.admin;
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let first = admin
        .post("/crds", &registration("1.0.0", json!({"a": text, "b": text})))
        .await
        .expect(201);
    assert_eq!(
        (&first.body["approvalStatus"], &first.body["kind"]),
        (&json!("NotRequired"), &json!("Thing"))
    );
    admin
        .post("/crds", &registration("3.0.0", json!({"a": text})))
        .await
        .expect(201);
    // One that comes in between: what follows it is judged anew.
    admin
        .post("/crds", &registration("2.0.0", json!({"a": text})))
        .await
        .expect(201);
    let shown = admin.get(&format!("/crds/{NAME}")).await.expect(200).body;
    let history: Vec<(&str, &str)> = shown["schemaHistory"]
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
    assert_eq!(
        history,
        [
            ("3.0.0", "NotRequired"),
            ("2.0.0", "Pending"),
            ("1.0.0", "NotRequired")
        ]
    );
    let change = &shown["schemaHistory"][1]["changes"][0];
    assert_eq!(
        (&change["changeType"], &change["severity"]),
        (&json!("Removed"), &json!("Critical"))
    );

    // The same again is the same; another schema under the same version is not.
    admin
        .post("/crds", &registration("v2.0.0", json!({"a": text})))
        .await
        .expect(201);
    admin
        .post("/crds", &registration("2.0.0", json!({"a": number})))
        .await
        .refused(409, "CRD_VERSION_ALREADY_EXISTS");

    let diff = admin
        .get(&format!("/crds/{NAME}/diff?from=1.0.0&to=3.0.0"))
        .await
        .expect(200)
        .body;
    assert_eq!(diff["report"]["forward"], "breaking");
    let diff = admin.get(&format!("/crds/{NAME}/diff")).await.expect(200).body;
    assert_eq!(
        (&diff["from"], &diff["to"], &diff["report"]["forward"]),
        (&json!("2.0.0"), &json!("3.0.0"), &json!("safe"))
    );
    admin
        .get(&format!("/crds/{NAME}/diff?from=9.0.0"))
        .await
        .refused(404, "CRD_VERSION_NOT_FOUND");
    admin
        .get(&format!("/crds/{NAME}/diff?to=1.0.0"))
        .await
        .refused(400, "VALIDATION_ERROR");
    for (query, total) in [
        ("", 1),
        ("?group=example.com", 1),
        ("?group=x", 0),
        ("?status=active", 1),
        ("?approvalStatus=Pending", 0),
    ] {
        assert_eq!(
            admin.get(&format!("/crds{query}")).await.expect(200).body["total"],
            total,
            "{query}"
        );
    }
    running.server.stop().await;
}

#[tokio::test]
async fn a_new_schema_is_validated_in_the_originals_words() {
    let running = Running::start().await;
    let admin = &running.admin;
    let text = json!({"type": "string"});
    admin
        .post("/crds", &registration("1.0.0", json!({"a": text})))
        .await
        .expect(201);
    let validate = format!("/crds/{NAME}/validate");
    let viewer = running.role(Role::Viewer);
    let good = json!({"newSchemaDefinition": definition(NAME, json!({"a": text, "b": text})), "newOperatorVersion": "v1.1.0"});
    let got = viewer.post(&validate, &good).await.expect(200).body;
    assert_eq!(
        (&got["isCompatible"], &got["requiresApproval"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        got["rollback"]["verdict"], "breaking",
        "what the new schema lets in, the old one prunes"
    );
    // A bare schema, as YAML.
    let bare = json!({"newSchemaDefinition": "type: object\nproperties:\n  spec:\n    type: object\n    properties:\n      a: {type: integer}\n"});
    let got = viewer.post(&validate, &bare).await.expect(200).body;
    assert_eq!(
        (&got["isCompatible"], &got["requiresApproval"]),
        (&json!(false), &json!(true))
    );
    let change = &got["breakingChanges"][0];
    assert!(change["fieldPath"].as_str().unwrap().contains("spec.a"), "{got}");
    assert!(change["description"].as_str().unwrap().len() > 20);
    viewer
        .post(&validate, &json!({"newSchemaDefinition": 7}))
        .await
        .refused(400, "VALIDATION_ERROR");
    viewer
        .post(&validate, &json!({"newSchemaDefinition": "a: &a [*a, *a"}))
        .await
        .refused(400, "VALIDATION_ERROR");
    viewer
        .post("/crds/no.example.com/validate", &good)
        .await
        .refused(404, "CRD_NOT_FOUND");
    running.server.stop().await;
}

#[tokio::test]
async fn a_breaking_schema_waits_for_an_administrator() {
    let running = Running::start().await;
    let admin = &running.admin;
    let text = json!({"type": "string"});
    admin
        .post("/crds", &registration("1.0.0", json!({"a": text})))
        .await
        .expect(201);
    let approve = format!("/crds/{NAME}/approve");
    admin
        .post(&approve, &json!({}))
        .await
        .refused(409, "NOTHING_TO_APPROVE");
    let got = admin
        .post("/crds", &registration("2.0.0", json!({})))
        .await
        .expect(201);
    assert_eq!(got.body["approvalStatus"], "Pending");
    running
        .role(Role::Operator)
        .post(&approve, &json!({}))
        .await
        .refused(403, "FORBIDDEN");
    let got = admin
        .post(&approve, &json!({"notes": "nobody uses a"}))
        .await
        .expect(200)
        .body;
    assert_eq!(got["approvalStatus"], "Approved");
    let schema = &got["schemaHistory"][0];
    assert_eq!(
        (&schema["approvedBy"], &schema["approvalNotes"]),
        (&json!("admin"), &json!("nobody uses a"))
    );
    admin
        .post(&approve, &json!({"operatorVersion": "1.0.0"}))
        .await
        .refused(409, "NOTHING_TO_APPROVE");
    running.server.stop().await;
}

#[tokio::test]
async fn a_definition_is_deprecated_and_has_a_guide() {
    let running = Running::start().await;
    let admin = &running.admin;
    let made = admin
        .post("/crds", &registration("1.0.0", json!({})))
        .await
        .expect(201);
    let tag = made.header("etag").to_owned();
    let path = format!("/crds/{NAME}");
    let guide = json!({"migrationGuide": "Use gadgets."});
    let got = admin
        .ask("put", &path, Some(&guide), &[("if-match", &tag)])
        .await
        .expect(200);
    assert_eq!(got.body["migrationGuide"], "Use gadgets.");
    admin
        .ask("put", &path, Some(&guide), &[("if-match", &tag)])
        .await
        .refused(412, "PRECONDITION_FAILED");
    admin
        .post(&format!("{path}/deprecate"), &json!({"reason": " "}))
        .await
        .refused(400, "VALIDATION_ERROR");
    let got = admin
        .post(
            &format!("{path}/deprecate"),
            &json!({"reason": "gadgets are better"}),
        )
        .await
        .expect(200)
        .body;
    assert_eq!(
        (&got["status"], &got["deprecationReason"]),
        (&json!("Deprecated"), &json!("gadgets are better"))
    );
    assert!(got["deprecatedAt"].is_string());
    running.server.stop().await;
}

/// Six megabytes of these would be a gigabyte in memory.
#[tokio::test]
async fn bodies_with_too_much_in_them_are_refused() {
    let running = Running::start().await;
    let admin = &running.admin;
    admin
        .post("/crds", &registration("1.0.0", json!({})))
        .await
        .expect(201);
    let validate = format!("/crds/{NAME}/validate");
    let wide = |objects: usize| json!({"type": "object", "x": vec![json!({"": 0}); objects]});
    let body = |objects: usize| json!({"newSchemaDefinition": wide(objects)});
    let viewer = running.role(Role::Viewer);
    for (path, body) in [
        (validate.as_str(), body(200_000)),
        (
            "/crds",
            json!({"schemaDefinition": wide(200_000), "operatorVersion": "2.0.0"}),
        ),
        ("/operators", json!({"name": "x", "defaultValues": wide(20_000)})),
    ] {
        let asker = if path == validate { &viewer } else { admin };
        let got = asker.post(path, &body).await.refused(413, "PAYLOAD_TOO_LARGE");
        assert!(got.text.contains("values and names"), "{}", got.text);
    }
    // As text too, and where a body is large enough for more: a kubeconfig is not.
    let text = json!({"newSchemaDefinition": wide(200_000).to_string()});
    viewer
        .post(&validate, &text)
        .await
        .refused(400, "VALIDATION_ERROR");
    let mut cluster = json!({"name": "c", "environment": "Dev"});
    cluster["kubeconfig"] = wide(10_000);
    let got = admin.post("/clusters", &cluster).await;
    let got = got.refused(400, "INVALID_KUBECONFIG");
    assert!(
        got.text.contains("more in it than a kubeconfig should"),
        "{}",
        got.text
    );
    // All of them are answered, whoever waits for whom.
    let small = body(1000);
    let many = (0..8).map(|_| viewer.post(&validate, &small));
    for got in futures::future::join_all(many).await {
        got.expect(200);
    }
    running.server.stop().await;
}

#[tokio::test]
async fn what_is_proven_of_some_clusters_is_not_lost_over_others() {
    let running = Running::with(|settings| settings.prove_within = std::time::Duration::from_secs(8)).await;
    let admin = &running.admin;
    let (good, bad) = (StandIn::start().await, StandIn::start().await);
    let mut asked = vec!["good".to_owned()];
    admin
        .post("/clusters", &good.registration("good", "t"))
        .await
        .expect(201);
    for number in 0..6 {
        let name = format!("hung-{number}");
        *bad.identity.lock().unwrap() = name.clone();
        admin
            .post("/clusters", &bad.registration(&name, "t"))
            .await
            .expect(201);
        asked.push(name);
    }
    admin
        .post("/crds", &registration("1.0.0", json!({})))
        .await
        .expect(201);
    bad.mood(HANG);
    let got = admin
        .post(&format!("/crds/{NAME}/prove"), &json!({"clusters": asked}))
        .await
        .expect(200);
    let clusters = got.body["clusters"].as_array().unwrap();
    assert_eq!(clusters.len(), 7);
    for cluster in clusters {
        let error = cluster["error"].as_str().unwrap_or_default();
        match cluster["clusterName"].as_str().unwrap() {
            "good" => assert_eq!(error, "", "{cluster}"),
            _ => assert!(error.contains("fewer clusters"), "{cluster}"),
        }
    }
    assert_eq!(got.body["hurtsNobody"], false, "{}", got.text);
    running.server.stop().await;
}

#[tokio::test]
async fn things_that_are_no_definitions_are_refused() {
    let running = Running::start().await;
    let bomb = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for bad in [
        json!({}),
        json!("a: 1"),
        json!([1]),
        json!(bomb),
        json!({"kind": "CustomResourceDefinition"}),
        json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "metadata": {"name": "x.y"}}),
    ] {
        let body = json!({"schemaDefinition": bad, "operatorVersion": "1.0.0"});
        running
            .admin
            .post("/crds", &body)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    // No API server takes a name that is not made of plural and group.
    for name in ["others.example.com", "things", "things.other.example.com"] {
        let mut body = registration("1.0.0", json!({}));
        body["schemaDefinition"]["metadata"]["name"] = json!(name);
        let got = running
            .admin
            .post("/crds", &body)
            .await
            .refused(400, "VALIDATION_ERROR");
        assert!(got.text.contains("spec.names.plural"), "{}", got.text);
    }
    let mut body = registration("1.0.0", json!({}));
    body["operatorName"] = json!("nobody");
    running
        .admin
        .post("/crds", &body)
        .await
        .refused(400, "VALIDATION_ERROR");
    let body = registration("latest", json!({}));
    running
        .admin
        .post("/crds", &body)
        .await
        .refused(400, "VALIDATION_ERROR");
    running.server.stop().await;
}

#[tokio::test]
async fn a_finding_is_waived_alone_and_for_a_time() {
    let running = Running::start().await;
    let admin = &running.admin;
    let name = "things.example.com";
    let text = json!({"type": "string"});
    for (version, properties) in [
        ("1.0.0", json!({"a": text, "b": text, "c": text})),
        ("2.0.0", json!({"c": text})),
    ] {
        let body = json!({"operatorVersion": version, "schemaDefinition": definition(name, properties)});
        admin.post("/crds", &body).await.expect(201);
    }
    let newest =
        async || admin.get("/crds/things.example.com").await.expect(200).body["schemaHistory"][0].clone();
    let prints: Vec<String> = newest().await["changes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|change| change["isBreaking"] == true)
        .map(|change| change["fingerprint"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(prints.len(), 2, "two fields are gone");
    let path = "/crds/things.example.com/waivers";
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let waiver = |print: &str| json!({"fingerprint": print, "reason": "nobody has set it", "expires": today});
    let made = admin.post(path, &waiver(&prints[0])).await.expect(201).body;
    assert_eq!(
        (&made["approver"], &made["isExpired"]),
        (&json!("admin"), &json!(false))
    );
    assert_eq!(
        newest().await["approvalStatus"],
        "Pending",
        "the other one still breaks"
    );
    admin.post(path, &waiver(&prints[1])).await.expect(201);
    assert_eq!(newest().await["approvalStatus"], "Waived");
    let total = async |status: &str| {
        admin
            .get(&format!("/crds?approvalStatus={status}"))
            .await
            .expect(200)
            .body["total"]
            .clone()
    };
    assert_eq!(
        (total("Waived").await, total("Pending").await),
        (json!(1), json!(0))
    );
    let body =
        json!({"newSchemaDefinition": definition(name, json!({"c": text})), "fromOperatorVersion": "1.0.0"});
    let validated = admin
        .post("/crds/things.example.com/validate", &body)
        .await
        .expect(200)
        .body;
    assert_eq!(validated["isCompatible"], true, "{validated}");
    let waived = validated["nonBreakingChanges"].as_array().unwrap();
    assert_eq!(
        waived.iter().filter(|change| change["isWaived"] == true).count(),
        2
    );
    let diff = admin.get("/crds/things.example.com/diff").await.expect(200).body;
    assert_eq!(diff["report"]["forward"], "safe", "{diff}");
    // It ends by itself.
    let pool = pool(&running.database_url).await;
    sqlx::query("update crd_waivers set expires = expires - 1 where fingerprint = $1")
        .bind(&prints[0])
        .execute(&pool)
        .await
        .unwrap();
    assert_eq!(newest().await["approvalStatus"], "Pending");
    let listed = admin.get(path).await.expect(200).body;
    assert_eq!(
        (listed["waivers"].as_array().unwrap().len(), &listed["total"]),
        (2, &json!(2))
    );
    for (page, print) in [("?limit=1", &prints[0]), ("?limit=1&offset=1", &prints[1])] {
        let page = admin.get(&format!("{path}{page}")).await.expect(200).body;
        let waivers = page["waivers"].as_array().unwrap();
        assert_eq!((waivers.len(), &page["total"]), (1, &json!(2)), "{page}");
        assert_eq!(waivers[0]["fingerprint"], *print, "{page}");
        assert_eq!(page["hasMore"], *print == prints[0], "{page}");
    }
    admin.delete(&format!("{path}/{}", prints[1])).await.expect(204);
    admin
        .delete(&format!("{path}/{}", prints[1]))
        .await
        .refused(404, "WAIVER_NOT_FOUND");
    for bad in [
        json!({"fingerprint": "x", "reason": "y", "expires": today}),
        json!({"fingerprint": prints[0], "reason": " ", "expires": today}),
        json!({"fingerprint": prints[0], "reason": "y", "expires": "2001-01-01"}),
        json!({"fingerprint": prints[0], "reason": "y", "expires": "2999-01-01"}),
        json!({"fingerprint": prints[0], "reason": "y"}),
    ] {
        admin.post(path, &bad).await.refused(400, "VALIDATION_ERROR");
    }
    running.server.stop().await;
}

#[tokio::test]
async fn a_proof_needs_clusters_that_are_there() {
    let running = Running::start().await;
    let admin = &running.admin;
    let body =
        json!({"operatorVersion": "1.0.0", "schemaDefinition": definition("things.example.com", json!({}))});
    admin.post("/crds", &body).await.expect(201);
    let path = "/crds/things.example.com/prove";
    admin
        .post(path, &json!({"clusters": []}))
        .await
        .refused(400, "VALIDATION_ERROR");
    admin
        .post(path, &json!({"clusters": ["x"]}))
        .await
        .refused(404, "CLUSTER_NOT_FOUND");
    let cluster = StandIn::start().await;
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    // It does not have the definition.
    let proof = admin
        .post(path, &json!({"clusters": ["c"]}))
        .await
        .expect(200)
        .body;
    assert_eq!(
        (&proof["hurtsNobody"], &proof["clusters"][0]["isInstalled"]),
        (&json!(true), &json!(false))
    );
    // One that cannot be asked proves nothing.
    cluster.mood(500);
    let proof = admin
        .post(path, &json!({"clusters": ["c"]}))
        .await
        .expect(200)
        .body;
    assert_eq!(proof["hurtsNobody"], false, "{proof}");
    assert!(
        proof["clusters"][0]["error"].as_str().unwrap().contains("500"),
        "{proof}"
    );
    // One that sends without end is not listened to for long.
    cluster.mood(FLOOD);
    let proof = admin
        .post(path, &json!({"clusters": ["c"]}))
        .await
        .expect(200)
        .body;
    assert!(
        proof["clusters"][0]["error"]
            .as_str()
            .unwrap()
            .contains("sends more at once"),
        "{proof}"
    );
    // One that is disabled is not asked at all.
    admin
        .put("/clusters/c", &json!({"isEnabled": false}))
        .await
        .expect(200);
    let asked = cluster.asked();
    let proof = admin
        .post(path, &json!({"clusters": ["c"]}))
        .await
        .expect(200)
        .body;
    assert_eq!((&proof["hurtsNobody"], cluster.asked()), (&json!(false), asked));
    assert!(
        proof["clusters"][0]["error"]
            .as_str()
            .unwrap()
            .contains("disabled"),
        "{proof}"
    );
    let audit = admin.get("/audit?action=crd.proof-asked").await.expect(200).body;
    assert_eq!(audit["total"], 4);
    running.server.stop().await;
}

#[tokio::test]
async fn many_who_register_at_once_wait_for_each_other() {
    let running = Running::with(|settings| settings.limits.crds_per_operator = 3).await;
    let (admin, repository) = (&running.admin, Repository::start().await);
    let bodies: Vec<Value> = (0..6)
        .map(|number| registration(&format!("1.0.{number}"), json!({})))
        .collect();
    for got in futures::future::join_all(bodies.iter().map(|body| admin.post("/crds", body))).await {
        got.expect(201);
    }
    let shown = admin.get(&format!("/crds/{NAME}")).await.expect(200).body;
    assert_eq!(shown["schemaHistory"].as_array().unwrap().len(), 6);

    repository.chart("widget", "1.0.0", &[]);
    let operator = json!({
        "name": "widget", "namespace": "ops", "chartRepository": repository.url, "chartName": "widget",
    });
    admin.post("/operators", &operator).await.expect(201);
    let owned = |name: &str| {
        json!({
            "schemaDefinition": definition(name, json!({})), "operatorVersion": "1.0.0", "operatorName": "widget",
        })
    };
    let bodies: Vec<Value> = (0..8)
        .map(|number| owned(&format!("things{number}.example.com")))
        .collect();
    let got = futures::future::join_all(bodies.iter().map(|body| admin.post("/crds", body))).await;
    assert_eq!(got.iter().filter(|got| got.status == 201).count(), 3);
    for refused in got.into_iter().filter(|got| got.status != 201) {
        refused.refused(409, "CRD_LIMIT_REACHED");
    }
    // One that was nobody's until now counts as well.
    admin
        .post("/crds", &owned(NAME))
        .await
        .refused(409, "CRD_LIMIT_REACHED");
    running.server.stop().await;
}

#[tokio::test]
async fn an_approval_is_for_the_changes_that_were_approved() {
    let running = Running::start().await;
    let admin = &running.admin;
    let fields = |names: &[&str]| -> Value {
        names
            .iter()
            .map(|name| ((*name).to_owned(), json!({"type": "string"})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let put = async |version: &str, names: &[&str]| -> Value {
        let body = registration(version, fields(names));
        admin.post("/crds", &body).await.expect(201).body["schemaHistory"][0].clone()
    };
    put("1.0.0", &["a", "b", "c"]).await;
    put("3.0.0", &["c"]).await;
    let approve = json!({"notes": "nobody uses a and b"});
    admin
        .post(&format!("/crds/{NAME}/approve"), &approve)
        .await
        .expect(200);
    // Of the two that were approved, one is left.
    let newest = put("2.0.0", &["b", "c"]).await;
    assert_eq!(
        (
            &newest["operatorVersion"],
            &newest["approvalStatus"],
            &newest["approvedBy"]
        ),
        (&json!("3.0.0"), &json!("Approved"), &json!("admin"))
    );
    // Another one is lost now, and nobody has said that it may be.
    let newest = put("2.5.0", &["b", "c", "d"]).await;
    assert_eq!(
        (
            &newest["operatorVersion"],
            &newest["approvalStatus"],
            &newest["approvedBy"]
        ),
        (&json!("3.0.0"), &json!("Pending"), &Value::Null)
    );
    running.server.stop().await;
}
