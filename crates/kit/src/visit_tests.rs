//! Whole visits of one object against a server that is a function: what is written, and what is told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Method;
use k8s_openapi::{
    api::{autoscaling::v2::HorizontalPodAutoscaler, core::v1::ConfigMap, core::v1::Service},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::core::{ApiResource, DeserializeGuard, DynamicObject};
use rstest::rstest;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    Common, Context, Controller, ObjectKey, Outcome, Progress, Result, Verdict, Wish,
    apply::{Children, id},
    backoff::Backoff,
    child::Child,
    client::Caller,
    dependents::Links,
    driver::Driver,
    leader::Fence,
    manager::Wakers,
    metrics::Metrics,
    references::References,
    store::Store,
    stub::{self, Answer},
};

/// Objects by their path, and what was done to them.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    version: u64,
    writes: Vec<(Method, String)>,
    /// Parts of paths of objects that are not taken.
    refuses: Vec<&'static str>,
    status: Value,
    /// Of the events that were made.
    reasons: Vec<String>,
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, mut body: Value) -> Answer {
        let path = path.split('?').next().unwrap_or_default().to_owned();
        if *method == Method::GET {
            let found = self.objects.get(&path).cloned();
            let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"});
            return found.map_or_else(|| Answer::Says(404, missing), |found| Answer::Says(200, found));
        }
        self.writes.push((method.clone(), path.clone()));
        if *method == Method::POST {
            self.reasons
                .push(body["reason"].as_str().unwrap_or_default().to_owned());
            return Answer::Says(201, body);
        }
        if *method == Method::DELETE {
            self.objects.remove(&path);
            return Answer::Says(
                200,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            );
        }
        if self.refuses.iter().any(|refused| path.contains(refused)) {
            return Answer::refusal(422);
        }
        if path.ends_with("/status") {
            self.status = body["status"].clone();
            body["metadata"]["generation"] = json!(7);
        }
        self.version += 1;
        if body["metadata"]["uid"].is_null() {
            body["metadata"]["uid"] = json!(path);
        }
        body["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path, body.clone());
        Answer::Says(200, body)
    }

    fn patches_of(&self, path: &str) -> usize {
        let patches = self.writes.iter().filter(|(method, _)| method == Method::PATCH);
        patches.filter(|(_, written)| written.ends_with(path)).count()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    conditions: Vec<Condition>,
    observed_generation: Option<i64>,
    endpoint: &'static str,
}

/// Makes a Service after autoscalers of these names and parts.
struct Things {
    autoscalers: Vec<(&'static str, Option<&'static str>)>,
}

impl Controller for Things {
    type Kind = ConfigMap;
    type Status = Told;

    const NAME: &'static str = "thing";

    fn status(_: &ConfigMap) -> Option<&Told> {
        None
    }

    fn common(status: &mut Told) -> Common<'_> {
        Common {
            conditions: &mut status.conditions,
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(_: &mut Told) {}

    async fn reconcile(&self, root: &ConfigMap, context: &Context) -> Result<Outcome<Told>> {
        let mut wish = Wish::default();
        for (name, part) in &self.autoscalers {
            wish.add_json(autoscaler(), json!({"metadata": metadata(name, *part)}));
        }
        wish.add_json(
            service(),
            json!({"metadata": {"name": "a"}, "spec": {"type": "ClusterIP"}}),
        );
        let applied = context.apply(root, wish).await?;
        assert!(applied.get::<Service>("Service", "a")?.is_some());
        let told = Told {
            endpoint: "http://a",
            ..Told::default()
        };
        Ok(Outcome::new(
            told,
            Verdict::yes("Ready", "it serves"),
            Progress::Done,
        ))
    }
}

fn autoscaler() -> ApiResource {
    ApiResource::erase::<HorizontalPodAutoscaler>(&())
}

fn service() -> ApiResource {
    ApiResource::erase::<Service>(&())
}

fn metadata(name: &str, part: Option<&str>) -> Value {
    let labels = part.map(|part| json!({"app.kubernetes.io/component": part}));
    json!({"name": name, "labels": labels})
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "root")
}

/// A controller of one root, and its server.
struct World {
    driver: Driver<Things>,
    server: Arc<Mutex<Server>>,
}

impl World {
    fn new(autoscalers: &[(&'static str, Option<&'static str>)]) -> Self {
        let server: Arc<Mutex<Server>> = Arc::default();
        let shared = server.clone();
        let client =
            stub::reader(move |method, path, body| shared.lock().unwrap().answer(method, path, body));
        let caller = Caller::new(client, Fence::open(), Duration::from_secs(15));
        let wakers = Arc::new(Wakers::default());
        let store: Arc<Store<DeserializeGuard<ConfigMap>>> = Arc::default();
        let root = json!({"metadata": {
            "name": "root", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 7,
        }});
        store.put(DeserializeGuard(Ok(serde_json::from_value(root).unwrap())));
        let context = Context {
            children: Arc::new(Children::new(caller.clone(), [autoscaler(), service()])),
            pods: Arc::default(),
            references: Arc::new(References::new(caller.clone(), wakers.clone())),
            links: Arc::new(Links::new(wakers)),
            namespaces: Arc::default(),
            apis: Arc::default(),
            queue: Arc::default(),
            field_manager: "gantry-thing".to_owned(),
            refused: Mutex::default(),
            caller,
        };
        let driver = Driver {
            controller: Things {
                autoscalers: autoscalers.to_vec(),
            },
            context,
            store,
            backoff: Backoff::default(),
            instance: "test".to_owned(),
            metrics: Metrics::default(),
            resync: Duration::from_secs(600),
            known: Mutex::default(),
        };
        Self { driver, server }
    }

    /// The watch tells of a child.
    fn sees(&self, resource: &ApiResource, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let mut kinds = self.driver.context.children.kinds();
        let kind = kinds.find(|kind| id(&kind.resource) == id(resource)).unwrap();
        kind.store.put(Child::new(object));
    }

    fn sees_autoscaler(&self, name: &str, part: Option<&str>) {
        let mut metadata = metadata(name, part);
        metadata["namespace"] = json!("ns");
        metadata["uid"] = json!(name);
        metadata["resourceVersion"] = json!("1");
        metadata["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "root", "uid": "u", "controller": true}]);
        self.sees(
            &autoscaler(),
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata}),
        );
    }

    async fn visit(&self) {
        self.driver.visit(&key()).await;
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    /// Reason of `Ready`, and its message.
    fn ready(&self) -> (String, String) {
        let status = self.server().status.clone();
        let mut conditions = status["conditions"].as_array().unwrap().iter();
        let ready = conditions.find(|condition| condition["type"] == "Ready").unwrap();
        let text = |name: &str| ready[name].as_str().unwrap().to_owned();
        (text("reason"), text("message"))
    }
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_that_is_refused_leaves_the_status_as_it_is_found() {
    let world = World::new(&[("a", None)]);
    world.server().refuses = vec!["/horizontalpodautoscalers/"];
    world.visit().await;
    let (reason, message) = world.ready();
    assert_eq!(reason, "Rejected");
    assert!(
        message.contains("HorizontalPodAutoscaler a") && message.contains("422"),
        "{message}"
    );
    let status = world.server().status.clone();
    assert_eq!(status["endpoint"], "http://a");
    assert_eq!(status["observedGeneration"], 7);
    assert_eq!(world.server().reasons, ["Rejected"]);
    let queue = &world.driver.context.queue;
    let again = tokio::time::timeout(Duration::from_secs(40), queue.next()).await;
    assert_eq!(again.expect("it is tried again"), key());
    world.server().refuses.clear();
    world.visit().await;
    assert_eq!(world.ready().0, "Ready");
}

#[rstest]
#[case::alone(&[("new", None)], &["old"])]
#[case::of_a_part(&[("new", Some("x")), ("other", Some("y"))], &["of-x"])]
#[tokio::test(start_paused = true)]
async fn only_what_a_refused_object_is_to_replace_outlives_the_wish(
    #[case] wished: &[(&'static str, Option<&'static str>)],
    #[case] stays: &[&str],
) {
    let world = World::new(wished);
    world.server().refuses = vec!["/horizontalpodautoscalers/new"];
    if wished.len() == 1 {
        world.sees_autoscaler("old", None);
    } else {
        world.sees_autoscaler("of-x", Some("x"));
        world.sees_autoscaler("of-z", Some("z"));
        world.sees_autoscaler("of-none", None);
    }
    world.visit().await;
    let server = world.server();
    let deleted = |name: &str| {
        let mut writes = server.writes.iter();
        writes.any(|(method, path)| *method == Method::DELETE && path.ends_with(name))
    };
    for name in ["old", "of-x", "of-z", "of-none"] {
        let is_known = (wished.len() == 1) == (name == "old");
        assert_eq!(deleted(name), is_known && !stays.contains(&name), "{name}");
    }
}

/// Another controller sets a field of ours whenever it sees our value.
#[tokio::test(start_paused = true)]
async fn who_keeps_changing_a_child_is_named_and_not_fought_without_end() {
    const PATH: &str = "/services/a";
    let world = World::new(&[]);
    world.visit().await;
    assert_eq!(world.ready().0, "Ready");
    let revert = |world: &World| {
        let mut server = world.server();
        server.version += 1;
        let version = server.version.to_string();
        let (_, live) = server
            .objects
            .iter_mut()
            .find(|(path, _)| path.ends_with(PATH))
            .unwrap();
        live["spec"]["type"] = json!("NodePort");
        live["metadata"]["resourceVersion"] = json!(version);
        let entry = |manager: &str, time: &str, fields: Value| {
            json!({
                "manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields,
            })
        };
        live["metadata"]["managedFields"] = json!([
            entry("rival", "2026-01-01T00:00:00Z", json!({"f:spec": {"f:type": {}}})),
            entry(
                "gantry-thing",
                "2026-01-02T00:00:00Z",
                json!({"f:spec": {"f:type": {}}})
            ),
            entry(
                "friend",
                "2026-01-03T00:00:00Z",
                json!({"f:spec": {"f:clusterIP": {}}})
            ),
        ]);
        let seen = live.clone();
        drop(server);
        world.sees(&service(), seen);
    };
    for second in 0..600 {
        revert(&world);
        world.visit().await;
        if second == 3 {
            assert_eq!(world.ready().0, "Ready", "a few times is nothing");
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let writes = world.server().patches_of(PATH);
    assert!((6..14).contains(&writes), "{writes} writes");
    let (reason, message) = world.ready();
    assert_eq!(reason, "Conflict");
    assert!(
        message.contains("Service a") && message.contains("\"rival\""),
        "{message}"
    );
    assert!(world.server().reasons.iter().any(|reason| reason == "Conflict"));
    // It gives up, and the pause ends.
    tokio::time::advance(Duration::from_secs(200)).await;
    world.visit().await;
    assert_eq!(world.server().patches_of(PATH), writes + 1);
    assert_eq!(world.ready().0, "Conflict", "it may come back");
    tokio::time::advance(Duration::from_secs(60)).await;
    world.visit().await;
    assert_eq!(world.server().patches_of(PATH), writes + 1);
    assert_eq!(world.ready().0, "Ready");
}
