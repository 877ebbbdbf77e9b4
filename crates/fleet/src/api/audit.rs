//! `/audit`.

use axum::{Json, extract::State};
use gantry_fleet_api as api;
use jiff::Timestamp;

use super::{App, extract::Query};
use crate::{
    Error,
    infrastructure::store::{audit::Filter, time},
    orchestrator::audit,
};

pub async fn list(State(app): State<App>, query: Query) -> Result<Json<api::AuditEntries>, Error> {
    let moment = |name: &str| query.parsed::<Timestamp>(name, "a time such as 2026-01-31T12:00:00Z");
    let filter = Filter {
        action: query.text("action"),
        outcome: query.one_of("outcome", &["Succeeded", "Failed", "Denied", "Begun"])?,
        actor: query.text("actor"),
        target_kind: query.text("targetKind"),
        target_id: query.text("targetId"),
        since: moment("since")?.map(time),
        until: moment("until")?.map(time),
        ascending: query.one_of("order", &["asc", "desc"])?.as_deref() == Some("asc"),
    };
    audit::list(&app.fleet, &filter, query.window()?).await.map(Json)
}
