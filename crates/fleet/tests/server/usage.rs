//! Where a schema may be used, by what the clusters run and by what somebody has approved.

use super::support::{Asker, Running, definition, kube::StandIn, pool, until};
use gantry_fleet::orchestrator::renewal;
use jiff::SignedDuration;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const NAME: &str = "things.example.com";
const PATH: &str = "/crds/things.example.com";

fn fields(names: &[&str]) -> Value {
    let fields = names
        .iter()
        .map(|name| ((*name).to_owned(), json!({"type": "string"})));
    fields.collect::<serde_json::Map<_, _>>().into()
}

async fn register(admin: &Asker, version: &str, definition: &Value) {
    let body = json!({"schemaDefinition": definition, "operatorVersion": version});
    admin.post("/crds", &body).await.expect(201);
}

/// With another version beside `v1`.
fn with_version(definition: &Value, name: &str) -> Value {
    let mut both = definition.clone();
    let mut other = both["spec"]["versions"][0].clone();
    other["name"] = json!(name);
    other["storage"] = json!(false);
    both["spec"]["versions"].as_array_mut().unwrap().push(other);
    both
}

async fn with_cluster(admin: &Asker, cluster: &StandIn, name: &str, environment: &str) {
    let mut body = cluster.registration(name, "t");
    body["environment"] = json!(environment);
    admin.post("/clusters", &body).await.expect(201);
}

/// The word and the sentence for an environment.
fn of(usage: &Value, environment: &str) -> (bool, String, String) {
    let found = usage
        .as_array()
        .unwrap()
        .iter()
        .find(|usage| usage["environment"] == environment);
    let found = found.unwrap_or_else(|| panic!("{environment} is not in {usage}"));
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (
        found["mayBeUsed"].as_bool().unwrap(),
        text("reason"),
        text("message"),
    )
}

fn word(usage: &Value, environment: &str) -> (bool, String) {
    let (may, reason, _) = of(usage, environment);
    (may, reason)
}

fn yes(reason: &str) -> (bool, String) {
    (true, reason.to_owned())
}

fn no(reason: &str) -> (bool, String) {
    (false, reason.to_owned())
}

#[tokio::test]
async fn a_breaking_schema_may_not_be_used_in_production_before_it_is_approved() {
    let running = Running::start().await;
    let admin = &running.admin;
    let cluster = StandIn::start().await;
    let first = definition(NAME, fields(&["a", "b"]));
    cluster.define(&first, &["v1"]);
    with_cluster(admin, &cluster, "prod", "Production").await;
    with_cluster(admin, &StandIn::start().await, "canary", "canary").await;
    register(admin, "1.0.0", &first).await;
    register(admin, "2.0.0", &definition(NAME, fields(&["b"]))).await;
    // Nothing breaks from 2.0.0 to 2.1.0, but production runs 1.0.0.
    register(admin, "2.1.0", &definition(NAME, fields(&["b", "c"]))).await;
    let usage = async |version: &str| -> Value {
        let shown = admin.get(PATH).await.expect(200).body;
        let history = shown["schemaHistory"].as_array().unwrap();
        let schema = history.iter().find(|schema| schema["operatorVersion"] == version);
        schema.unwrap()["usage"].clone()
    };
    assert_eq!(
        word(&usage("1.0.0").await, "Production"),
        yes("Compatible"),
        "it runs there"
    );
    for version in ["2.0.0", "2.1.0"] {
        let usage = usage(version).await;
        let (may, reason, message) = of(&usage, "Production");
        assert_eq!((may, reason), no("ApprovalRequired"), "{version}");
        for part in ["2.0.0", ".spec.a", "/api/v1/crds/things.example.com/approve"] {
            assert!(message.contains(part), "{message}");
        }
    }
    assert_eq!(word(&usage("2.0.0").await, "Staging"), yes("NotProduction"));
    assert_eq!(word(&usage("2.0.0").await, "canary"), yes("NotProduction"));
    assert_eq!(
        word(&usage("2.1.0").await, "Staging"),
        yes("Compatible"),
        "nothing runs there"
    );

    // What is validated is told the same before it is registered; the step before it waits still.
    let proposal = json!({
        "newSchemaDefinition": definition(NAME, fields(&["b", "c", "d"])), "newOperatorVersion": "2.2.0",
    });
    let validated = admin
        .post(&format!("{PATH}/validate"), &proposal)
        .await
        .expect(200)
        .body;
    assert_eq!(
        (&validated["isCompatible"], &validated["requiresApproval"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(word(&validated["usage"], "Production"), no("ApprovalRequired"));
    assert_eq!(word(&validated["usage"], "Development"), yes("Compatible"));

    admin
        .post(
            &format!("{PATH}/approve"),
            &json!({"operatorVersion": "2.0.0", "notes": "nobody uses a"}),
        )
        .await
        .expect(200);
    assert_eq!(word(&usage("2.1.0").await, "Production"), yes("Approved"));
    // What was approved is another change than the one that is there when a version comes in between.
    register(admin, "1.5.0", &definition(NAME, fields(&["a", "b", "z"]))).await;
    assert_eq!(word(&usage("2.1.0").await, "Production"), no("ApprovalRequired"));
    // Waived one by one, it is as good as approved, as long as that lasts.
    let shown = admin.get(PATH).await.expect(200).body;
    let schema = &shown["schemaHistory"][1];
    assert_eq!(schema["operatorVersion"], "2.0.0");
    let today = jiff::Timestamp::now().strftime("%F").to_string();
    for change in schema["changes"].as_array().unwrap() {
        if change["isBreaking"] == true {
            let waiver = json!({"fingerprint": change["fingerprint"], "reason": "unused", "expires": today});
            admin.post(&format!("{PATH}/waivers"), &waiver).await.expect(201);
        }
    }
    assert_eq!(word(&usage("2.1.0").await, "Production"), yes("Waived"));
    admin
        .post(
            &format!("{PATH}/deprecate"),
            &json!({"reason": "gadgets are better"}),
        )
        .await
        .expect(200);
    let (may, reason, message) = of(&usage("2.1.0").await, "Production");
    assert_eq!((may, reason), yes("Deprecated"));
    assert!(message.contains("gadgets are better"), "{message}");
    running.server.stop().await;
}

#[tokio::test]
async fn what_clusters_run_and_store_counts_without_being_asked_for() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_secs(1)).await;
    let admin = &running.admin;
    let limited = |most: u32| {
        let size = json!({"size": {"type": "integer", "maximum": most}});
        definition(NAME, size)
    };
    let first = with_version(&limited(9), "v1alpha1");
    let second = limited(9);
    register(admin, "1.0.0", &first).await;
    register(admin, "2.0.0", &second).await;
    let diff = format!("{PATH}/diff?from=1.0.0&to=2.0.0");
    let validate = format!("{PATH}/validate");
    let tighter = json!({"newSchemaDefinition": limited(5)});
    let why = |body: &Value| {
        body["breakingChanges"][0]["description"]
            .as_str()
            .unwrap()
            .to_owned()
    };

    // Nobody has it: nothing is known of servers and objects.
    let got = admin.get(&diff).await.expect(200).body;
    assert!(
        got["report"]["serverVersion"].is_null() && got["clusters"] == json!([]),
        "{got}"
    );
    assert!(
        got["report"]
            .to_string()
            .contains("only a cluster's status.storedVersions tells")
    );
    let got = admin.post(&validate, &tighter).await.expect(200).body;
    assert!(!why(&got).contains("server lets stored objects pass"), "{got}");

    let (new, old) = (StandIn::start().await, StandIn::start().await);
    new.minor.store(33, Ordering::SeqCst);
    new.define(&second, &["v1"]);
    with_cluster(admin, &new, "new", "Production").await;
    let got = admin.post(&validate, &tighter).await.expect(200).body;
    assert!(
        why(&got).contains("A 1.33 server lets stored objects pass"),
        "{got}"
    );
    assert_eq!(
        got["requiresApproval"], true,
        "new objects are refused all the same"
    );
    assert_eq!(
        (
            &got["clusters"][0]["kubernetesVersion"],
            &got["clusters"][0]["storedVersions"]
        ),
        (&json!("v1.33.2"), &json!(["v1"]))
    );
    let asked = json!({"newSchemaDefinition": limited(5), "serverVersion": "1.28"});
    let asked = admin.post(&validate, &asked).await.expect(200).body;
    assert!(
        !why(&asked).contains("lets stored objects pass"),
        "what is asked for counts"
    );
    let got = admin.get(&diff).await.expect(200).body;
    assert!(
        got["report"].to_string().contains("nothing stored in it"),
        "{}",
        got["report"]
    );

    // An older server, and objects in a version that 2.0.0 does not have.
    old.minor.store(28, Ordering::SeqCst);
    old.define(&first, &["v1alpha1", "v1"]);
    with_cluster(admin, &old, "old", "Staging").await;
    let got = admin.post(&validate, &tighter).await.expect(200).body;
    assert!(
        !why(&got).contains("lets stored objects pass"),
        "the oldest counts"
    );
    let got = admin.get(&diff).await.expect(200).body;
    assert_eq!(got["report"]["serverVersion"], "1.28");
    assert!(
        got["report"]
            .to_string()
            .contains("the update is going to be refused"),
        "{}",
        got["report"]
    );
    let wider = json!({"newSchemaDefinition": limited(20)});
    let got = admin.post(&validate, &wider).await.expect(200).body;
    assert_eq!(got["breakingChanges"], json!([]), "from 2.0.0 nothing breaks");
    assert_eq!(got["isCompatible"], false, "but for those who are not there yet");
    let (may, reason, message) = of(&got["usage"], "Staging");
    assert_eq!((may, reason), no("StoredVersionRemoved"));
    assert!(message.contains("v1alpha1 in old"), "{message}");
    assert_eq!(word(&got["usage"], "Production"), yes("Compatible"));

    // Its objects were written anew: the next look sees it.
    old.define(&first, &["v1"]);
    until("the version is not stored any more", async || {
        let got = admin.post(&validate, &wider).await.expect(200).body;
        (got["isCompatible"] == true).then_some(())
    })
    .await;
    running.server.stop().await;
}

/// What `GET` says of one version.
async fn usage_of(admin: &Asker, version: &str) -> Value {
    let shown = admin.get(PATH).await.expect(200).body;
    let history = shown["schemaHistory"].as_array().unwrap();
    let schema = history.iter().find(|schema| schema["operatorVersion"] == version);
    schema.unwrap()["usage"].clone()
}

#[tokio::test]
async fn a_break_beside_the_schema_needs_an_approval_as_well() {
    let running = Running::start().await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let without = definition(NAME, fields(&["a"]));
    let mut with = without.clone();
    with["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    cluster.define(&with, &["v1"]);
    with_cluster(admin, &cluster, "prod", "Production").await;
    register(admin, "1.0.0", &with).await;
    register(admin, "2.0.0", &without).await;
    let runs = async || admin.get(PATH).await.expect(200).body["clusters"][0]["operatorVersion"].clone();
    assert_eq!(runs().await, "1.0.0", "the schema alone is the same");
    let usage = usage_of(admin, "2.0.0").await;
    assert_eq!(word(&usage, "Production"), no("ApprovalRequired"));
    admin
        .post(
            "/crds",
            &json!({"schemaDefinition": without, "operatorVersion": "1.0.0"}),
        )
        .await
        .refused(409, "CRD_VERSION_ALREADY_EXISTS");

    // As an older Gantry left it.
    let pool = pool(&running.database_url).await;
    sqlx::query("update crd_schemas set digest = 'old', back = null")
        .execute(&pool)
        .await
        .unwrap();
    assert_eq!(runs().await, Value::Null, "nobody knows");
    register(admin, "1.0.0", &with).await;
    renewal::renew(&running.server.fleet).await.unwrap();
    assert_eq!(runs().await, "1.0.0");
    let unknown: i64 = sqlx::query_scalar("select count(*) from crd_schemas where back is null")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(unknown, 0);
    running.server.stop().await;
}

#[tokio::test]
async fn a_downgrade_is_judged_by_what_it_loses() {
    let running = Running::start().await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let newer = definition(NAME, fields(&["a", "b"]));
    cluster.define(&newer, &["v1"]);
    with_cluster(admin, &cluster, "prod", "Production").await;
    register(admin, "1.0.0", &definition(NAME, fields(&["a"]))).await;
    register(admin, "2.0.0", &newer).await;
    let (may, reason, message) = of(&usage_of(admin, "1.0.0").await, "Production");
    assert_eq!((may, reason), no("DowngradeBreaks"));
    for part in ["prod runs", "2.0.0", ".spec.b", "diff?to=2.0.0"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(
        word(&usage_of(admin, "1.0.0").await, "Staging"),
        yes("Compatible"),
        "nothing runs there"
    );
    // The message says where the finding is, and it can be waived.
    let diff = admin.get(&format!("{PATH}/diff?to=2.0.0")).await.expect(200).body;
    let findings = diff["report"]["findings"].as_array().unwrap();
    let back = findings
        .iter()
        .find(|finding| finding["direction"] == "backward" && finding["impact"] == "breaking");
    let expires = (jiff::Timestamp::now() + SignedDuration::from_hours(48)).to_string();
    let waiver = json!({
        "fingerprint": back.unwrap()["fingerprint"], "reason": "nobody uses b", "expires": &expires[..10]});
    admin.post(&format!("{PATH}/waivers"), &waiver).await.expect(201);
    assert_eq!(
        word(&usage_of(admin, "1.0.0").await, "Production"),
        yes("Compatible")
    );
    running.server.stop().await;
}

#[tokio::test]
async fn a_cluster_that_nobody_can_look_into_may_run_what_is_older_than_all_that_breaks() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_secs(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let versions = [&["a", "b"][..], &["b"], &["b", "c"]].map(|names| definition(NAME, fields(names)));
    // The second breaks, the third breaks nothing by itself.
    for (number, definition) in versions.iter().enumerate() {
        register(admin, &format!("{}.0.0", number + 1), definition).await;
    }
    let newest = async || usage_of(admin, "3.0.0").await;
    assert_eq!(
        word(&newest().await, "Production"),
        yes("Compatible"),
        "no cluster"
    );
    cluster.define(&versions[0], &["v1"]);
    cluster.forbids_definitions.store(true, Ordering::SeqCst);
    with_cluster(admin, &cluster, "prod", "Production").await;
    let is_unknown = |usage: &Value| {
        let (may, reason, message) = of(usage, "Production");
        assert_eq!((may, reason), no("ApprovalRequired"), "{message}");
        assert!(message.contains("2.0.0"), "{message}");
        message.contains("what prod runs is not known now")
    };
    assert!(is_unknown(&newest().await));
    assert_eq!(word(&newest().await, "Staging"), yes("Compatible"));
    let proposal = json!({"newSchemaDefinition": versions[2], "newOperatorVersion": "3.0.1"});
    let validated = admin.post(&format!("{PATH}/validate"), &proposal).await;
    assert!(is_unknown(&validated.expect(200).body["usage"]));

    cluster.forbids_definitions.store(false, Ordering::SeqCst);
    until("it is known to run 1.0.0", async || {
        (!is_unknown(&newest().await)).then_some(())
    })
    .await;
    cluster.define(&versions[1], &["v1"]);
    until("it runs 2.0.0", async || {
        (word(&newest().await, "Production") == yes("Compatible")).then_some(())
    })
    .await;
    cluster.forbids_definitions.store(true, Ordering::SeqCst);
    until("a look could not read them", async || {
        let shown = admin.get("/clusters/prod").await.expect(200).body;
        let message = shown["healthMessage"].as_str().unwrap();
        message.contains("could not be read").then_some(())
    })
    .await;
    assert_eq!(
        word(&newest().await, "Production"),
        yes("Compatible"),
        "it is not long ago"
    );
    let pool = pool(&running.database_url).await;
    for (when, what) in [("-", "long ago"), ("+", "yet to come")] {
        let sql = format!("update clusters set definitions_seen_at = now() {when} interval '10 minutes'");
        let sql = sqlx::AssertSqlSafe(sql);
        sqlx::query(sql).execute(&pool).await.unwrap();
        assert!(is_unknown(&newest().await), "{what}");
    }
    // Nothing is brought to a cluster that is disabled.
    let disabled = json!({"isEnabled": false});
    admin.put("/clusters/prod", &disabled).await.expect(200);
    assert_eq!(word(&newest().await, "Production"), yes("Compatible"));
    running.server.stop().await;
}
