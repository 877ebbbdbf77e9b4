//! What the log says of requests, at the level that it has unless something else is asked for.

use std::{
    io,
    sync::{Arc, Mutex},
};

use gantry_fleet_domain::access::Role;
use serde_json::{Value, json};
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt as _};

use super::support::{Got, Running, definition};

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    /// The lines about requests of these traces: other tests may be at work in this process.
    fn lines(&self, traces: &[String]) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["message"] == "a request was answered")
            .filter(|line| traces.iter().any(|trace| line["trace_id"] == trace.as_str()))
            .collect()
    }
}

#[tokio::test]
async fn each_write_is_one_line_that_tells_who_did_what_to_what() {
    let written = Written::default();
    let writer = written.clone();
    let lines = tracing_subscriber::registry()
        .with(LevelFilter::INFO)
        .with(gantry_kit::telemetry::json_lines(move || writer.clone()));
    // For all threads: what is set for one is not seen reliably while others use the same lines of code.
    tracing::subscriber::set_global_default(lines).unwrap();
    let mut traces = Vec::new();
    let mut seen = |got: &Got| traces.push(got.header("x-trace-id").to_owned());
    let running = Running::with(|settings| settings.rates.login = 1).await;
    let crd =
        json!({"schemaDefinition": definition("things.example.com", json!({})), "operatorVersion": "1.2.3"});
    let made = running.admin.post("/crds", &crd).await.expect(201);
    seen(&made);
    seen(&running.admin.get("/crds").await.expect(200));
    seen(&running.admin.get("/crds/things.example.com").await.expect(200));
    let guide = json!({"migrationGuide": "none"});
    let changed = running.admin.put("/crds/things.example.com", &guide).await;
    seen(&changed.expect(200));
    let viewer = running.role(Role::Viewer);
    seen(&viewer.post("/clusters", &json!({})).await.expect(403));
    seen(&running.admin.delete("/operators/no-such-thing").await.expect(404));
    let login = json!({"username": "jo", "password": "a password that nobody may read"});
    for status in [401, 429] {
        let stranger = running.asker(None);
        let got = stranger.post("/authentication/login", &login).await;
        seen(&got.expect(status));
    }
    let lines = written.lines(&traces);
    let of = |line: &Value| {
        [
            "operation",
            "status",
            "user",
            "code",
            "crd",
            "operator",
            "version",
        ]
        .map(|name| line[name].clone())
    };
    let all: Vec<_> = lines.iter().map(of).collect();
    let expected = [
        json!([
            "registerCrd",
            201,
            "admin",
            null,
            "things.example.com",
            null,
            "1.2.3"
        ]),
        json!(["changeCrd", 200, "admin", null, "things.example.com", null, null]),
        json!([
            "registerCluster",
            403,
            "someone-Viewer",
            "FORBIDDEN",
            null,
            null,
            null
        ]),
        json!([
            "deleteOperator",
            404,
            "admin",
            "OPERATOR_NOT_FOUND",
            null,
            "no-such-thing",
            null
        ]),
        json!(["login", 401, null, "UNAUTHORIZED", null, null, null]),
        json!(["login", 429, null, "RATE_LIMIT_EXCEEDED", null, null, null]),
    ];
    assert_eq!(json!(all), json!(expected));
    assert_eq!(lines[0]["level"], "INFO");
    assert_eq!(lines[0]["trace_id"], made.header("x-trace-id"));
    assert!(lines.iter().all(|line| line["duration_ms"].is_u64()), "{lines:?}");
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("that nobody may read"));
    running.server.stop().await;
}
