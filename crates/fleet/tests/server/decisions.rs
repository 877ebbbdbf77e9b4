//! Approvals and rejections, and the fields of the original's bodies that tell of them.

use gantry_fleet_domain::access::Role;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::support::{Running, definition};

const NAME: &str = "things.example.com";

fn registration(version: &str, fields: &[&str]) -> Value {
    let fields = fields
        .iter()
        .map(|name| ((*name).to_owned(), json!({"type": "string"})));
    let fields: Value = fields.collect::<serde_json::Map<_, _>>().into();
    json!({"schemaDefinition": definition(NAME, fields), "operatorVersion": version})
}

#[tokio::test]
async fn a_breaking_schema_is_rejected_and_nobody_may_use_it_until_somebody_thinks_again() {
    let running = Running::start().await;
    let admin = &running.admin;
    admin
        .post("/crds", &registration("1.0.0", &["a", "b"]))
        .await
        .expect(201);
    let path = format!("/crds/{NAME}");
    let decide = async |body: Value| admin.post(&format!("{path}/approve"), &body).await;
    decide(json!({"decision": "Reject", "notes": "no"}))
        .await
        .refused(409, "NOTHING_TO_APPROVE");
    admin.post("/crds", &registration("3.0.0", &[])).await.expect(201);
    decide(json!({"decision": "Reject"}))
        .await
        .refused(400, "VALIDATION_ERROR");
    running
        .role(Role::Operator)
        .post(
            &format!("{path}/approve"),
            &json!({"decision": "Reject", "reason": "no"}),
        )
        .await
        .refused(403, "FORBIDDEN");
    let got = decide(json!({"decision": "Reject", "reason": "a is in use"}))
        .await
        .expect(200);
    let newest = got.body["schemaHistory"][0].clone();
    for of in [&got.body, &newest] {
        assert_eq!(
            (&of["approvalStatus"], &of["approvedBy"]),
            (&json!("Rejected"), &json!("admin"))
        );
        assert!(of["approvedAt"].as_str().unwrap().parse::<Timestamp>().is_ok());
    }
    assert_eq!(newest["approvalNotes"], "a is in use");
    let uses = newest["usage"].as_array().unwrap();
    assert!(!uses.is_empty());
    for usage in uses {
        assert_eq!(
            (&usage["mayBeUsed"], &usage["reason"]),
            (&json!(false), &json!("Rejected"))
        );
    }
    let rejected = admin.get("/crds?approvalStatus=Rejected").await.expect(200);
    assert_eq!(rejected.body["total"], 1);
    assert_eq!(admin.get("/audit?action=crd.rejected").await.body["total"], 1);
    // What comes in between takes part of the break away, and not the decision.
    let got = admin
        .post("/crds", &registration("2.0.0", &["b"]))
        .await
        .expect(201);
    let newest = &got.body["schemaHistory"][0];
    assert_eq!(
        (
            &newest["operatorVersion"],
            &newest["approvalStatus"],
            &newest["approvedBy"]
        ),
        (&json!("3.0.0"), &json!("Rejected"), &json!("admin"))
    );
    // 2.0.0 waits; 3.0.0 is decided on again only by name.
    let got = decide(json!({})).await.expect(200);
    assert_eq!(got.body["approvalStatus"], "Rejected");
    decide(json!({})).await.refused(409, "NOTHING_TO_APPROVE");
    let again = json!({"operatorVersion": "3.0.0", "decision": "Approve", "notes": "moved"});
    assert_eq!(decide(again).await.expect(200).body["approvalStatus"], "Approved");
    running.server.stop().await;
}

#[tokio::test]
async fn answers_have_the_fields_of_the_original() {
    let running = Running::start().await;
    let admin = &running.admin;
    admin
        .post("/crds", &registration("1.0.0", &["a"]))
        .await
        .expect(201);
    let made = admin
        .post("/crds", &registration("2.0.0", &[]))
        .await
        .expect(201)
        .body;
    assert_eq!(
        (&made["schemaVersion"], &made["approvedBy"]),
        (&json!("2.0"), &Value::Null)
    );
    let approve = json!({"notes": "fine"});
    admin
        .post(&format!("/crds/{NAME}/approve"), &approve)
        .await
        .expect(200);
    let listed = admin.get("/crds").await.expect(200).body["crds"][0].clone();
    let shown = admin.get(&format!("/crds/{NAME}")).await.expect(200).body;
    for crd in [&listed, &shown] {
        assert_eq!(
            (&crd["schemaVersion"], &crd["approvedBy"]),
            (&json!("2.0"), &json!("admin"))
        );
        assert!(crd["approvedAt"].is_string());
    }
    let history = &shown["schemaHistory"];
    assert_eq!(
        (&history[0]["schemaVersion"], &history[1]["schemaVersion"]),
        (&json!("2.0"), &json!("1.0"))
    );
    let change = &history[0]["changes"][0];
    assert_eq!(
        (&change["operatorVersion"], &change["changedAt"]),
        (&json!("2.0.0"), &history[0]["createdAt"])
    );
    let proposal = json!({
        "newSchemaDefinition": {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object"}}},
        "newOperatorVersion": "3.0.0",
    });
    let judged = admin
        .post(&format!("/crds/{NAME}/validate"), &proposal)
        .await
        .expect(200)
        .body;
    let change = &judged["breakingChanges"][0];
    assert_eq!(
        (&change["operatorVersion"], &change["changedAt"]),
        (&json!("3.0.0"), &Value::Null),
        "{judged}"
    );
    running.server.stop().await;
}

#[tokio::test]
async fn definitions_are_listed_by_approval_page_by_page() {
    let running = Running::start().await;
    let admin = &running.admin;
    let text = json!({"type": "string"});
    let (both, one) = (json!({"a": text, "b": text}), json!({"a": text}));
    let register = async |name: &str, version: &str, fields: &Value| {
        let body = json!({"schemaDefinition": definition(name, fields.clone()), "operatorVersion": version});
        admin.post("/crds", &body).await.expect(201);
    };
    let names: Vec<String> = (0..6).map(|n| format!("things{n}.example.com")).collect();
    for name in &names {
        register(name, "1.0.0", &both).await;
        register(name, "2.0.0", &one).await;
    }
    // What waits is not the newest of the first, and decided or waived of two others.
    register(&names[0], "3.0.0", &one).await;
    let path = |name: &str, what: &str| format!("/crds/{name}/{what}");
    admin
        .post(&path(&names[1], "approve"), &json!({}))
        .await
        .expect(200);
    let shown = admin.get(&format!("/crds/{}", names[2])).await.expect(200).body;
    let waiver = json!({
        "fingerprint": shown["schemaHistory"][0]["changes"][0]["fingerprint"], "reason": "unused",
        "expires": Timestamp::now().strftime("%F").to_string(),
    });
    admin.post(&path(&names[2], "waivers"), &waiver).await.expect(201);
    let list = async |query: &str| {
        let got = admin.get(&format!("/crds?{query}")).await.expect(200).body;
        let listed: Vec<String> = got["crds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|crd| crd["name"].as_str().unwrap().to_owned())
            .collect();
        (listed, got["total"].as_u64().unwrap())
    };
    for (query, expected, total) in [
        ("", &names[..], 6),
        ("limit=2&offset=3", &names[3..5], 6),
        ("limit=2&offset=6", &[], 6),
        ("approvalStatus=Pending", &names[3..], 3),
        ("approvalStatus=Pending&limit=2", &names[3..5], 3),
        ("approvalStatus=Pending&limit=2&offset=2", &names[5..], 3),
        ("approvalStatus=Pending&offset=3", &[], 3),
        ("approvalStatus=Pending&group=example.org", &[], 0),
        ("approvalStatus=Approved", &names[1..2], 1),
        ("approvalStatus=Waived", &names[2..3], 1),
        ("approvalStatus=NotRequired", &names[..1], 1),
        ("approvalStatus=Rejected", &[], 0),
    ] {
        assert_eq!(list(query).await, (expected.to_vec(), total), "{query}");
    }
    running.server.stop().await;
}

#[tokio::test]
async fn a_long_history_is_read_page_by_page() {
    let running = Running::start().await;
    let admin = &running.admin;
    // The second breaks; what runs nowhere is judged by itself.
    for (version, names) in [
        ("1.0.0", &["a", "b"][..]),
        ("2.0.0", &["b"]),
        ("3.0.0", &["b", "c"]),
    ] {
        admin
            .post("/crds", &registration(version, names))
            .await
            .expect(201);
    }
    let show = async |query: &str| admin.get(&format!("/crds/{NAME}{query}")).await.expect(200).body;
    let all = show("").await;
    let whole = all["schemaHistory"].as_array().unwrap();
    assert_eq!(whole.len(), 3);
    for (query, part) in [
        ("?limit=1", &whole[..1]),
        ("?limit=1&offset=1", &whole[1..2]),
        ("?offset=1", &whole[1..]),
        ("?limit=100&offset=3", &[]),
        ("?offset=1000000", &[]),
    ] {
        let mut got = show(query).await;
        assert_eq!(got["schemaHistoryTotal"], 3, "{query}");
        assert_eq!(got["schemaHistory"].as_array().unwrap(), part, "{query}");
        // The rest is the same.
        got["schemaHistory"] = all["schemaHistory"].clone();
        assert_eq!(got, all, "{query}");
    }
    let second = show("?limit=1&offset=1").await;
    assert_eq!(second["schemaHistory"][0]["approvalStatus"], "Pending");
    for query in ["?limit=0", "?limit=101", "?offset=1000001", "?page=1"] {
        admin
            .get(&format!("/crds/{NAME}{query}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    running.server.stop().await;
}
