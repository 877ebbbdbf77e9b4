//! `/health` and the OpenAPI document.

use std::time::{Duration, Instant};

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use gantry_fleet_api::ServerHealth;
use serde_json::Value;
use sqlx::PgPool;
use tokio::sync::Mutex;

use super::App;

/// How long an answer of the database counts. Anybody may ask, as often as they like, and none of them is counted.
const FRESH: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether the database answered, and when. One asks it, and the others wait for what comes of it.
#[derive(Default)]
pub struct Pulse(Mutex<Option<(Instant, bool)>>);

impl Pulse {
    async fn beats(&self, pool: &PgPool) -> bool {
        let mut last = self.0.lock().await;
        if let Some((at, works)) = *last
            && at.elapsed() < FRESH
        {
            return works;
        }
        let asked = sqlx::query("select 1").execute(pool);
        let works = matches!(tokio::time::timeout(PATIENCE, asked).await, Ok(Ok(_)));
        *last = Some((Instant::now(), works));
        works
    }
}

pub async fn health(State(app): State<App>) -> impl IntoResponse {
    let works = app.pulse.beats(&app.fleet.pool).await;
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

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgPoolOptions;

    use super::*;

    #[tokio::test]
    async fn the_database_is_asked_once_for_all_who_ask_within_a_second() {
        // Where none is.
        let pool = PgPoolOptions::new()
            .acquire_timeout(Duration::from_millis(50))
            .connect_lazy("postgres://127.0.0.1:1/none")
            .unwrap();
        let pulse = Pulse::default();
        *pulse.0.lock().await = Some((Instant::now(), true));
        assert!(pulse.beats(&pool).await, "as it was a moment ago");
        *pulse.0.lock().await = Some((Instant::now().checked_sub(FRESH).unwrap(), true));
        assert!(!pulse.beats(&pool).await);
        assert!(!pulse.beats(&pool).await);
    }
}
