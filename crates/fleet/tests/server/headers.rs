//! What the document says of `If-Match` and `Idempotency-Key` is what the server does, operation by operation.

use serde_json::{Value, json};

use super::support::{Got, Running, charts::Repository, definition, kube::StandIn};

const CRD: &str = "things.example.com";

fn schema(version: &str, properties: Value) -> Value {
    json!({"schemaDefinition": definition(CRD, properties), "operatorVersion": version})
}

/// A server with one of everything, and for each operation that writes a request that would be done.
struct Furnished {
    running: Running,
    cluster: StandIn,
    repository: Repository,
    fingerprint: String,
}

impl Furnished {
    async fn new() -> Self {
        let running = Running::start().await;
        let (cluster, repository) = (StandIn::start().await, Repository::start().await);
        repository.chart("widget", "1.0.0", &[]);
        let mut furnished = Self {
            running,
            cluster,
            repository,
            fingerprint: String::new(),
        };
        let admin = &furnished.running.admin;
        admin
            .post("/operators", &furnished.operator("widget"))
            .await
            .expect(201);
        admin
            .post("/clusters", &furnished.cluster.registration("here", "t"))
            .await
            .expect(201);
        admin
            .post("/users", &furnished.body("createUser", "jo"))
            .await
            .expect(201);
        // Two versions that break something: one is approved, the finding of the other is waived.
        let some = json!({"a": {"type": "string"}, "b": {"type": "string"}});
        for (version, properties) in [
            ("1.0.0", some),
            ("2.0.0", json!({"b": {"type": "string"}})),
            ("3.0.0", json!({})),
        ] {
            admin
                .post("/crds", &schema(version, properties))
                .await
                .expect(201);
        }
        let got = admin.get(&format!("/crds/{CRD}")).await.expect(200);
        let changes = got.body["schemaHistory"][0]["changes"].as_array().unwrap();
        let breaking = changes.iter().find(|change| change["isBreaking"] == true);
        let fingerprint = breaking.unwrap()["fingerprint"].as_str().unwrap();
        fingerprint.clone_into(&mut furnished.fingerprint);
        furnished
    }

    fn operator(&self, name: &str) -> Value {
        json!({
            "name": name, "namespace": "ops", "chartRepository": self.repository.url, "chartName": "widget",
        })
    }

    /// Of an operation that makes something new, with this name.
    fn body(&self, operation: &str, name: &str) -> Value {
        let tomorrow = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
        let tomorrow = tomorrow.to_zoned(jiff::tz::TimeZone::UTC).date();
        match operation {
            "registerOperator" => self.operator(name),
            "registerCluster" => self.cluster.registration(name, "t"),
            "createUser" => {
                json!({"username": name, "password": "a long password indeed", "roles": ["Viewer"]})
            }
            "registerCrd" => schema("4.0.0", json!({})),
            "changeOperator" | "changeCluster" => json!({"description": "another"}),
            "changeCrd" => json!({"migrationGuide": "none"}),
            "approveCrd" => json!({"operatorVersion": "2.0.0"}),
            "deprecateCrd" => json!({"reason": "old"}),
            "addWaiver" => {
                json!({"fingerprint": self.fingerprint, "reason": "nobody has it", "expires": tomorrow})
            }
            "validateCrd" => json!({"newSchemaDefinition": {"type": "object"}}),
            "proveCrd" => json!({"clusters": ["here"]}),
            "login" => json!({"username": "jo", "password": "a long password indeed"}),
            "changePassword" => {
                json!({"currentPassword": "a long password indeed", "newPassword": "another long password"})
            }
            "refreshOperator" | "deleteOperator" | "deleteCluster" | "deleteWaiver" | "deleteUser" => {
                Value::Null
            }
            other => panic!("{other} is not known here: say in this test what it takes"),
        }
    }

    fn path(&self, path: &str) -> String {
        let name = match path.split('/').nth(3) {
            Some("operators") => "widget",
            Some("clusters") => "here",
            Some("crds") => CRD,
            _ => "jo",
        };
        path.replace("{name}", name)
            .replace("{fingerprint}", &self.fingerprint)
    }

    async fn ask(&self, operation: &Operation, name: &str, headers: &[(&str, &str)]) -> Got {
        let body = self.body(&operation.id, name);
        let body = (!body.is_null()).then_some(&body);
        self.running
            .admin
            .ask(&operation.method, &self.path(&operation.path), body, headers)
            .await
    }

    /// Those that write, in an order in which nothing is removed that is needed later.
    async fn operations(&self) -> Vec<Operation> {
        let document = self
            .running
            .admin
            .get("/api/v1/openapi.json")
            .await
            .expect(200)
            .body;
        let mut all = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, described) in methods.as_object().unwrap() {
                let headers = described["parameters"].as_array().unwrap().iter();
                let headers = headers.filter(|parameter| parameter["in"] == "header");
                all.push(Operation {
                    id: described["operationId"].as_str().unwrap().to_owned(),
                    method: method.clone(),
                    path: path.clone(),
                    headers: headers
                        .map(|header| header["name"].as_str().unwrap().to_owned())
                        .collect(),
                });
            }
        }
        all.retain(|operation| operation.method != "get");
        all
    }
}

struct Operation {
    id: String,
    method: String,
    path: String,
    headers: Vec<String>,
}

impl Operation {
    fn takes(&self, header: &str) -> bool {
        self.headers.iter().any(|taken| taken == header)
    }
}

#[tokio::test]
async fn if_match_is_looked_at_or_refused() {
    let furnished = Furnished::new().await;
    let waiver = furnished.body("addWaiver", "");
    furnished
        .running
        .admin
        .post(&format!("/crds/{CRD}/waivers"), &waiver)
        .await
        .expect(201);
    for operation in furnished.operations().await {
        let got = furnished.ask(&operation, "new", &[("if-match", "\"999\"")]).await;
        if operation.takes("If-Match") {
            assert_eq!(got.status, 412, "{}: {}", operation.id, got.text);
        } else {
            assert_eq!(got.status, 400, "{}: {}", operation.id, got.text);
            assert_eq!(got.body["error"]["details"][0]["field"], "If-Match");
        }
    }
    // What was seen is what is there.
    let admin = &furnished.running.admin;
    let seen = admin.get(&format!("/crds/{CRD}")).await.expect(200);
    let seen = [("if-match", seen.header("etag"))];
    let another = furnished.body("registerCrd", "");
    admin
        .ask("post", "/crds", Some(&another), &seen)
        .await
        .expect(201);
    let fifth = schema("5.0.0", json!({}));
    admin.ask("post", "/crds", Some(&fifth), &seen).await.expect(412);
    let unseen = definition("unseen.example.com", json!({}));
    let unseen = json!({"schemaDefinition": unseen, "operatorVersion": "1.0.0"});
    admin.ask("post", "/crds", Some(&unseen), &seen).await.expect(412);
    furnished.running.server.stop().await;
}

#[tokio::test]
async fn an_idempotency_key_counts_where_the_document_says_so() {
    let furnished = Furnished::new().await;
    for operation in furnished.operations().await {
        // A password is a user's own, and is another one the second time.
        if operation.method != "post" || operation.id == "changePassword" {
            assert!(!operation.takes("Idempotency-Key"), "{}", operation.id);
            continue;
        }
        let key = [("idempotency-key", operation.id.as_str())];
        let first = furnished.ask(&operation, "new", &key).await;
        assert!(first.status < 300, "{}: {}", operation.id, first.text);
        assert_eq!(first.header("idempotency-replayed"), "", "{}", operation.id);
        let again = furnished.ask(&operation, "new", &key).await;
        assert_eq!(again.status, first.status, "{}: {}", operation.id, again.text);
        assert_eq!(
            again.header("idempotency-replayed") == "true",
            operation.takes("Idempotency-Key"),
            "{}",
            operation.id
        );
    }
    furnished.running.server.stop().await;
}
