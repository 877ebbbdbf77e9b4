//! `/health` and the OpenAPI document.

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use gantry_fleet_api::ServerHealth;
use serde_json::Value;

use super::App;

pub async fn health(State(app): State<App>) -> impl IntoResponse {
    let asked = sqlx::query("select 1").execute(&app.fleet.pool);
    let works = matches!(
        tokio::time::timeout(std::time::Duration::from_secs(3), asked).await,
        Ok(Ok(_))
    );
    let (status, word) = if works {
        (StatusCode::OK, "Healthy")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "Unhealthy")
    };
    let body = ServerHealth {
        status: word.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    (status, Json(body))
}

pub async fn openapi(State(app): State<App>) -> Json<Value> {
    Json((*app.document).clone())
}
